"""Records what a simulator's scripted expert does as a LeRobotDataset v3.0."""

import functools
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lerobot.data.writer import DatasetWriter
from lerobot.envs.config import EnvConfig
from lerobot.envs.vector import Lane, ask_all, open_lanes
from lerobot.errors import ConfigError, RunError
from lerobot.features import ACTION_KEY, CAMERA_PREFIX, Feature, policy_features
from lerobot.ranges import COUNT, COUNT_OR_NONE, NOT_NEGATIVE, check_ranges

STEPS_AFTER_SUCCESS = 10
"""An episode goes on as long after it is solved, so that a policy sees how to stay there."""

Frames = dict[str, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """What is recorded."""

    num_episodes: int
    """Solved episodes of each task."""
    seed: int = 100_000
    """Attempt i starts from `seed + i`."""
    action_noise: float = 0.1
    """Deviation of the Gaussian noise on what is executed. What is stored is the expert's answer without it, so that a
    policy learns the way back to the path (Laskey et al. 2017, DART, arXiv 1703.09327)."""
    cameras: tuple[str, ...] = ()
    """By the simulator's names."""
    image_size: int = 96
    """Height and width of a camera's frames, in pixels."""

    def __post_init__(self) -> None:
        check_ranges("", self, {"num_episodes": COUNT, "seed": COUNT_OR_NONE, "action_noise": NOT_NEGATIVE})
        if self.image_size < 16 or self.image_size % 2:
            raise ConfigError(f"image_size={self.image_size}: video frames need an even size, type image_size=96")


@dataclass
class Recorded:
    """What came of it."""

    episodes: int = 0
    frames: int = 0
    attempts: int = 0
    """More than `episodes` where the expert failed; failed attempts are not kept."""
    stopped: bool = False
    """Whether it ended early because it was asked to."""


def record(
    env: EnvConfig,
    root: str | Path,
    plan: Plan,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_episode: Callable[[Recorded], None] = lambda so_far: None,
) -> Recorded:
    """Record `plan.num_episodes` of each task of `env` at `root`, a new folder that appears whole at the end.

    `should_stop` is asked after each episode; what was finished by then is written.
    Raises `ConfigError` before anything is simulated, and `RunError` where the expert hardly ever succeeds.
    """
    if not env.recorded:
        raise ConfigError(
            f"env={env.type} has no scripted expert to record: type env=metaworld, or train on demonstrations that you "
            "have with dataset.root=<folder>"
        )
    env.check(observed(env, plan), {})
    _clear_place(Path(root).expanduser())
    writer = DatasetWriter(root, fps=env.fps, features=dataset_features(env, plan), robot_type=env.robot_type)
    recorded = Recorded()
    # A process costs a second to start. Drawing is slow enough to be worth it, states alone are not.
    n = min(os.cpu_count() or 1, plan.num_episodes) if plan.cameras else 1
    try:
        with open_lanes(functools.partial(Demonstrator, env, plan), n, processes=n > 1) as lanes:
            for task, frames in _solved(lanes, env, plan, recorded):
                writer.add_episode(frames, env.describe(task))
                recorded.episodes += 1
                recorded.frames += len(frames[ACTION_KEY])
                on_episode(recorded)
                recorded.stopped = should_stop()
                if recorded.stopped:
                    break
    except BaseException:
        writer.discard()
        raise
    writer.close()
    return recorded


class Demonstrator:
    """An expert at its simulator, as a worker of a lane."""

    def __init__(self, env: EnvConfig, plan: Plan) -> None:
        self.config = env
        self.plan = plan
        self._env: Any = None
        self._expert: Callable[[Any], np.ndarray] = np.asarray

    def open(self, task: str) -> None:
        """Have an environment of `task` in place of the one before."""
        self.close()
        self._env = self.config.make(task, observed(self.config, self.plan))
        self._expert = self.config.expert(task)

    def attempt(self, seed: int) -> Frames | None:
        """The episode that starts from `seed`, every feature `(t, ...)`; None where it is not solved."""
        noise = np.random.default_rng(seed)
        rows: list[dict[str, Any]] = []
        observation, _ = self._env.reset(seed=seed)
        left = None  # steps until the end, known after the first success
        truncated = False
        while left != 0 and not truncated:
            action = self._expert(self._env)
            executed = action + noise.normal(0.0, self.plan.action_noise, action.shape)
            row = {**observation, ACTION_KEY: action}
            observation, reward, success, truncated, _ = self._env.step(executed)
            left = left - 1 if left is not None else STEPS_AFTER_SUCCESS if success else None
            rows.append({**row, "next.reward": reward, "next.success": success, "next.done": left == 0 or truncated})
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if left is not None else None

    def close(self) -> None:
        """Free the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None


def _clear_place(root: Path) -> None:
    """Refuse a `root` that cannot be written, and remove what killed recordings of it left beside it."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{root} cannot be written ({error.strerror}): type dataset.root=<a new folder where you may write>"
        ) from error
    for left in root.parent.glob(f".{glob.escape(root.name)}.*.part"):
        pid = left.name.removeprefix(f".{root.name}.").removesuffix(".part")
        if pid.isdigit() and not _is_running(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _is_running(pid: int) -> bool:
    """Whether another process of this machine has the number `pid`."""
    import psutil  # accelerate brings it

    return pid != os.getpid() and psutil.pid_exists(pid)


def observed(env: EnvConfig, plan: Plan) -> dict[str, Feature]:
    """What is observed."""
    return policy_features(dataset_features(env, plan))[0]


def dataset_features(env: EnvConfig, plan: Plan) -> dict[str, dict[str, Any]]:
    """The `features` of `info.json`."""
    size = [plan.image_size, plan.image_size, 3]
    camera = {"dtype": "video", "shape": size, "names": ["height", "width", "channels"]}
    dtypes = {"next.reward": "float32", "next.success": "bool", "next.done": "bool"}
    return {
        **{key: {"dtype": "float32", "shape": [len(names)], "names": names} for key, names in env.recorded.items()},
        **{CAMERA_PREFIX + name: dict(camera) for name in plan.cameras},
        **{key: {"dtype": dtype, "shape": [1], "names": None} for key, dtype in dtypes.items()},
    }


def _solved(lanes: list[Lane], env: EnvConfig, plan: Plan, recorded: Recorded) -> Iterator[tuple[str, Frames]]:
    """`plan.num_episodes` solved episodes of each task, in the order of their seeds however many lanes there are."""
    for task in env.tasks:
        ask_all(lanes, "open", task)
        attempts = solved = 0
        while solved < plan.num_episodes:
            for i, lane in enumerate(lanes):
                lane.ask("attempt", plan.seed + attempts + i)
            for frames in [lane.answer() for lane in lanes]:
                if solved == plan.num_episodes:
                    break
                attempts += 1
                recorded.attempts += 1
                if frames is not None:
                    solved += 1
                    yield task, frames
            if attempts >= 20 and solved < attempts / 10:
                raise RunError(
                    f"the expert of {task} solved {solved} of {attempts} attempts: type a smaller action_noise than "
                    f"{plan.action_noise:g} or a larger env.episode_length than {env.episode_length}"
                )
