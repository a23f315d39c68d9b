"""Time, memory and disk of a sweep, from some updates of each distinct kind of job and some episodes of it."""

import contextlib
import copy
import json
import logging
import math
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot.config import to_plain
from lerobot.errors import ConfigError, RunError
from lerobot.sweep.isolation import fresh
from lerobot.sweep.plan import Planned
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

PROBE_STEPS = 20
PROBE_EPISODES = 2
_COSTS_NOTHING = re.compile(
    r"seed|steps|log_freq|save_freq|env_eval_freq|save_checkpoint|picture|job_name|output_dir|resume|interrupt_after"
    r"|(wandb|sweep|demos|scheduler)(\..*)?|eval\.(n_episodes|baselines|videos)|accelerator\.grad_scaler\..*|dataset\.episodes"
    r"|policy\.(optimizer_.*|dropout|kl_weight|pretrained_.*|repo_id|tags|license)"
    r"|optimizer\.(lr|betas|eps|weight_decay|momentum|grad_clip_norm)"
)
"""Keys that leave the cost of an update as it is."""


@dataclass
class Cost:
    """What one kind of job takes."""

    start_s: float
    """Everything but the updates: reading the data, building, closing."""
    step_s: float
    memory_gb: float
    checkpoint_gb: float
    episode_s: float
    """Of a simulated episode that is not solved; 0 without a simulator."""

    def time_s(self, config: Any) -> float:
        """Of a whole job."""
        return self.start_s + config.steps * self.step_s + _evaluations(config) * self.evaluation_s(config)

    def evaluation_s(self, config: Any) -> float:
        """Of one evaluation, at most: an episode ends where it is solved."""
        return _episodes(config) * self.episode_s

    def disk_gb(self, config: Any) -> float:
        """Of a whole job: its checkpoints."""
        if not config.save_checkpoint:
            return 0.0
        saves = config.steps // config.save_freq if config.save_freq > 0 else 0
        return self.checkpoint_gb * (saves + (saves == 0 or config.steps % config.save_freq > 0))


def estimate(planned: Sequence[Planned]) -> tuple[list[str], bool]:
    """Sentences about each kind of job and the sum over all, and whether every kind could be tried."""
    kinds: dict[str, list[Planned]] = {}
    for one in planned:
        kinds.setdefault(_kind(one.config), []).append(one)
    lines, seconds, disk, memory, whole = [], 0.0, 0.0, 0.0, True
    for jobs in kinds.values():
        name = jobs[0].job.folder + (f" and {len(jobs) - 1} like it" if len(jobs) > 1 else "")
        try:
            cost = _probe(jobs[0].config)
        except (ConfigError, RunError) as error:
            lines.append(f"{name}: cannot be tried, {error}")
            whole = False
            continue
        seconds += sum(cost.time_s(job.config) for job in jobs)
        disk += sum(cost.disk_gb(job.config) for job in jobs)
        memory = max(memory, cost.memory_gb)
        first = jobs[0].config
        lines.append(
            f"{name}: {1000 * cost.step_s:.3g} ms an update, about {_duration(cost.time_s(first))}, "
            f"{_size(cost.memory_gb)} of memory, {_size(cost.disk_gb(first))} on disk"
            f"{_of_evaluations(cost, first)}"
        )
    sums = f"{_duration(seconds)} one after the other, up to {_size(memory)} of memory, {_size(disk)} on disk"
    lines.append(f"in all{'' if whole else ' what could be tried'}: about {sums}")
    return lines, whole


def _evaluations(config: Any) -> int:
    """How often a job is evaluated, each baseline counted as once."""
    if config.env is None:
        return 0
    every = config.env_eval_freq
    return len(config.eval.baselines) + (math.ceil(config.steps / every) if every > 0 else 1)


def _episodes(config: Any) -> int:
    return 0 if config.env is None else config.eval.n_episodes * len(config.env.tasks)


def _of_evaluations(cost: Cost, config: Any) -> str:
    if config.env is None:
        return ""
    each = f"of {_episodes(config)} episodes, {cost.evaluation_s(config):.3g} s each at most"
    return f"; {_evaluations(config)} evaluation{'s' if _evaluations(config) > 1 else ''} {each}"


def _kind(config: Any) -> str:
    return json.dumps(_costly(to_plain(config)), sort_keys=True, default=str)


def _costly(node: Any, prefix: str = "") -> Any:
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if not _COSTS_NOTHING.fullmatch(f"{prefix}{key}")}
    return {key: _costly(value, f"{prefix}{key}.") for key, value in kept.items()}


def _probe(config: Any) -> Cost:
    """Run some updates of `config` in a folder that is removed again."""
    if config.demos is not None and not config.dataset.folder().exists():
        raise ConfigError(f"its dataset {config.dataset.folder()} is recorded when it runs")
    from lerobot.runner import train

    probe = copy.deepcopy(config)
    probe.steps, probe.log_freq, probe.save_freq = PROBE_STEPS, PROBE_STEPS // 2, 0
    probe.demos, probe.picture, probe.interrupt_after, probe.env_eval_freq = None, False, None, 0
    probe.eval.n_episodes, probe.eval.videos, probe.eval.baselines = PROBE_EPISODES, 0, []
    probe.save_checkpoint, probe.wandb.enable = True, False
    folder = Path(tempfile.mkdtemp(prefix="lerobot-estimate-"))
    probe.output_dir = str(folder)
    try:
        with fresh(), _quiet():
            started = time.perf_counter()
            train(probe)
            whole_s = time.perf_counter() - started
        last = [row for row in read_metrics(folder / METRICS_FILE) if "train/step_s" in row][-1]
        files = [path for path in (folder / "checkpoints").rglob("*") if path.is_file() and not path.is_symlink()]
        step_s, episode_s = last["train/step_s"], _episode_s(folder, probe)
        return Cost(
            max(0.0, whole_s - PROBE_STEPS * step_s - _episodes(probe) * episode_s),
            step_s,
            last["device/peak_mem_gb"],
            sum({path.stat().st_ino: path.stat().st_size for path in files}.values()) / 2**30,
            episode_s,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _episode_s(run: Path, config: Any) -> float:
    """Of an episode of full length, making its simulator included, by the evaluation at the end of `run`."""
    rates = [row["eval/steps_per_s"] for row in read_metrics(run / METRICS_FILE) if "eval/steps_per_s" in row]
    return config.env.episode_length / rates[-1] if rates and rates[-1] else 0.0


@contextlib.contextmanager
def _quiet():
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _size(gb: float) -> str:
    return f"{gb:.1f} GiB" if gb >= 1 else f"{gb * 1024:.0f} MiB"
