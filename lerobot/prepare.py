"""Finds the dataset of a run, and records it first where the config says how."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lerobot.config import TrainConfig
from lerobot.data.meta import DatasetMeta
from lerobot.envs.record import Plan, record
from lerobot.errors import ConfigError

log = logging.getLogger(__name__)

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
"""Of RGB in [0, 1], as in torchvision's pretrained weights."""


def find_dataset(config: TrainConfig, should_stop: Callable[[], bool]) -> Path:
    """The dataset's folder; recorded now if it is absent and `config.demos` says how."""
    root = config.dataset.folder()
    if root.exists() or config.demos is None:
        return root
    if config.env is None:
        raise ConfigError("demos records in a simulator and env is none: add env=metaworld")
    log.info("recording %d demonstrations in %s", config.demos.num_episodes, root)
    demos = config.demos
    plan = Plan(demos.num_episodes, seed=demos.seed, action_noise=demos.action_noise)
    recorded = record(config.env, root, plan, should_stop=should_stop)
    log.info("recorded %d episodes, %d frames", recorded.episodes, recorded.frames)
    return root


def with_imagenet_stats(meta: DatasetMeta) -> dict[str, dict[str, Any]]:
    """The dataset's statistics with ImageNet's mean and deviation for every camera, (3, 1, 1)."""
    image = {name: np.asarray(values, np.float32).reshape(3, 1, 1) for name, values in IMAGENET.items()}
    return {key: {**entry, **image} if key in meta.camera_keys else entry for key, entry in meta.stats.items()}
