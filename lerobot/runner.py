"""Builds a run from its config, drives it, and closes everything again, whatever happens."""

import functools
import logging
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lerobot import loop
from lerobot.accelerator.config import AUTO
from lerobot.accelerator.parallel import World, open_world
from lerobot.accelerator.parallel_config import is_rank
from lerobot.accelerator.precision import check_master_weights, check_moments, check_observed, observed_dtypes
from lerobot.accelerator.stack import Stack, open_stack
from lerobot.checkpoint.hub import say_upload, upload
from lerobot.checkpoint.paths import find_pretrained
from lerobot.checkpoint.rng import restore_rng, rng_state
from lerobot.checkpoint.training_state import STATE_FOLDER, Progress, take_snapshot
from lerobot.checkpoint.writer import Checkpoints, open_checkpoints
from lerobot.config import TrainConfig, to_plain
from lerobot.disk import spared
from lerobot.envs.scope import preserved_rng
from lerobot.errors import RunError
from lerobot.evaluation import Evaluator, make_evaluator, missed_evaluation
from lerobot.facts import versions
from lerobot.feed import Feed, SharedFeed
from lerobot.memory import Held, explained
from lerobot.micro_batch import MicroBatches
from lerobot.overflows import Overflows
from lerobot.policies.base import Policy
from lerobot.prepare import find_dataset, open_batches, policy_and_data
from lerobot.ranks import NoCheckpoints, combined, run_folder
from lerobot.report.closing import close
from lerobot.resume import leave_behind, restore, set_generators, window_of
from lerobot.seed import seed_run, seed_step
from lerobot.signals import Stop, stop_on_signals
from lerobot.status import read_status, write_json, write_status
from lerobot.step import train_step
from lerobot.time_limit import Deadline
from lerobot.tracking.tracker import Tracker, open_tracker
from lerobot.tracking.window import Window

log = logging.getLogger(__name__)

WAITING_SHARE = 0.3
"""Of a step; beyond it, more workers help and another precision does not."""


@dataclass
class Training:
    """Everything one training run works with; see `loop.Training` for who calls what."""

    config: TrainConfig
    run_dir: Path
    world: World
    stack: Stack
    policy: Policy
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    feed: Feed
    micro_batches: MicroBatches
    window: Window
    tracker: Tracker
    checkpoints: Checkpoints | NoCheckpoints
    evaluator: Evaluator
    stop: Stop
    facts: dict[str, Any]
    overflows: Overflows
    step: int = 0
    samples: int = 0
    """Used by all ranks until now: the place in the row of samples."""
    until: int = 0
    """Where this part of the run ends."""
    base_lrs: list[float] = field(default_factory=list)
    _waiting_told: bool = False
    _logged_step: int = 0
    _logged_at: float = field(default_factory=time.perf_counter)

    def update(self, step: int) -> None:
        """See `loop.Training`."""
        config = self.config
        self.checkpoints.poll()
        seed_step(config.seed, step, self.world.rank)
        factor = config.scheduler.factor(step, config.steps)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor
        start = time.perf_counter()
        taken, counts = self.feed.take()
        batches = [self.stack.to_device(batch) for batch in taken]
        fetched = time.perf_counter()
        parts, counts = self.micro_batches(batches, counts)
        is_first = "forward_dtype" not in self.facts
        with observed_dtypes(self.policy) if is_first else nullcontext(set()) as seen:
            metrics, update = train_step(
                self.model, parts, self.optimizer, self.stack, config.optimizer.grad_clip_norm, counts
            )
        self.samples += self._samples_per_update()
        if is_first:
            self.stack.layout.check_gradients(self.policy)
            check_moments(self.optimizer)
            self._record_facts(check_observed(self.stack.precision, seen))
        else:  # the first one sets up what the later ones find
            self.stop.deadline.took("update", time.perf_counter() - start)
        times = {"train/data_s": fetched - start, "train/update_s": time.perf_counter() - fetched}
        self.window.add({**metrics, **times}, step=step, skipped=update.skipped, scale=update.scale)
        self.tracker.advance(step)
        self.overflows.look(step, update, parts[-1])

    def log(self, step: int) -> None:
        """See `loop.Training`."""
        popped = self.window.pop()
        self.tracker.log_skipped(popped.skipped)
        at = time.perf_counter()
        step_s = (at - self._logged_at) / max(1, step - self._logged_step)
        own = {
            **popped.metrics,
            "train/lr": self.optimizer.param_groups[0]["lr"],
            "train/step_s": step_s,
            "train/samples_per_s": self._samples_per_update() / step_s,
            "device/peak_mem_gb": self.stack.peak_memory_gb(),
        }
        row = combined(self.world, own)
        self.tracker.log(step, row)
        self.world.first(write_status)(self.run_dir, step=step)
        self.world.first(self.stop.heed)(self.run_dir)
        share = own["train/data_s"] / step_s
        if share > WAITING_SHARE and not self._waiting_told:
            self._waiting_told = True
            log.warning("%.0f %% of a step is waiting for data, not computing: type num_workers=<more>", 100 * share)
        self._logged_step, self._logged_at = step, at

    def save(self, step: int) -> None:
        """See `loop.Training`."""
        if not self.config.save_checkpoint:
            return
        started = time.perf_counter()
        skipped, consecutive = self.window.totals()
        # Of every rank; and nobody waits for a slow disk in an update.
        states = self.world.gather((rng_state(self.policy.device), self.window.state()))
        generators, windows = [state for state, _ in states], [window for _, window in states]
        progress = Progress(step, skipped, consecutive, self.world.size, self.config.batch_size, self.samples, windows)
        scaler = self.stack.scaler if self.stack.has_scale else None
        snapshot = take_snapshot(
            progress, self.policy, self.optimizer, scaler, to_plain(self.config), self.checkpoints.copy
        )
        self.checkpoints.write(replace(snapshot, rng=generators))
        self.world.wait()
        self._logged_at += time.perf_counter() - started  # no part of a step

    def evaluate(self, step: int) -> None:
        """See `loop.Training`."""
        started, deadline = time.perf_counter(), self.stop.deadline
        if self.world.any(deadline.puts_off_evaluation()):
            self.feed.agree()
            return
        held = Held(self.config, self.run_dir, self.policy, written=self.checkpoints.wait)
        with explained(self.stack, held, evaluating=True), self.stack.layout.whole(self.policy) as policy:
            stop = deadline.watching(self.stop)
            self.evaluator.evaluate(policy, step, self.tracker, self.stack.autocast, stop)
        self.feed.agree()
        check_master_weights(self.policy)
        self._logged_at += time.perf_counter() - started
        deadline.took("evaluation", time.perf_counter() - started)
        self.checkpoints.note(step)
        if self.world.says(self.checkpoints.lacks(step)):
            self.save(step)
        self.checkpoints.settle()

    def should_stop(self) -> bool:
        """See `loop.Training`."""
        return self.feed.is_stopping() or self.step == self.until < self.config.steps

    def _samples_per_update(self) -> int:
        """Of all ranks."""
        config = self.config
        return config.batch_size * config.accelerator.gradient_accumulation.steps * self.world.size

    def _record_facts(self, forward_dtype: str) -> None:
        self.facts |= {"forward_dtype": forward_dtype, "micro_batch": self.micro_batches.size}
        with spared(self.run_dir):
            self.world.first(write_json)(self.run_dir / "run.json", self.facts)
        self.tracker.describe(self.facts)
        log.info(
            "running on %s (%s) in %s, scaler %s, tf32 %s, processes %d (%s)",
            *(self.facts[key] for key in ("device", "device_name", "forward_dtype", "scaler", "tf32")),
            self.world.size, self.facts["parallelism"],
        )  # fmt: skip


def train(config: TrainConfig) -> str:
    """Train what `config` asks for in `config.output_dir`; return the final state of `status.json`."""
    run_dir = Path(config.output_dir or "")
    goes_on = config.resume is not None
    config.resume = None if config.resume == AUTO else config.resume
    with ExitStack() as opened:
        # A rank is told twice by a launcher that the terminal's signal reaches too; that one ends whom it must.
        stop = opened.enter_context(stop_on_signals((lambda _: None) if is_rank() else None))
        world = opened.enter_context(open_world(config.parallelism))
        final = opened.enter_context(run_folder(world, run_dir, goes_on=goes_on, steps=config.steps))
        opened.enter_context(world.together())
        stop.deadline = Deadline(config.time_limit)
        root = world.after_first(lambda: find_dataset(config, stop))
        if world.any(stop()):
            final.state = "stopped"
            return final.state
        if config.interrupt_after is not None and config.resume is None:
            _train_part(config, root, run_dir, stop, world, until=config.interrupt_after)
            world.wait()  # until the first rank has written it
            config.resume = str(find_pretrained(run_dir).parent)
        final.step = _train_part(config, root, run_dir, stop, world, until=config.steps)
        final.state = "done" if final.step >= config.steps and not _cut_short(config, stop) else "stopped"
        final.signal = stop.signal
        world.first(close)(config, run_dir, final)
        if config.policy.push_to_hub and final.state == "done":
            log.info("uploaded to %s", world.first(upload)(config, run_dir))
    return final.state


def _cut_short(config: TrainConfig, stop: Stop) -> bool:
    """Whether a signal or the time limit left an evaluation undone."""
    return stop() and config.env is not None


def _train_part(config: TrainConfig, root: Path, run_dir: Path, stop: Stop, world: World, *, until: int) -> int:
    """Train up to update `until`; return the step it stands at."""
    with ExitStack() as stack:
        training = _open(config, root, run_dir, stop, world, stack)
        training.until = until
        if training.step >= config.steps:
            log.info("the run stands at step %d of %d already: type steps=<more> to go on", training.step, config.steps)
        missed = world.says(world.is_first and missed_evaluation(config, run_dir, training.step))
        try:
            if missed:
                training.evaluate(training.step)
                if _is_too_short(training):
                    raise RunError(
                        f"time_limit={config.time_limit} is too short for an evaluation, with which this run begins: "
                        "type a longer one, or eval.n_episodes=<fewer>"
                    )
                if training.feed.is_stopping():  # cut short again: still owed, and an update more would leave it behind
                    return training.step
            if (missed or training.step < config.steps) and loop.run(training, config):
                training.evaluator.finish(training.policy, training.step, training.tracker, stop)
                training.feed.agree()
            training.feed.close()
        finally:
            world.first(write_status)(run_dir, step=training.step)
        return training.step


def _is_too_short(training: Training) -> bool:
    """Whether the time limit left undone again what the run began with."""
    stop, config = training.stop, training.config
    if not training.world.is_first or not stop.deadline.has_come() or stop.has_signal():
        return False
    return missed_evaluation(config, training.run_dir, training.step)


def _open(
    config: TrainConfig, dataset_root: Path, run_dir: Path, stop: Stop, world: World, stack: ExitStack
) -> Training:
    settings = config.accelerator, config.policy.device, config.tf32, world, config.parallelism
    accelerator = stack.enter_context(open_stack(*settings))
    held = Held(config, run_dir)
    stack.enter_context(explained(accelerator, held))
    stack.enter_context(preserved_rng(accelerator.device.torch_device))
    seed_run(config.seed)
    resumed = Path(config.resume) if config.resume else None
    policy, dataset = world.after_first(lambda: policy_and_data(config, dataset_root, resumed))
    held.policy = policy
    # Refuses before step 1 what it could not do later.
    evaluator = make_evaluator(config, policy, dataset, run_dir, world)
    check_master_weights(policy)
    model = accelerator.prepare(policy)
    check_master_weights(policy)
    config.optimizer.fused = accelerator.fuses(config.optimizer.fused, config.optimizer.type)
    optimizer = config.optimizer.build(policy.parameter_groups())
    base_lrs = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
    progress = Progress() if resumed is None else restore(config, resumed, optimizer, accelerator)
    samples, pins = progress.samples or 0, accelerator.pins_memory
    batches = stack.enter_context(open_batches(config, dataset, samples, world=world, pin_memory=pins))
    alone = Feed(batches, config.accelerator.gradient_accumulation.steps, stop)
    feed = alone if world.size == 1 else SharedFeed(alone, policy, world)
    held.micro_batches = MicroBatches(config, policy, model, optimizer, accelerator)
    facts = {**accelerator.facts(), **versions()}
    run_id = config.wandb.run_id or read_status(run_dir).get("wandb_id")  # of a part that died before its checkpoint
    charts = replace(config.wandb, name=config.wandb.name or config.job_name, run_id=run_id)
    plain, start = to_plain(config), progress.step
    if resumed is not None:
        # The last that can be refused: from here files change.
        restore_rng(resumed / STATE_FOLDER, policy.device, world.rank)
        world.first(leave_behind)(run_dir, resumed, start)
    tracker = stack.enter_context(
        open_tracker(run_dir, charts, steps=config.steps, start_step=start, config=plain, facts=facts)
        if world.is_first
        else nullcontext(Tracker())
    )
    config.wandb.run_id = tracker.run_id
    world.first(write_status)(run_dir, wandb_id=tracker.run_id)
    say_upload(config.policy)
    window = window_of(config, progress, accelerator)
    policy.train()
    set_generators(config.seed, resumed, policy.device, world.rank)
    checkpoints = stack.enter_context(
        open_checkpoints(run_dir, config.checkpoint, tracker, pinned=accelerator.pins_memory, resumed=resumed)
        if world.is_first
        else nullcontext(NoCheckpoints())
    )
    checkpoints.took = functools.partial(stop.deadline.took, "save")
    optimizer.register_step_pre_hook(lambda *_: checkpoints.hold())
    return Training(
        config, run_dir, world, accelerator, policy, model, optimizer, feed, held.micro_batches, window, tracker,
        checkpoints, evaluator, stop, facts, Overflows(config, accelerator, policy, window), step=start,
        samples=samples, base_lrs=base_lrs, _logged_step=start,
    )  # fmt: skip
