"""A policy as files that LeRobot reads and writes too: weights, config, and processors with the statistics."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerobot.checkpoint.paths import (
    CONFIG_FILE,
    POSTPROCESSOR_FILE,
    PREPROCESSOR_FILE,
    TRAIN_CONFIG_FILE,
    WEIGHTS_FILE,
    find_pretrained,
    processor_setting,
    processor_step,
    read_policy_config,
)
from lerobot.checkpoint.tensors import read_tensors, write_tensors
from lerobot.errors import ConfigError
from lerobot.policies.base import Policy
from lerobot.policies.config import PolicyConfig
from lerobot.policies.normalize import EPS, Normalizer


def save_pretrained(
    folder: Path,
    policy: Policy,
    *,
    train_config: dict[str, Any] | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `policy` into `folder`, made if it is not there.

    `weights` stands for `policy.state_dict()` where that goes on changing, or is spread over several processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    device = policy.device.type  # no index: LeRobot knows none, and another machine may have fewer
    _write_json(folder / CONFIG_FILE, {**asdict(policy.config), "device": device})
    weights = policy.state_dict() if weights is None else weights
    write_tensors(folder / WEIGHTS_FILE, weights)
    _write_processors(folder, policy, device)
    if train_config is not None:
        _write_json(folder / TRAIN_CONFIG_FILE, train_config)


def load_policy(path: str | Path, device: str | torch.device = "cpu", *, config: PolicyConfig | None = None) -> Policy:
    """The policy at `path` (see `find_pretrained`), in eval mode on `device`, with the statistics it was trained with.

    `config` replaces the stored one; whatever device is stored plays no part.
    """
    folder = find_pretrained(path)
    config = read_policy_config(folder) if config is None else config
    stats = _read_stats(folder, config)
    policy = _blank(config).build(stats)
    policy.config = replace(config, device=str(device))
    # To the last bit those that the weights were trained behind.
    policy.normalizer = Normalizer(policy.normalizer.features, config.normalization_mapping, stats)
    weights = read_tensors(folder / WEIGHTS_FILE)
    _check_weights(folder, policy.state_dict(), weights, config)
    policy.load_state_dict(weights)
    policy.rename_map = processor_setting(folder / PREPROCESSOR_FILE, "rename_observations_processor", "rename_map")
    return policy.to(device).eval()


def _blank(config: PolicyConfig) -> PolicyConfig:
    """`config` without first weights: all of them are about to be replaced, and fetching them may need a network."""
    name = "pretrained_backbone_weights"
    return replace(config, **{name: None}) if name in {field.name for field in fields(config)} else config


def _read_stats(folder: Path, config: PolicyConfig) -> dict[str, dict[str, Tensor]]:
    """Feature to statistics. An action comes back by the postprocessor's, should the two files differ."""
    stats = _stats_of(folder, PREPROCESSOR_FILE, "normalizer_processor")
    written = _stats_of(folder, POSTPROCESSOR_FILE, "unnormalizer_processor")
    return stats | {key: written[key] for key in (config.output_features or {}) if key in written}


def _stats_of(folder: Path, processor_file: str, step_name: str) -> dict[str, dict[str, Tensor]]:
    step = processor_step(folder / processor_file, step_name)
    name = step.get("state_file")
    if not isinstance(name, str) or not (folder / name).is_file():
        raise ConfigError(
            f"{folder} lacks the statistics of its '{step_name}' ({name or 'no file named'}): "
            "give a checkpoint that was saved with them"
        )
    stats: dict[str, dict[str, Tensor]] = {}
    for entry, value in read_tensors(folder / name).items():
        key, _, statistic = entry.rpartition(".")
        stats.setdefault(key, {})[statistic] = value
    return stats


def _check_weights(
    folder: Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor], config: PolicyConfig
) -> None:
    odd = sorted(expected.keys() ^ found.keys())
    odd += sorted(key for key in expected.keys() & found.keys() if expected[key].shape != found[key].shape)
    stored = read_policy_config(folder)
    named = sorted(f.name for f in fields(config) if getattr(config, f.name) != getattr(stored, f.name, None))
    typed = [f"policy.{name}={getattr(config, name)}" for name in named if name not in ("device", "pretrained_path")]
    if odd and typed:
        raise ConfigError(f"the weights in {folder} do not fit {', '.join(typed)}: leave out what changes the network")
    if odd:
        raise ConfigError(
            f"{folder / WEIGHTS_FILE} does not fit {CONFIG_FILE} beside it in {len(odd)} tensors "
            f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''}): give the two files of one checkpoint"
        )


def _write_processors(folder: Path, policy: Policy, device: str) -> None:
    """LeRobot's pipelines, in which rename, batch, device and normalise are steps 0 to 3 before the policy."""
    normalizer = policy.normalizer
    to_device = {"registry_name": "device_processor", "config": {"device": device, "float_dtype": None}}
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": policy.rename_map}},
        {"registry_name": "to_batch_processor", "config": {}},
        to_device,
        _normalizer_step(
            "policy_preprocessor_step_3_normalizer_processor", normalizer, [*policy.inputs, *policy.outputs]
        ),
    ]
    after = [
        _normalizer_step("policy_postprocessor_step_0_unnormalizer_processor", normalizer, list(policy.outputs)),
        {**to_device, "config": {"device": "cpu", "float_dtype": None}},
    ]
    stats = {f"{key}.{name}": value for key, entry in normalizer.stats.items() for name, value in entry.items()}
    for file, steps in ((PREPROCESSOR_FILE, before), (POSTPROCESSOR_FILE, after)):
        _write_json(folder / file, {"name": Path(file).stem, "steps": steps})
    for step in (before[3], after[0]):
        write_tensors(folder / step["state_file"], stats)


def _normalizer_step(stem: str, normalizer: Normalizer, keys: list[str]) -> dict[str, Any]:
    features = {key: asdict(normalizer.features[key]) for key in keys}
    config = {"eps": EPS, "features": features, "norm_map": normalizer.modes}
    return {"registry_name": stem.partition("_step_")[2][2:], "config": config, "state_file": f"{stem}.safetensors"}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=4, allow_nan=False) + "\n")
