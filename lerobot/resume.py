"""Gives a run back what its checkpoint holds, and says where it goes on and what is different from here."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lerobot.accelerator.stack import Stack
from lerobot.checkpoint.folders import leave_later
from lerobot.checkpoint.paths import PRETRAINED_FOLDER, TRAIN_CONFIG_FILE, missing_to_go_on, step_of
from lerobot.checkpoint.rng import restore_rng
from lerobot.checkpoint.training_state import STATE_FOLDER, Progress, load_checkpoint
from lerobot.config import TrainConfig
from lerobot.errors import RunError
from lerobot.migrate import read_run
from lerobot.resume_rules import changes
from lerobot.seed import mix, seed_run
from lerobot.tracking.jsonl import METRICS_FILE, truncated
from lerobot.tracking.window import Window

log = logging.getLogger(__name__)


def restore(config: TrainConfig, resumed: Path, optimizer: torch.optim.Optimizer, stack: Stack) -> Progress:
    """Give optimizer and, last of all, scaler what they had at the checkpoint; return where the run stood."""
    stored = read_run(resumed / PRETRAINED_FOLDER / TRAIN_CONFIG_FILE)
    before, now = stored["accelerator"]["mixed_precision"], stack.precision
    goes_on = before == now == "fp16" and not config.reset_scale
    settings = config.accelerator.grad_scaler
    progress, warning = load_checkpoint(resumed, optimizer, stack.scaler if goes_on else None, settings)
    if len(set(stack.world.gather(progress.step))) > 1:
        raise RunError("the processes see other checkpoints: machines of one run need one disk to resume from")
    _say_where(config, resumed, progress.step, stored)
    if warning:
        log.warning(warning)
    else:
        log.info("%s", _scaler_sentence(before, now, stack.scaler.get_scale(), reset=config.reset_scale))
    if progress.samples is None:
        accumulated = stored["accelerator"]["gradient_accumulation"]["steps"]
        per_update = (progress.batch_size or config.batch_size) * accumulated * progress.num_processes
        progress = replace(progress, samples=progress.step * per_update)
    _say_processes(config, progress, stored, stack.world.size)
    return progress if before == now else replace(progress, window=None)  # no row mixes two precisions


def window_of(config: TrainConfig, progress: Progress, stack: Stack) -> Window:
    """Where the metrics of an update go, with what no row of the part before holds yet."""
    size, skipped, in_a_row = (
        config.log_freq or config.steps,
        progress.skipped_steps,
        progress.consecutive_skips,
    )
    window = Window(size, skipped_steps=skipped, consecutive_skips=in_a_row)
    if (state := progress.window_of(stack.world.rank, stack.world.size)) is not None:
        window.restore(state, stack.device.torch_device)
    return window


def set_generators(seed: int, resumed: Path | None, device: torch.device, rank: int) -> None:
    """Python's, numpy's and torch's, each rank's its own, as the run's part before left them."""
    # Again: what was imported and built meanwhile has drawn, more the first time than later.
    seed_run(mix(seed, rank) if rank else seed)
    if resumed is not None and (warning := restore_rng(resumed / STATE_FOLDER, device, rank)):
        log.warning(warning)


def leave_behind(run_dir: Path, resumed: Path, step: int) -> None:
    """Put aside what the run holds beyond `step`: its checkpoints and its rows, or, if anything is wrong, nothing."""
    try:
        with truncated(run_dir / METRICS_FILE, step):
            leave_later(resumed.parent, step)
    except OSError as error:
        raise RunError(
            f"{run_dir} cannot be written to ({error.strerror}): make room, then type the line again"
        ) from error


def _scaler_sentence(before: str, now: str, scale: float, *, reset: bool) -> str:
    """What becomes of the loss scale in each of the nine changes between no, bf16 and fp16."""
    if now != "fp16":
        return (
            f"loss scale: not used from here, precision={now} needs none"
            if before == "fp16"
            else f"loss scale: none in precision={now}, as before"
        )
    if before != "fp16":
        return f"loss scale: starts at {scale:g} and calibrates, precision={before} had none"
    return f"loss scale: starts anew at {scale:g}, as typed" if reset else f"loss scale: goes on at {scale:g}"


def _say_processes(config: TrainConfig, progress: Progress, stored: dict[str, Any], now: int) -> None:
    """What is exact and what is only equivalent where a run goes on with other processes."""
    before = progress.num_processes
    steps = stored["accelerator"]["gradient_accumulation"]["steps"], config.accelerator.gradient_accumulation.steps
    old, new = stored["batch_size"] * steps[0] * before, config.batch_size * steps[1] * now
    if before != now:
        log.warning(
            "the run goes on in %d processes, it was in %d: weights, optimizer, scale, learning rates and the order "
            "of samples, which goes on after %d, are exact; sums in another order, and the random numbers of each "
            "process, are only equivalent", now, before, progress.samples,
        )  # fmt: skip
    if old != new:
        log.warning(
            "an update is of %d samples from here and was of %d: type batch_size=%g, or accelerator."
            "gradient_accumulation.steps=, to keep it", new, old, old / (steps[1] * now),
        )  # fmt: skip


def _say_where(config: TrainConfig, resumed: Path, step: int, stored: dict[str, Any]) -> None:
    """Say where the run goes on, what was passed over, and in which settings it differs from the part before."""
    log.info("going on after step %d from %s", step, resumed)
    for other in sorted(resumed.parent.glob("*")):
        at = step_of(other)
        if at is not None and at > step and (lacks := missing_to_go_on(other)):
            log.warning("checkpoint %s lacks %s: passed over", other.name, ", ".join(lacks))
    found = changes(stored, config)
    for key, (old, new) in found.items():
        if key != "policy.optimizer_lr" or "optimizer.lr" not in found:  # one rate under two names
            log.info("changed on resume: %s=%s, was %s", key, new, old)
