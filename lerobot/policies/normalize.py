"""Between robot units and the range that a network learns in."""

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.config import EPS

Stats = Mapping[str, Mapping[str, Tensor | np.ndarray]]
"""Feature name to statistic name (`mean std min max q01 ...`) to values that broadcast to the feature's shape."""

BOUNDS = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Modes that map the interval between two statistics to [-1, 1]."""


class Identity(nn.Module):
    """The map of a feature that stays in robot units."""

    def normalize(self, value: Tensor) -> Tensor:
        """As it is, in float32."""
        return value.float()

    def unnormalize(self, value: Tensor) -> Tensor:
        """As it is, in float32."""
        return value.float()


class Affine(nn.Module):
    """The map of one feature: `(x - shift) / divisor - offset`, and back `(y + offset) * scale + shift`.

    `constant` dimensions become `-offset` for any x, and `shift` for any y.
    """

    shift: Tensor
    scale: Tensor
    divisor: Tensor

    def __init__(self, shift: Tensor, scale: Tensor, constant: Tensor, offset: float, eps: float) -> None:
        super().__init__()
        self.offset = offset
        # A constant dimension has scale 0 and would divide by 0; dividing by infinity gives the 0 that is wanted.
        divisor = torch.where(constant, torch.inf, scale + eps)
        for name, value in (("shift", shift), ("scale", scale), ("divisor", divisor)):
            # Not persistent: a policy's state_dict holds LeRobot's names, statistics have files of their own.
            self.register_buffer(name, value.float(), persistent=False)

    def normalize(self, value: Tensor) -> Tensor:
        """Robot units to the network's range, in float32."""
        return (value.float() - self.shift).div_(self.divisor).sub_(self.offset)

    def unnormalize(self, value: Tensor) -> Tensor:
        """The network's range to robot units, in float32."""
        return (value.float() + self.offset) * self.scale + self.shift


class Normalizer(nn.Module):
    """Maps the named features, and nothing else, by statistics that it holds in float32.

    It computes in float32 under any autocast: the 1e-8 that guards a division is exactly 0 in float16.
    `modes` maps a feature's type to MEAN_STD, MIN_MAX, QUANTILES, QUANTILE10 or IDENTITY; a type left out is IDENTITY.
    Raises `ConfigError` where a statistic is missing, not finite, or does not fit the feature.
    """

    def __init__(self, features: Mapping[str, Feature], modes: Mapping[str, str], stats: Stats) -> None:
        super().__init__()
        self.features = dict(features)
        self.modes = dict(modes)
        self.stats = {key: {name: _on_cpu(v) for name, v in entry.items()} for key, entry in stats.items()}
        """All that were given, as a checkpoint stores them: the maps of a loaded policy come out bit-equal."""
        self.maps = nn.ModuleDict()
        for key, feature in features.items():
            self.maps[_module_name(key)] = _map(key, feature, modes.get(feature.type, "IDENTITY"), self.stats)

    def normalize(self, key: str, value: Tensor) -> Tensor:
        """Robot units to the network's range, in float32. Images may be uint8 0..255 or float 0..1."""
        if self.features[key].type == "VISUAL" and value.dtype == torch.uint8:
            value = value.float().div_(255)
        return self._map(key).normalize(value)

    def unnormalize(self, key: str, value: Tensor) -> Tensor:
        """The network's range to robot units, in float32."""
        return self._map(key).unnormalize(value)

    def _map(self, key: str) -> Identity | Affine:
        return cast(Identity | Affine, self.maps[_module_name(key)])


_CONSTANTS = {"mean", "std", "min", "max"}


def exact_constants(stats: Stats) -> Stats:
    """`stats` in which a dimension that has one value has it as its mean, and deviation 0.

    Both are off by rounding when they are computed over many frames; the 1e-8 in the division makes of that rounding
    a number of any size, which a network would see. Not for weights that were trained on such a number.
    """
    exact: dict[str, Mapping[str, Tensor | np.ndarray]] = {}
    for key, entry in stats.items():
        exact[key] = entry
        shapes = {tuple(np.shape(entry[name])) for name in _CONSTANTS & entry.keys()}
        if len(shapes) == 1 and entry.keys() >= _CONSTANTS:  # where shapes differ, `Normalizer` says so
            low, constant = _on_cpu(entry["min"]), _on_cpu(entry["min"]) == _on_cpu(entry["max"])
            mean = torch.where(constant, low, _on_cpu(entry["mean"]))
            exact[key] = {**entry, "mean": mean, "std": torch.where(constant, 0.0, _on_cpu(entry["std"]))}
    return exact


def _on_cpu(value: Tensor | np.ndarray) -> Tensor:
    value = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    return value.float()


def _module_name(key: str) -> str:
    """A module's name holds no dots, a feature's holds no slashes."""
    return key.replace(".", "/")


def _map(key: str, feature: Feature, mode: str, stats: Stats) -> Identity | Affine:
    if mode == "IDENTITY":
        return Identity()
    if mode == "MEAN_STD":
        mean, std = (_statistic(key, feature, name, stats) for name in ("mean", "std"))
        exact = mean == _statistic(key, feature, "min", stats) if "min" in stats[key] else True
        return Affine(mean, std, (std == 0) & exact, 0.0, EPS)
    if mode not in BOUNDS:
        raise ConfigError(
            f"policy.normalization_mapping asks for {feature.type}={mode}: "
            f"type one of {', '.join(['MEAN_STD', *BOUNDS, 'IDENTITY'])}"
        )
    low, high = (_statistic(key, feature, name, stats) for name in BOUNDS[mode])
    least, most = (_statistic(key, feature, name, stats) for name in BOUNDS["MIN_MAX"])
    if bool(((low == high) & (least != most)).any()):
        raise ConfigError(
            f"{mode} would erase a dimension of '{key}', whose values differ though its quantiles do not: "
            f"type policy.normalization_mapping.{feature.type}=MIN_MAX"
        )
    return Affine(low, (high - low) / 2, low == high, 1.0, 0.0)


def _statistic(key: str, feature: Feature, name: str, stats: Stats) -> Tensor:
    """One statistic in float64, checked: a policy with placeholder statistics runs, and does nothing right."""
    if key not in stats or name not in stats[key]:
        raise ConfigError(
            f"the statistics hold no '{name}' of '{key}': recompute the dataset's meta/stats.json, or type "
            f"policy.normalization_mapping.{feature.type}=IDENTITY to leave it as it is"
        )
    value = _on_cpu(stats[key][name]).double()
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(
            f"the statistic '{name}' of '{key}' is not finite (a placeholder): "
            "recompute the dataset's meta/stats.json, or take a checkpoint that was saved with its statistics"
        )
    try:
        fits = list(torch.broadcast_shapes(value.shape, tuple(feature.shape))) == list(feature.shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ConfigError(
            f"the statistic '{name}' of '{key}' has shape {list(value.shape)} and the policy's feature "
            f"{feature.shape}: give the statistics of the dataset that the policy is for"
        )
    return value
