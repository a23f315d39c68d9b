"""Gymnasium's description of what a policy reads."""

import gymnasium
import numpy as np

from lerobot.features import Feature


def observation_space(features: dict[str, Feature]) -> gymnasium.spaces.Dict:
    """Numbers as float32, pictures as (h, w, c) uint8; see `EnvConfig.make`."""
    return gymnasium.spaces.Dict({name: _space(feature) for name, feature in features.items()})


def _space(feature: Feature) -> gymnasium.spaces.Box:
    if feature.type == "VISUAL":
        channels, height, width = feature.shape
        return gymnasium.spaces.Box(0, 255, (height, width, channels), np.uint8)
    return gymnasium.spaces.Box(-np.inf, np.inf, tuple(feature.shape), np.float32)
