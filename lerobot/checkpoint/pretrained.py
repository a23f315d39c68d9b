"""A policy as files that LeRobot reads and writes too: weights, config, and processors with the statistics."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lerobot.checkpoint.hub import find_policy
from lerobot.checkpoint.old_format import is_statistic, read_statistics
from lerobot.checkpoint.paths import (
    CONFIG_FILE,
    TRAIN_CONFIG_FILE,
    WEIGHTS_FILE,
    read_policy_config,
)
from lerobot.checkpoint.processors import POSTPROCESSOR_FILE, PREPROCESSOR_FILE, read_processors
from lerobot.checkpoint.tensors import FLOATS, read_shapes, read_tensors, write_tensors
from lerobot.errors import ConfigError
from lerobot.policies.base import Policy
from lerobot.policies.config import PolicyConfig
from lerobot.policies.normalize import EPS, Normalizer

_MOST_STATS_BYTES = 64 * 2**20
_NOT_THE_NETWORK = (
    "device",
    "pretrained_path",
    "pretrained_revision",
    "push_to_hub",
    "repo_id",
    "private",
    "tags",
    "license",
)


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
    """The policy at `path` (see `find_policy`), in eval mode on `device`, with the statistics it was trained with.

    `config` replaces the stored one; whatever device is stored plays no part.
    """
    folder, _ = find_policy(path, config.pretrained_revision if config else None)
    stored = read_policy_config(folder)
    config = stored if config is None else config
    _check_weights(folder, config, stored)  # before anything of the sizes in a file from elsewhere is made
    weights = read_tensors(folder / WEIGHTS_FILE)
    stats, rename_map = _read_stats(folder, stored, weights)
    policy = _blank(config).build(stats)
    policy.config = replace(config, device=str(device))
    # To the last bit those that the weights were trained behind.
    policy.normalizer = Normalizer(policy.normalizer.features, config.normalization_mapping, stats)
    policy.load_state_dict({name: value for name, value in weights.items() if not is_statistic(name)})
    if bad := [name for name, value in policy.named_parameters() if not bool(value.isfinite().all())]:
        raise ConfigError(
            f"{folder / WEIGHTS_FILE} has weights that are not finite ({', '.join(bad[:3])}): give another checkpoint"
        )
    policy.rename_map = rename_map
    return policy.to(device).eval()


def _blank(config: PolicyConfig) -> PolicyConfig:
    """`config` without first weights: all of them are about to be replaced, and fetching them may need a network."""
    name = "pretrained_backbone_weights"
    return replace(config, **{name: None}) if name in {field.name for field in fields(config)} else config


def _read_stats(
    folder: Path, stored: PolicyConfig, weights: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
    """Feature to statistics, and the stored `rename_map`.

    An action comes back by the postprocessor's statistics, should the two files differ.
    """
    inputs, outputs = stored.input_features or {}, stored.output_features or {}
    if not (folder / PREPROCESSOR_FILE).is_file():
        return read_statistics(dict(weights), [*inputs, *outputs]), {}
    processors = read_processors(folder, inputs, outputs)
    stats, written = _stats_in(processors.stats), _stats_in(processors.action_stats)
    return stats | {key: written[key] for key in outputs if key in written}, processors.rename_map


def _stats_in(file: Path) -> dict[str, dict[str, Tensor]]:
    stats: dict[str, dict[str, Tensor]] = {}
    for entry, value in read_tensors(file, most_bytes=_MOST_STATS_BYTES).items():
        key, _, statistic = entry.rpartition(".")
        stats.setdefault(key, {})[statistic] = value
    return stats


def _check_weights(folder: Path, config: PolicyConfig, stored: PolicyConfig) -> None:
    """Refuse weights that are not those of `config`, by the names, shapes and types in the file's header alone."""
    file = folder / WEIGHTS_FILE
    found = {name: entry for name, entry in read_shapes(file).items() if not is_statistic(name)}
    numbers = sum(math.prod(shape) for shape, _ in found.values())
    for name, value in vars(config).items():
        if type(value) is int and value > (len(found) if name.endswith("_layers") else numbers):
            raise ConfigError(
                f"policy.{name}={value} is more than the weights in {file} could be of: "
                f"give the {CONFIG_FILE} that belongs to them"
            )
    with torch.device("meta"):  # shapes, and no memory
        expected = replace(_blank(config), normalization_mapping={}).build({}).state_dict()
    odd = sorted(expected.keys() ^ found.keys())
    odd += sorted(key for key in expected.keys() & found.keys() if expected[key].shape != found[key][0])
    named = sorted(f.name for f in fields(config) if getattr(config, f.name) != getattr(stored, f.name, None))
    typed = [f"policy.{name}={getattr(config, name)}" for name in named if name not in _NOT_THE_NETWORK]
    if odd and typed:
        raise ConfigError(f"the weights in {folder} do not fit {', '.join(typed)}: leave out what changes the network")
    if odd:
        raise ConfigError(
            f"{file} does not fit {CONFIG_FILE} beside it in {len(odd)} tensors "
            f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''}): give the two files of one checkpoint"
        )
    for name, (_, kind) in found.items():
        if expected[name].is_floating_point() != (kind in FLOATS):
            raise ConfigError(
                f"{file} holds {name} as {kind}, which loses what was trained: "
                f"give a checkpoint whose weights are one of {', '.join(FLOATS)}"
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
