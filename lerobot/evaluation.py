"""Evaluation as part of a run: when there is a simulator, and beside which baselines."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lerobot.accelerator.parallel import ALONE, World
from lerobot.config import EvalRunConfig, TrainConfig
from lerobot.data.reader import LeRobotDataset
from lerobot.disk import spared
from lerobot.envs.result import EvalResult, merged, write_episodes
from lerobot.envs.rollout import asked_features, evaluate
from lerobot.policies.base import Policy
from lerobot.policies.baselines import LinearPolicy, ReplayPolicy
from lerobot.report.closing import BASELINES_FILE
from lerobot.schedule import due
from lerobot.status import write_json
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics
from lerobot.tracking.tracker import Tracker

log = logging.getLogger(__name__)

Autocast = Callable[[], AbstractContextManager]
Stop = Callable[[], bool]
BASELINES = {"replay": ReplayPolicy, "linear": LinearPolicy}


class Evaluator:
    """What a run asks to judge its policy. This one has no simulator and judges nothing."""

    def evaluate(self, policy: Policy, step: int, tracker: Tracker, autocast: Autocast, stop: Stop) -> None:
        """Judge the policy after update `step` and report it."""

    def finish(self, policy: Policy, step: int, tracker: Tracker, stop: Stop) -> None:
        """Judge what the policy is to be compared with."""


class SimEvaluator(Evaluator):
    """Rolls policies out in the run's simulator, all from the same starts."""

    def __init__(self, config: TrainConfig, run_dir: Path, demonstrations: LeRobotDataset, world: World) -> None:
        self.config = config
        self.folder = run_dir / "eval"
        self.demonstrations = demonstrations
        self.world = world

    def evaluate(self, policy: Policy, step: int, tracker: Tracker, autocast: Autocast, stop: Stop) -> None:
        """See `Evaluator`."""
        result = self._roll(policy, self.config, self.folder / f"{step:06d}", autocast, stop)
        if result.stopped:
            log.info("the evaluation after update %d is cut short and not recorded: resume makes it anew", step)
            return
        self.world.first(report)(result, step, self.folder, tracker)

    def finish(self, policy: Policy, step: int, tracker: Tracker, stop: Stop) -> None:
        """See `Evaluator`."""
        unseen = replace(self.config, eval=replace(self.config.eval, videos=0))
        rows = {}
        for name in self.config.eval.baselines:
            baseline = BASELINES[name].fit(self.demonstrations).to(policy.device)
            result = self._roll(baseline, unseen, None, nullcontext, stop)
            if result.stopped:
                break
            log.info("%s", summary(f"{name} baseline", result))
            rows[name] = {**metrics(result), "episodes": [asdict(episode) for episode in result.episodes]}
        if rows:
            tracker.log(step, {f"eval/{name}_success_rate": row["eval/success_rate"] for name, row in rows.items()})
            with spared(self.folder.parent):
                self.world.first(write_json)(self.folder / BASELINES_FILE, rows)

    def _roll(
        self, policy: Policy, config: TrainConfig, video_dir: Path | None, autocast: Autocast, stop: Stop
    ) -> EvalResult:
        """The episodes of all ranks, each of which rolls out its share."""
        result = roll(policy, config, video_dir, autocast, stop, self.world)
        return merged(self.world.gather(result), config.env.tasks)


def make_evaluator(
    config: TrainConfig, policy: Policy, dataset: LeRobotDataset, run_dir: Path, world: World = ALONE
) -> Evaluator:
    """The run's evaluator; refuses now what the simulator could not give at the first evaluation."""
    if config.env is None:
        return Evaluator()
    wants_videos = isinstance(config.eval.videos, int) and config.eval.videos > 0
    config.env.check(asked_features(policy), policy.outputs, render=wants_videos)
    states = [key for key in dataset.keys if key not in dataset.meta.camera_keys]
    demonstrations = LeRobotDataset(dataset.meta.root, episodes=dataset.episodes, keys=[*states, "frame_index"])
    return SimEvaluator(config, run_dir, demonstrations, world)


def missed_evaluation(config: TrainConfig, run_dir: Path, step: int) -> bool:
    """Whether the run stopped between the checkpoint of `step` and the evaluation that was due then."""
    if config.env is None or step == 0 or not due(step, config.env_eval_freq, last=step == config.steps):
        return False
    rows = read_metrics(run_dir / METRICS_FILE)
    return not any(row["step"] == step and "eval/success_rate" in row for row in rows)


def roll(
    policy: Policy,
    config: TrainConfig | EvalRunConfig,
    video_dir: Path | None,
    autocast: Autocast,
    stop: Stop,
    world: World = ALONE,
) -> EvalResult:
    """Roll `policy` out as `config.env`, `config.eval` and `config.seed` say; of several ranks, this one's share."""
    settings = config.eval
    return evaluate(
        policy,
        config.env,
        n_episodes=settings.n_episodes,
        seed=config.seed,
        batch_size=settings.batch_size,
        use_async_envs=settings.use_async_envs,
        videos=settings.videos,
        video_dir=video_dir,
        autocast=autocast,
        should_stop=stop,
        share=(world.rank, world.size),
    )


def report(result: EvalResult, step: int, folder: Path, tracker: Tracker) -> None:
    """Write the episodes, say the outcome, and log it with its videos."""
    with spared(folder.parent):
        write_episodes(folder / "episodes.jsonl", result.episodes)
    log.info("%s", summary("policy", result))
    if result.note:
        log.info("%s", result.note)
    if result.episodes:
        tracker.log(step, metrics(result))
    for video in result.videos:
        tracker.video(step, f"eval/video/{video.stem}", video)


def metrics(result: EvalResult) -> dict[str, Any]:
    """The numbers of an evaluation; with several tasks, the success rate of each too."""
    low, high = result.interval
    row = {
        "eval/success_rate": result.success_rate,
        "eval/success_low": low,
        "eval/success_high": high,
        "eval/sum_reward": result.sum_reward,
        "eval/n_episodes": len(result.episodes),
        "eval/steps_per_s": result.steps_per_s,
    }
    tasks = result.by_task
    if len(tasks) > 1:
        row |= {f"eval/success_rate/{task}": part.success_rate for task, part in tasks.items()}
    return row


def summary(name: str, result: EvalResult) -> str:
    """One line: who solved how many, and how sure that is."""
    if not result.episodes:
        return f"{name}: stopped before an episode ended"
    low, high = result.interval
    return (
        f"{name}: {result.successes} of {len(result.episodes)} episodes solved, success rate {result.success_rate:.2f} "
        f"(95 % interval {low:.2f} to {high:.2f})"
    )
