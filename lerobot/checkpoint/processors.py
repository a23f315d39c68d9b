"""A checkpoint's pre- and postprocessor as LeRobot stores them. What would change actions and is not built is refused.

Here the steps are parts of every policy (rename, normalise, move to its device), so that a stored pipeline is read as
settings. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot.checkpoint.json_file import read_json
from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.config import EPS

PREPROCESSOR_FILE = "policy_preprocessor.json"
POSTPROCESSOR_FILE = "policy_postprocessor.json"
RENAME, BATCH, DEVICE = "rename_observations_processor", "to_batch_processor", "device_processor"
NORMALIZE, UNNORMALIZE = "normalizer_processor", "unnormalizer_processor"
_NORMALIZE_SETTINGS = ("eps", "features", "norm_map", "normalize_observation_keys")
_SETTINGS = {
    RENAME: ("rename_map",),
    BATCH: (),
    DEVICE: ("device", "float_dtype"),
    NORMALIZE: _NORMALIZE_SETTINGS,
    UNNORMALIZE: _NORMALIZE_SETTINGS,
}
_STEPS = {PREPROCESSOR_FILE: (RENAME, BATCH, DEVICE, NORMALIZE), POSTPROCESSOR_FILE: (UNNORMALIZE, DEVICE)}
_SWITCHED = ("relative_actions_processor", "absolute_actions_processor")
"""Steps that do nothing where they are stored with `enabled: false`."""


@dataclass
class Processors:
    """What the two files say."""

    norm_map: dict[str, str]
    """Feature type to mode."""
    rename_map: dict[str, str]
    stats: Path
    """Of all features, safetensors."""
    action_stats: Path
    """Of the postprocessor, by which actions come back."""


def read_processors(folder: Path, inputs: Mapping[str, Feature], outputs: Mapping[str, Feature]) -> Processors:
    """The processors in `folder` for a policy with these features.

    Raises `ConfigError` that names a step or a setting which is not built, or what is not whole.
    """
    before, after = (_steps(folder / name) for name in (PREPROCESSOR_FILE, POSTPROCESSOR_FILE))
    first, last = folder / PREPROCESSOR_FILE, folder / POSTPROCESSOR_FILE
    normalize, unnormalize = _only(first, before, NORMALIZE), _only(last, after, UNNORMALIZE)
    norm_map = _words(first, normalize, "norm_map")
    _check_normalizer(first, normalize, {**inputs, **outputs}, norm_map, inputs)
    _check_normalizer(last, unnormalize, outputs, norm_map, {})
    renames = [step for step in before if step["registry_name"] == RENAME]
    if len(renames) > 1 or (renames and before.index(renames[0]) > before.index(normalize)):
        raise ConfigError(f"{first} renames after it normalises, or twice, which is not built: {_INSTEAD}")
    rename_map = _words(first, renames[0], "rename_map") if renames else {}
    return Processors(norm_map, rename_map, _state_file(first, normalize), _state_file(last, unnormalize))


_INSTEAD = "run this checkpoint with LeRobot, or give a checkpoint of a policy without it"


def _steps(file: Path) -> list[dict[str, Any]]:
    """The steps of `file` that do something, each known and with settings that are."""
    steps = read_json(file).get("steps")
    kept = []
    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, dict):
            raise ConfigError(
                f"{file} has a step beside its '{NORMALIZE}' that is no object: give a checkpoint without"
            )
        name, settings = step.get("registry_name", step.get("class")), step.get("config", {})
        if name in _SWITCHED and isinstance(settings, dict) and settings.get("enabled") is False:
            continue
        if not isinstance(name, str) or name not in _STEPS[file.name]:
            raise ConfigError(
                f"{file} has the step '{name}', which is not built and would change the actions: {_INSTEAD}"
            )
        _check_settings(file, name, settings)
        kept.append({"state_file": None, **step, "registry_name": name, "config": settings})
    return kept


def _check_settings(file: Path, name: str, settings: Any) -> None:
    if not isinstance(settings, dict):
        raise ConfigError(f"{file} has no readable settings of its step '{name}': give a checkpoint that has it whole")
    odd = [key for key, value in settings.items() if key not in _SETTINGS[name] and value is not None]
    ours = {"eps": EPS, "float_dtype": "float32"}
    odd += [key for key in ours.keys() & settings.keys() if settings[key] not in (None, ours[key])]
    if odd:
        words = ", ".join(f"{key}={settings[key]}" for key in odd)
        raise ConfigError(f"{file} sets {words} in its step '{name}', which is not built: {_INSTEAD}")


def _only(file: Path, steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The one step `name`."""
    found = [step for step in steps if step["registry_name"] == name]
    if not found:
        raise ConfigError(
            f"{file} has no step '{name}' and so no statistics to run the policy with: "
            f"give a checkpoint whose {file.name} has one"
        )
    if len(found) > 1:
        raise ConfigError(f"{file} has the step '{name}' {len(found)} times, which is not built: {_INSTEAD}")
    return found[0]


def _words(file: Path, step: dict[str, Any], name: str) -> dict[str, str]:
    """The words to words of a step's setting."""
    words = step["config"].get(name, {})
    if not isinstance(words, dict) or not all(isinstance(word, str) for word in words.values()):
        raise ConfigError(
            f"{file} has no readable {name} in its step '{step['registry_name']}': give a checkpoint that has it whole"
        )
    return words


def _check_normalizer(
    file: Path,
    step: dict[str, Any],
    features: Mapping[str, Feature],
    norm_map: Mapping[str, str],
    observed: Mapping[str, Feature],
) -> None:
    """Refuse a step that leaves out a feature which the policy has normalised here, or maps one in another way."""
    name, settings = step["registry_name"], step["config"]
    listed, own_map = settings.get("features"), _words(file, step, "norm_map")
    chosen = settings.get("normalize_observation_keys")
    if not isinstance(listed, dict):
        raise ConfigError(f"{file} lists no features in its step '{name}': give a checkpoint that has it whole")
    for key, feature in features.items():
        entry = listed.get(key)
        kind = entry.get("type") if isinstance(entry, dict) else None
        left_out = chosen is not None and key in observed and key not in chosen
        theirs = "IDENTITY" if kind is None or left_out else own_map.get(str(kind), "IDENTITY")
        ours = norm_map.get(feature.type, "IDENTITY")
        if theirs != ours:
            raise ConfigError(
                f"{file} has '{key}' as {theirs} in its step '{name}' and a policy with this config.json has it as "
                f"{ours}, other mixtures are not built: {_INSTEAD}"
            )


def _state_file(file: Path, step: dict[str, Any]) -> Path:
    """The tensors of a step, which lie beside `file` under a plain name."""
    name = step["state_file"]
    if isinstance(name, str) and (Path(name).name != name or not name.endswith(".safetensors")):
        raise ConfigError(
            f"{file} names '{name}' as the tensors of its step '{step['registry_name']}', which is no safetensors file "
            "beside it: give a checkpoint that has all its files in one folder"
        )
    if not isinstance(name, str) or not (file.parent / name).is_file():
        raise ConfigError(
            f"{file.parent} lacks the statistics of its '{step['registry_name']}' ({name or 'no file named'}): "
            "give a checkpoint that was saved with them"
        )
    return file.parent / name
