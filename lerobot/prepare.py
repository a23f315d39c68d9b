"""Finds the dataset of a run, or records it first, and makes the policy that fits it."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from lerobot.accelerator.parallel import World
from lerobot.checkpoint.hub import find_policy
from lerobot.checkpoint.pretrained import load_policy
from lerobot.config import DemosConfig, TrainConfig
from lerobot.data.loader import Batch, Sampler, open_loader
from lerobot.data.meta import DatasetMeta, load_meta
from lerobot.data.reader import LeRobotDataset
from lerobot.envs.record import Plan, record
from lerobot.errors import ConfigError
from lerobot.features import policy_features
from lerobot.policies.base import Policy, Stats
from lerobot.policies.config import PolicyConfig
from lerobot.policies.normalize import Normalizer, exact_constants

log = logging.getLogger(__name__)

WORKERS_WITH_CAMERA = 4
"""As LeRobot has it."""

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
"""Of RGB in [0, 1], as in torchvision's pretrained weights."""


def find_dataset(config: TrainConfig, should_stop: Callable[[], bool]) -> Path:
    """The dataset's folder; recorded now if it is absent and `config.demos` says how.

    A recording that was stopped is not kept: the next run would take it for the whole.
    """
    root, demos = config.dataset.folder(), config.demos
    if demos is None:
        return root
    if root.exists():  # a recording appears whole
        return _found_or_recorded(config, root, demos, should_stop)
    if config.env is None:
        raise ConfigError("demos records in a simulator and env is none: add env=metaworld")
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.parent / f".{root.name}.lock"):  # of jobs side by side one records, the others wait for it
        return _found_or_recorded(config, root, demos, should_stop)


def _found_or_recorded(config: TrainConfig, root: Path, demos: DemosConfig, should_stop: Callable[[], bool]) -> Path:
    wanted = demos.num_episodes * len(config.env.tasks)
    if root.exists():
        found = load_meta(root).num_episodes
        if found < wanted:
            raise ConfigError(
                f"{root} holds {found} of {wanted} episodes: remove it to record it anew, or type "
                f"demos.num_episodes={max(1, found // len(config.env.tasks))}"
            )
        return root
    log.info("recording %d demonstrations in %s", wanted, root)
    plan = Plan(demos.num_episodes, seed=demos.seed, action_noise=demos.action_noise)
    recorded = record(config.env, root, plan, should_stop=should_stop)
    if recorded.stopped:
        shutil.rmtree(root, ignore_errors=True)
        log.info("stopped after %d of %d episodes, which are not kept", recorded.episodes, wanted)
    else:
        log.info("recorded %d episodes, %d frames", recorded.episodes, recorded.frames)
    return root


def policy_and_data(config: TrainConfig, root: Path, resumed: Path | None) -> tuple[Policy, LeRobotDataset]:
    """The policy with fresh or stored weights, and the frames that it reads; `resumed` is a step folder."""
    renames: dict[str, str] = config.rename_map or {}
    meta = load_meta(root)
    if absent := sorted(renames.keys() - meta.features.keys()):
        there = ", ".join(sorted(meta.features))
        raise ConfigError(f"rename_map names {', '.join(absent)}, which {root} does not have: type one of {there}")
    inputs, outputs = policy_features(meta.features)
    settings = config.policy
    settings.input_features = settings.input_features or {renames.get(k, k): feature for k, feature in inputs.items()}
    settings.output_features = settings.output_features or outputs
    stats = with_imagenet_stats(meta) if config.dataset.use_imagenet_stats else meta.stats
    stats = {renames.get(key, key): value for key, value in stats.items()}
    takes_own = config.dataset.stats == "dataset" or not settings.pretrained_path
    if resumed:
        policy = load_policy(resumed, config=settings)
        log.info("weights and statistics come from %s", resumed)
        if takes_own:
            _refuse_other_data(policy, meta, config.dataset.root)
    elif settings.pretrained_path:
        policy = _start_from(settings, stats, takes_own=takes_own)
    else:
        policy = settings.build(stats)
    policy.rename_map = renames
    own_name = {renames.get(key, key): key for key in meta.features}
    windows: dict[str, list[int] | None] = {
        **dict.fromkeys(policy.inputs, settings.observation_delta_indices),
        **dict.fromkeys(policy.outputs, settings.action_delta_indices),
    }
    if missing := sorted(windows.keys() - own_name.keys()):
        raise ConfigError(
            f"the policy reads {', '.join(missing)}, which {root} does not have: "
            f"add rename_map={{<name there>: {missing[0]}}}, or use a dataset that has it"
        )
    dataset = LeRobotDataset(
        root,
        episodes=config.dataset.episodes,
        delta_indices={own_name[key]: steps for key, steps in windows.items() if steps is not None},
        return_uint8=True,
        keys=[own_name[key] for key in windows],
    )
    return policy, dataset


def _start_from(settings: PolicyConfig, stats: Stats, *, takes_own: bool) -> Policy:
    """A policy with the weights of `settings.pretrained_path`, and the statistics that they were trained behind.

    `takes_own`: with `stats` in their place. From the Hub, the commit becomes part of `settings`.
    """
    path = str(settings.pretrained_path)
    settings.pretrained_revision = find_policy(path, settings.pretrained_revision)[1]
    policy = load_policy(path, config=settings)
    commit = f" at {settings.pretrained_revision}" if settings.pretrained_revision else ""
    if takes_own:
        normalizer = policy.normalizer
        policy.normalizer = Normalizer(normalizer.features, normalizer.modes, exact_constants(stats))
        log.info("weights come from %s%s, statistics from the dataset (dataset.stats=dataset)", path, commit)
        return policy
    log.info(
        "weights and statistics come from %s%s: type dataset.stats=dataset to normalise by the dataset's",
        path,
        commit,
    )
    for key in policy.outputs:
        if outside := _outside(policy.normalizer.stats.get(key, {}), stats.get(key, {})):
            log.warning(
                "'%s' reaches from %.3g to %.3g in dimension %d, far outside what the checkpoint's statistics say "
                "(%.3g to %.3g): type dataset.stats=dataset if the two do not mean the same",
                key,
                *outside,
            )
    return policy


def _outside(stored: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[float, float, int, float, float] | None:
    """Where `found` reaches furthest beyond `stored`, by more than its width: its range, the dimension, the other."""
    if not {"min", "max"} <= found.keys() or not ({"min", "max"} <= stored.keys() or {"mean", "std"} <= stored.keys()):
        return None
    low, high = (np.ravel(np.asarray(found[name], np.float64)) for name in ("min", "max"))
    if {"min", "max"} <= stored.keys():
        least, most = (np.ravel(stored[name]).astype(np.float64) for name in ("min", "max"))
    else:  # LeRobot before 0.4 kept no others
        mean, std = (np.ravel(stored[name]).astype(np.float64) for name in ("mean", "std"))
        least, most = mean - 3 * std, mean + 3 * std
    if low.shape != least.shape:
        return None
    beyond = np.maximum(least - low, high - most) - (most - least)
    worst = int(beyond.argmax())
    if beyond[worst] <= 1e-6 * max(1.0, abs(most[worst])):
        return None
    return float(low[worst]), float(high[worst]), worst, float(least[worst]), float(most[worst])


def open_batches(
    config: TrainConfig, dataset: LeRobotDataset, samples: int, *, world: World, pin_memory: bool
) -> AbstractContextManager[Iterator[Batch]]:
    """This rank's micro-batches, without end, after those that held the first `samples` of all ranks."""
    has_camera = bool(set(dataset.keys) & set(dataset.meta.camera_keys))
    workers = WORKERS_WITH_CAMERA if has_camera else 0
    return open_loader(
        dataset,
        Sampler(len(dataset), config.batch_size, config.seed, world.rank, world.size, samples),
        num_workers=workers if config.num_workers is None else config.num_workers,
        prefetch_factor=config.prefetch_factor,
        pin_memory=pin_memory,
    )


def _refuse_other_data(policy: Policy, meta: DatasetMeta, root: str | None) -> None:
    """A run goes on with the data that it began with, wherever its folder is now: the actions' statistics tell."""
    for key in policy.outputs:
        stored, found = policy.normalizer.stats[key], meta.stats.get(key, {})
        told = [name for name in ("min", "max", "count") if name in stored]
        if not all(np.allclose(np.ravel(found.get(name, np.nan)), stored[name], rtol=1e-4) for name in told):
            raise ConfigError(
                f"dataset.root={root} holds other actions than the run was trained on: type the folder of its own "
                "dataset, or start a new run with policy.path=<run>"
            )


def with_imagenet_stats(meta: DatasetMeta) -> dict[str, dict[str, Any]]:
    """The dataset's statistics with ImageNet's mean and deviation for every camera, (3, 1, 1)."""
    image = {name: np.asarray(values, np.float32).reshape(3, 1, 1) for name, values in IMAGENET.items()}
    return {key: {**entry, **image} if key in meta.camera_keys else entry for key, entry in meta.stats.items()}
