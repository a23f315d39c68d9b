"""Rolls a policy out in simulators and counts what it solves."""

import functools
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from lerobot.disk import spared
from lerobot.envs.config import EnvConfig
from lerobot.envs.result import Episode, EvalResult
from lerobot.envs.scope import evaluating, preserved_rng
from lerobot.envs.simulator import Observation, Simulator
from lerobot.envs.vector import Lane, open_lanes
from lerobot.errors import RunError
from lerobot.features import Feature
from lerobot.policies.base import Policy
from lerobot.seed import seed_run

AUTO_VIDEOS = 2
"""Episodes of a task that `videos="auto"` records."""
AUTO_BATCH = 10
"""Episodes side by side where none are asked for: enough to share a forward pass, few enough to set up fast."""
VIDEO_FPS = 20
"""Frames a second of a video, about. It plays in real time."""

Autocast = Callable[[], AbstractContextManager]


def evaluate(  # noqa: PLR0913 - the settings of `eval.*`, one keyword each
    policy: Policy,
    env: EnvConfig,
    *,
    n_episodes: int,
    seed: int,
    batch_size: int = 0,
    use_async_envs: bool = False,
    videos: int | str = 0,
    video_dir: Path | None = None,
    autocast: Autocast = nullcontext,
    should_stop: Callable[[], bool] = lambda: False,
    share: tuple[int, int] = (0, 1),
) -> EvalResult:
    """The outcome of `n_episodes` of each task of `env`. Episode i starts from `seed + i` and nothing else decides.

    `batch_size` 0 chooses. `videos` is a number of episodes of each task to record in `video_dir`, or "auto": some,
    where something can be drawn. `should_stop` is asked between batches. `share`: this rank and how many there are;
    each takes some of the episodes, the first those that are recorded. The policy's mode and every random generator
    are left as they were. Raises `ConfigError` where the simulator cannot give what the policy reads.
    """
    started = time.perf_counter()
    recorded, note = _videos_possible(env, videos if video_dir else 0)
    features = asked_features(policy)
    env.check(features, policy.outputs, render=recorded > 0)
    result = EvalResult(note=note)
    rank, ranks = share
    size = min(-(-n_episodes // ranks), batch_size or (os.cpu_count() or 1 if use_async_envs else AUTO_BATCH))
    batches = [
        (task, first, min(first + size, n_episodes))
        for task in env.tasks
        for number, first in enumerate(range(0, n_episodes, size))
        if rank == (0 if first < recorded else number % ranks)
    ]
    make = functools.partial(Simulator, env, features)
    with preserved_rng(policy.device), evaluating(policy), open_lanes(make, size, use_async_envs) as lanes:
        for task, first, end in batches:
            if should_stop():
                result.stopped = True
                break
            runs = [_Run(task, i, seed + i, recorded=i < recorded) for i in range(first, end)]
            _open(lanes, runs)
            seed_run(seed + first)
            _roll(policy, lanes, runs, autocast, frame_every=_stride(env.fps))
            result.episodes += [run.row() for run in runs]
            for run in [run for run in runs if run.recorded and video_dir]:
                result.videos += _save_video(run, Path(str(video_dir)), env.fps)
    result.time_s = time.perf_counter() - started
    return result


def asked_features(policy: Policy) -> dict[str, Feature]:
    """What a simulator is asked to yield for `policy`, under the names that come in before its `rename_map`."""
    incoming = {own: name for name, own in policy.rename_map.items()}
    return {incoming.get(name, name): feature for name, feature in policy.inputs.items()}


@dataclass
class _Run:
    """An episode under way."""

    task: str
    episode: int
    seed: int
    recorded: bool
    done: bool = False
    success: bool = False
    sum_reward: float = 0.0
    length: int = 0
    frames: list[np.ndarray] = field(default_factory=list)

    def row(self) -> Episode:
        return Episode(self.episode, self.task, self.seed, self.success, self.sum_reward, self.length)


def _videos_possible(env: EnvConfig, videos: int | str) -> tuple[int, str]:
    """How many episodes of a task to record, and why none are although some were welcome."""
    if videos != "auto":
        return int(videos), ""
    works, reason = env.can_render()
    return (AUTO_VIDEOS, "") if works else (0, f"no video: nothing can be drawn here ({reason})")


def _open(lanes: list[Lane], runs: list[_Run]) -> None:
    for lane, run in zip(lanes, runs, strict=False):
        lane.ask("open", run.task, run.recorded)
    for lane, _ in zip(lanes, runs, strict=False):
        lane.answer()


def _roll(policy: Policy, lanes: list[Lane], runs: list[_Run], autocast: Autocast, frame_every: int) -> None:
    """Take `runs`, one a lane, to their ends. One that has ended keeps its last observation and is stepped no more."""
    policy.reset()
    for lane, run in zip(lanes, runs, strict=False):
        lane.ask("reset", run.seed)
    observations = [lane.answer() for lane, _ in zip(lanes, runs, strict=False)]
    _draw(lanes, runs, range(len(runs)))
    batch = _batch(observations, policy.device)
    while active := [i for i, run in enumerate(runs) if not run.done]:
        with autocast():
            actions = policy.select_action(batch)
        actions = actions.to("cpu", torch.float32).numpy()
        if not np.isfinite(actions).all():
            raise RunError("the policy's action is not a finite number: look at its training loss and its statistics")
        looks = policy.looks
        for i in active:
            lanes[i].ask("step", actions[i], looks)
        for i in active:
            run = runs[i]
            observations[i], reward, run.done, run.success = lanes[i].answer()
            run.sum_reward += reward
            run.length += 1
        _draw(lanes, runs, [i for i in active if runs[i].done or runs[i].length % frame_every == 0])
        batch = _batch(observations, policy.device) if looks else batch


def _draw(lanes: list[Lane], runs: list[_Run], shown: Iterable[int]) -> None:
    """Add a frame to each of the `shown` runs that are recorded."""
    shown = [i for i in shown if runs[i].recorded]
    for i in shown:
        lanes[i].ask("render")
    for i in shown:
        runs[i].frames.append(lanes[i].answer())


def _batch(observations: list[Observation], device: torch.device) -> dict[str, torch.Tensor]:
    """Observations of several simulators as the policy reads them: numbers `(b, s)`, pictures `(b, c, h, w)` uint8."""
    batch = {}
    for name in observations[0]:
        values = torch.from_numpy(np.stack([observation[name] for observation in observations])).to(device)
        batch[name] = values.movedim(-1, 1) if values.dim() == 4 else values
    return batch


def _stride(fps: float) -> int:
    """Steps from one frame of a video to the next."""
    return max(1, round(fps / VIDEO_FPS))


def _save_video(run: _Run, folder: Path, fps: float) -> list[Path]:
    """The video of an episode; none where the disk has no room for it."""
    from lerobot.data.video import write_video

    path = folder / f"{run.task}_{run.episode:03d}.mp4"
    with spared(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, run.frames, fps / _stride(fps))
        return [path]
    path.unlink(missing_ok=True)  # what there is of it cannot be played
    return []
