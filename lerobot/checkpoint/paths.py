"""Which folder a checkpoint is in, and which policy. Imports no torch: the command line asks before torch is there."""

import functools
import logging
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lerobot.checkpoint import old_format
from lerobot.checkpoint.json_file import holds_interpolation, read_json
from lerobot.checkpoint.processors import POSTPROCESSOR_FILE, PREPROCESSOR_FILE, read_processors
from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.config import POLICY_CONFIGS, PolicyConfig

log = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TRAIN_CONFIG_FILE = "train_config.json"
PRETRAINED_FOLDER = "pretrained_model"
STATE_FOLDER = "training_state"
STEP_FILE, OPTIMIZER_FILE = "training_step.json", "optimizer_state.safetensors"
CHECKPOINTS_FOLDER = "checkpoints"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MOST_NUMBERS = 2**28
"""Of one observation; a camera of 8K has 2**27. What is made of a picture grows with it, whatever the weights."""
LAST, BEST = "last", "best"
"""Links to step folders, or files that hold a step folder's name where the file system has no links."""
_TO_GO_ON = (
    *(f"{PRETRAINED_FOLDER}/{name}" for name in (TRAIN_CONFIG_FILE, POSTPROCESSOR_FILE)),
    f"{PRETRAINED_FOLDER}/policy_preprocessor_step_*.safetensors",
    *(f"{STATE_FOLDER}/{name}" for name in (OPTIMIZER_FILE, STEP_FILE)),
)
"""What a run needs of a checkpoint beside what a policy needs."""
OLD = ".old"
"""Behind the name of a step folder while another takes its place."""


def find_pretrained(path: str | Path) -> Path:
    """The folder with `config.json` and `model.safetensors` that `path` means, `last` and `best` resolved.

    `path` may be that folder, a file in it, a checkpoint's step folder, its `training_state`, `last` or `best`, a
    `checkpoints` folder, a run, or a run's `.hydra/config.yaml`. Raises `ConfigError` that says what is missing.
    """
    given = follow(Path(path).expanduser())
    if not given.exists():
        raise ConfigError(
            f"there is no checkpoint at {path}: give a run, a checkpoint or a pretrained_model folder on this machine, "
            "or for policy.path a Hub repo as <user>/<name>"
        )
    if given.name in (LAST, BEST) and given.is_file():
        raise ConfigError(f"{given} names no checkpoint beside it: give one of the step folders there")
    folder = given.parent if given.is_file() else given
    folder = folder.parent if folder.name in (".hydra", STATE_FOLDER) else folder
    steps = [*newest_first(folder), *newest_first(folder / CHECKPOINTS_FOLDER)]
    for place in (folder, *(step / PRETRAINED_FOLDER for step in (folder, *steps))):
        if not missing_files(place):
            return _without_pointer(place)
    raise ConfigError(_complaint(folder))


def find_to_go_on(path: str | Path) -> Path:
    """The checkpoint that `path` means: where that is a run, the newest one that has all that is needed."""
    folder = find_pretrained(path).parent
    if not (lacks := missing_to_go_on(folder)):
        return folder
    others = [step for step in newest_first(folder.parent)[1:] if not missing_to_go_on(step)]
    if others and Path(path).expanduser().resolve() in (folder.parent.resolve(), folder.parent.parent.resolve()):
        return others[0]
    instead = f"resume={others[0]} goes on from another one, " if others else ""
    raise ConfigError(
        f"{folder} lacks {', '.join(lacks)}: {instead}policy.path={folder} starts a new run from its weights"
    )


def _without_pointer(place: Path) -> Path:
    """`place`, absolute, with the step folder in place of `last`. Other links stay: they are a run's own."""
    for pointer in place.parents:
        if pointer.name in (LAST, BEST) and (folder := pointed(pointer)) is not None:
            place = folder / place.relative_to(pointer)
    is_odd = ".." in place.parts or any(parent.name in (LAST, BEST) for parent in place.parents)
    return place.resolve() if is_odd else place.absolute()


def has_checkpoints(run: Path) -> bool:
    """Whether a run has saved anything, whole or not: it must not be started over as if it had not."""
    entries = (run / CHECKPOINTS_FOLDER).glob("*")
    return any(step_of(entry) is not None or entry.name == LAST for entry in entries)


def step_of(folder: Path) -> int | None:
    """The step whose checkpoint `folder` is by its name; None for half-written ones and whatever else is there."""
    name = folder.name.removesuffix(OLD)
    return int(name) if name.isascii() and name.isdigit() else None


def is_whole(step_folder: Path) -> bool:
    """Whether a policy can be loaded from `step_folder`."""
    return not missing_files(step_folder / PRETRAINED_FOLDER)


def missing_to_go_on(step_folder: Path) -> list[str]:
    """What `step_folder` lacks of what a run needs to go on from it."""
    lacks = missing_files(step_folder / PRETRAINED_FOLDER)
    return lacks + [name for name in _TO_GO_ON if not any(step_folder.glob(name))]


def follow(path: Path) -> Path:
    """`path` with a `last` or `best` in it that is a file, or whose folder is being replaced, followed."""
    for pointer in (path, *path.parents):
        if pointer.name in (LAST, BEST) and not pointer.is_dir() and (folder := pointed(pointer)) is not None:
            return folder / path.relative_to(pointer)
    return path


def pointed(pointer: Path) -> Path | None:
    """The step folder that `pointer` leads to, be it a link or a file; None where it leads to none."""
    try:
        name = pointer.readlink().name if pointer.is_symlink() else pointer.read_text(errors="replace").strip()
    except OSError:
        return None
    if not name.removesuffix(OLD).isdigit():  # a file from outside leads nowhere else
        return None
    places = (pointer.with_name(name), pointer.with_name(name + OLD), pointer.with_name(name.removesuffix(OLD)))
    return next((place for place in places if place.is_dir()), None)


def read_policy_config(folder: Path) -> PolicyConfig:
    """The policy that `folder` (see `find_pretrained`) holds; its device is not taken over, the launch decides that.

    Unknown keys and keys that are not there are warned of once: other versions write other keys.
    """
    stored = read_json(folder / CONFIG_FILE)
    kind = stored.get("type")
    if kind not in POLICY_CONFIGS:
        raise ConfigError(
            f"{folder / CONFIG_FILE} is of a policy of type '{kind}': "
            f"give a checkpoint of one of {', '.join(POLICY_CONFIGS)}"
        )
    cls = POLICY_CONFIGS[kind]
    names = {field.name for field in fields(cls)}
    if unknown := sorted(stored.keys() - names):
        _warn_once(f"{folder / CONFIG_FILE}: unknown keys have no effect: {', '.join(unknown)}")
    if absent := sorted(names - stored.keys()):
        _warn_once(f"{folder / CONFIG_FILE}: keys that are not there take their defaults: {', '.join(absent)}")
    values = {name: stored[name] for name in names & stored.keys() - {"device"}}
    for name in ("input_features", "output_features"):
        values[name] = _features(folder / CONFIG_FILE, name, values.get(name) or {})
    if (folder / PREPROCESSOR_FILE).is_file():
        # The processor is what normalised while training; `normalization_mapping` is what was asked for.
        values["normalization_mapping"] = read_processors(
            folder, values["input_features"], values["output_features"]
        ).norm_map
    return _typed(folder / CONFIG_FILE, cls, values)


def _typed(file: Path, cls: type[Any], values: dict[str, Any]) -> Any:
    """`cls` of `values`, each of the type of its field, as on the command line."""
    try:
        node = OmegaConf.structured(cls)
        for name, value in values.items():
            if holds_interpolation(value):
                raise ConfigError(f"{name}: a reference is no value")
            node[name] = value  # not merged: a mapping that lacks a default's entry is without it
        return OmegaConf.to_object(node)
    except (ConfigError, OmegaConfBaseException, OverflowError) as error:
        key = getattr(error, "full_key", None)
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{file} holds no settings of a policy ({f'{key}: ' if key else ''}{reason}): "
            "give a checkpoint whose settings are as they were trained with"
        ) from error


def _features(file: Path, name: str, stored: Any) -> dict[str, Feature]:
    """The features that `file` lists under `name`."""
    try:
        features = {key: Feature(entry["type"], [int(n) for n in entry["shape"]]) for key, entry in stored.items()}
        if not all(f.shape and min(f.shape) > 0 and math.prod(f.shape) <= _MOST_NUMBERS for f in features.values()):
            raise ValueError("no shape")
        return features
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file} lists no features with a type and a shape under {name}: give a checkpoint that does"
        ) from error


def newest_first(folder: Path) -> list[Path]:
    """`last`, then the numbered checkpoints, highest first. Others (half-written ones) are none."""
    numbered = [(step, entry.name, entry) for entry in folder.glob("*") if (step := step_of(entry)) is not None]
    return [follow(folder / LAST), *(entry for *_, entry in sorted(numbered, reverse=True))]


def missing_files(place: Path) -> list[str]:
    """Which of the files that make a policy are not in the folder `place`."""
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE, PREPROCESSOR_FILE) if not (place / name).is_file()]
    is_old = missing == [PREPROCESSOR_FILE] and old_format.holds_statistics(place / WEIGHTS_FILE)
    return [] if is_old else missing


def _complaint(folder: Path) -> str:
    runs = sorted(str(entry.parent) for entry in folder.glob(f"*/{CHECKPOINTS_FOLDER}"))
    if runs:
        return f"{folder} holds runs: give one of {', '.join(runs)}"
    places = [folder, folder / PRETRAINED_FOLDER, *folder.glob(f"{CHECKPOINTS_FOLDER}/*/{PRETRAINED_FOLDER}")]
    halves = [place for place in places if 0 < len(missing_files(place)) < 3]
    if halves and missing_files(halves[-1]) == [PREPROCESSOR_FILE]:
        return (
            f"{halves[-1]} lacks {PREPROCESSOR_FILE}, and its weights hold no statistics either, as they do before "
            "LeRobot 0.4: give a checkpoint that was saved with them"
        )
    pickles = [entry.name for place in halves for entry in place.iterdir() if entry.suffix in _PICKLES]
    if halves and pickles and WEIGHTS_FILE in missing_files(halves[-1]):
        return (
            f"{halves[-1]} has its weights as {pickles[0]}, which can run any program and is never opened: "
            f"give a checkpoint that has them as {WEIGHTS_FILE}"
        )
    if halves:
        lacks = " and ".join(missing_files(halves[-1]))
        return f"{halves[-1]} lacks {lacks}: give a checkpoint that was written to its end"
    return (
        f"{folder} has no checkpoint (no {CHECKPOINTS_FOLDER}/, {PRETRAINED_FOLDER}/ or {CONFIG_FILE} with "
        f"{WEIGHTS_FILE}): give a run that has saved one"
    )


@functools.cache
def _warn_once(message: str) -> None:
    log.warning(message)
