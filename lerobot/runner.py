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
from lerobot.accelerator.precision import check_master_weights, check_observed, observed_dtypes
from lerobot.accelerator.stack import Stack, Update, open_stack
from lerobot.checkpoint.folders import leave_later
from lerobot.checkpoint.hub import say_upload, upload
from lerobot.checkpoint.paths import find_pretrained
from lerobot.checkpoint.rng import restore_rng
from lerobot.checkpoint.training_state import STATE_FOLDER, Progress, take_snapshot
from lerobot.checkpoint.writer import Checkpoints, open_checkpoints
from lerobot.claim import claimed
from lerobot.config import TrainConfig, to_plain
from lerobot.diagnose import first_nonfinite_module, nonfinite_gradients
from lerobot.disk import spared
from lerobot.envs.scope import preserved_rng
from lerobot.errors import RunError
from lerobot.evaluation import Evaluator, make_evaluator
from lerobot.facts import versions
from lerobot.memory import Held, explained
from lerobot.micro_batch import MicroBatches
from lerobot.policies.base import Policy
from lerobot.prepare import find_dataset, open_batches, policy_and_data
from lerobot.report.closing import close
from lerobot.resume import restore
from lerobot.schedule import due
from lerobot.seed import seed_run, seed_step
from lerobot.signals import Stop, stop_on_signals
from lerobot.status import read_status, running, write_json, write_status
from lerobot.step import train_step
from lerobot.time_limit import Deadline
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics
from lerobot.tracking.tracker import Tracker, open_tracker
from lerobot.tracking.window import Window

log = logging.getLogger(__name__)

MOST_TOLD, TOLD_UNTIL = 3, 20
"""Skipped updates that are told of one by one, and the last update in which one is looked for."""
WAITING_SHARE = 0.3
"""Of a step; beyond it, more workers help and another precision does not."""


@dataclass
class Training:
    """Everything one training run works with; see `loop.Training` for who calls what."""

    config: TrainConfig
    run_dir: Path
    stack: Stack
    policy: Policy
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Any
    micro_batches: MicroBatches
    window: Window
    tracker: Tracker
    checkpoints: Checkpoints
    evaluator: Evaluator
    stop: Stop
    facts: dict[str, Any]
    step: int = 0
    until: int = 0
    """Where this part of the run ends."""
    base_lrs: list[float] = field(default_factory=list)
    _overflows_told: int = 0
    _waiting_told: bool = False
    _logged_step: int = 0
    _logged_at: float = field(default_factory=time.perf_counter)

    def update(self, step: int) -> None:
        """See `loop.Training`."""
        config = self.config
        self.checkpoints.poll()
        seed_step(config.seed, step)
        factor = config.scheduler.factor(step, config.steps)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor
        start = time.perf_counter()
        count = config.accelerator.gradient_accumulation.steps
        batches = [self.stack.to_device(next(self.batches)) for _ in range(count)]
        fetched = time.perf_counter()
        parts, counts = self.micro_batches(batches)
        is_first = "forward_dtype" not in self.facts
        with observed_dtypes(self.policy) if is_first else nullcontext(set()) as seen:
            metrics, update = train_step(
                self.model, parts, self.optimizer, self.stack, config.optimizer.grad_clip_norm, counts
            )
        if is_first:
            self._record_facts(check_observed(self.stack.precision, seen))
        else:  # the first one sets up what the later ones find
            self.stop.deadline.took("update", time.perf_counter() - start)
        times = {"train/data_s": fetched - start, "train/update_s": time.perf_counter() - fetched}
        self.window.add({**metrics, **times}, step=step, skipped=update.skipped, scale=update.scale)
        self.tracker.advance(step)
        if update.skipped is not None and self._overflows_told < MOST_TOLD and step <= TOLD_UNTIL:
            self._tell_overflow(step, update)
        limit = config.accelerator.grad_scaler.max_consecutive_skips
        if update.skipped is not None and due(step, max(1, limit // 10), last=False):
            self._stop_if_stuck(step, parts[-1])

    def log(self, step: int) -> None:
        """See `loop.Training`."""
        popped = self.window.pop()
        self.tracker.log_skipped(popped.skipped)
        at = time.perf_counter()
        step_s = (at - self._logged_at) / max(1, step - self._logged_step)
        samples = self.config.batch_size * self.config.accelerator.gradient_accumulation.steps
        row = {
            **popped.metrics,
            "train/lr": self.optimizer.param_groups[0]["lr"],
            "train/step_s": step_s,
            "train/samples_per_s": samples / step_s,
            "device/peak_mem_gb": self.stack.peak_memory_gb(),
        }
        self.tracker.log(step, row)
        write_status(self.run_dir, step=step)
        self.stop.heed(self.run_dir)
        share = row["train/data_s"] / step_s
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
        progress = Progress(step, skipped, consecutive, 1, self.config.batch_size, self.window.state())
        scaler = self.stack.scaler if self.stack.has_scale else None
        plain = to_plain(self.config)
        self.checkpoints.write(
            take_snapshot(progress, self.policy, self.optimizer, scaler, plain, self.checkpoints.copy)
        )
        self._logged_at += time.perf_counter() - started  # no part of a step

    def evaluate(self, step: int) -> None:
        """See `loop.Training`."""
        started, deadline = time.perf_counter(), self.stop.deadline
        if deadline.puts_off_evaluation():
            return
        held = Held(self.config, self.run_dir, self.policy, written=self.checkpoints.wait)
        with explained(self.stack, held, evaluating=True):
            stop = deadline.watching(self.stop)
            self.evaluator.evaluate(self.policy, step, self.tracker, self.stack.autocast, stop)
        check_master_weights(self.policy)
        self._logged_at += time.perf_counter() - started
        deadline.took("evaluation", time.perf_counter() - started)
        self.checkpoints.note(step)
        if self.checkpoints.lacks(step):
            self.save(step)
        self.checkpoints.settle()

    def should_stop(self) -> bool:
        """See `loop.Training`."""
        return self.stop() or self.step == self.until < self.config.steps

    def _tell_overflow(self, step: int, update: Update) -> None:
        """Say where the first skipped updates overflowed. Reads from the device, hence in the first updates only."""
        if not bool(update.skipped):
            return
        self._overflows_told += 1
        scale = "" if update.scale is None else f", the loss scale falls to {float(update.scale):g}"
        names = ", ".join(nonfinite_gradients(self.policy))
        log.info("update %d is skipped: its gradient is not finite (%s)%s; that is normal at first", step, names, scale)

    def _stop_if_stuck(self, step: int, batch: dict[str, Any]) -> None:
        """End the run where no update lands any more; reads from the device, so it is asked in a tenth of the limit."""
        settings = self.config.accelerator.grad_scaler
        _, consecutive = self.window.totals()
        scale = self.stack.scaler.get_scale()
        until_next_look = max(1, settings.max_consecutive_skips // 10)
        if consecutive + until_next_look <= settings.max_consecutive_skips and scale >= settings.min_scale:
            return
        parameters = nonfinite_gradients(self.policy)
        with self.stack.autocast():
            module = first_nonfinite_module(self.policy, lambda: self.policy.loss(batch))
        scaled = f" (loss scale {scale:g})" if self.stack.has_scale else ""
        instead = "type precision=bf16" if self.stack.has_scale else "lower policy.optimizer_lr"
        raise RunError(
            f"{consecutive} updates in a row were not finite up to step {step}{scaled}: "
            f"first module with such an output: {module}; "
            f"parameters with such a gradient: {', '.join(parameters) or 'none'}; "
            f"checkpoints stay as they are; look at the data, or {instead}"
        )

    def _record_facts(self, forward_dtype: str) -> None:
        self.facts |= {"forward_dtype": forward_dtype, "micro_batch": self.micro_batches.size}
        with spared(self.run_dir):
            write_json(self.run_dir / "run.json", self.facts)
        self.tracker.describe(self.facts)
        log.info(
            "running on %s (%s) in %s, scaler %s, tf32 %s",
            *(self.facts[key] for key in ("device", "device_name", "forward_dtype", "scaler", "tf32")),
        )


def train(config: TrainConfig) -> str:
    """Train what `config` asks for in `config.output_dir`; return the final state of `status.json`."""
    run_dir = Path(config.output_dir or "")
    goes_on = config.resume is not None
    config.resume = None if config.resume == AUTO else config.resume
    with stop_on_signals() as stop, claimed(run_dir, goes_on=goes_on), running(run_dir, steps=config.steps) as final:
        stop.deadline = Deadline(config.time_limit)
        root = find_dataset(config, stop)
        if stop():
            final.state = "stopped"
            return final.state
        if config.interrupt_after is not None and config.resume is None:
            _train_part(config, root, run_dir, stop, until=config.interrupt_after)
            config.resume = str(find_pretrained(run_dir).parent)
        final.step = _train_part(config, root, run_dir, stop, until=config.steps)
        final.state = "done" if final.step >= config.steps and not _cut_short(config, stop) else "stopped"
        final.signal = stop.signal
        close(config, run_dir, final)
        if config.policy.push_to_hub and final.state == "done":
            log.info("uploaded to %s", upload(config, run_dir))
    return final.state


def _cut_short(config: TrainConfig, stop: Stop) -> bool:
    """Whether a signal or the time limit left an evaluation undone."""
    return stop() and config.env is not None


def _train_part(config: TrainConfig, root: Path, run_dir: Path, stop: Stop, until: int) -> int:
    """Train up to update `until`; return the step it stands at."""
    with ExitStack() as stack:
        training = _open(config, root, run_dir, stop, stack)
        training.until = until
        if training.step >= config.steps:
            log.info("the run stands at step %d of %d already: type steps=<more> to go on", training.step, config.steps)
        missed = _missed_evaluation(training)
        try:
            if missed:
                training.evaluate(training.step)
                if stop.deadline.has_come() and not stop.has_signal() and _missed_evaluation(training):
                    raise RunError(
                        f"time_limit={config.time_limit} is too short for an evaluation, with which this run begins: "
                        "type a longer one, or eval.n_episodes=<fewer>"
                    )
                if stop():  # cut short again: still owed, and an update more would leave it behind
                    return training.step
            if (missed or training.step < config.steps) and loop.run(training, config):
                training.evaluator.finish(training.policy, training.step, training.tracker, stop)
        finally:
            write_status(run_dir, step=training.step)
        return training.step


def _missed_evaluation(training: Training) -> bool:
    """Whether the run stopped between the checkpoint that it goes on from and the evaluation that was due then."""
    config, step = training.config, training.step
    if config.env is None or step == 0 or not due(step, config.env_eval_freq, last=step == config.steps):
        return False
    rows = read_metrics(training.run_dir / METRICS_FILE)
    return not any(row["step"] == step and "eval/success_rate" in row for row in rows)


def _open(config: TrainConfig, dataset_root: Path, run_dir: Path, stop: Stop, stack: ExitStack) -> Training:
    accelerator = stack.enter_context(open_stack(config.accelerator, config.policy.device, config.tf32))
    held = Held(config, run_dir)
    stack.enter_context(explained(accelerator, held))
    stack.enter_context(preserved_rng(accelerator.device.torch_device))
    seed_run(config.seed)
    resumed = Path(config.resume) if config.resume else None
    policy, dataset = policy_and_data(config, dataset_root, resumed)
    held.policy = policy
    evaluator = make_evaluator(config, policy, dataset, run_dir)  # refuses before step 1 what it could not do later
    check_master_weights(policy)
    model = accelerator.prepare(policy)
    config.optimizer.fused = accelerator.fuses(config.optimizer.fused)
    optimizer = config.optimizer.build(policy.parameter_groups())
    base_lrs = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
    progress = Progress() if resumed is None else restore(config, resumed, optimizer, accelerator)
    batches = stack.enter_context(open_batches(config, dataset, progress.step, pin_memory=accelerator.pins_memory))
    held.micro_batches = MicroBatches(config, policy, model, optimizer, accelerator)
    facts = {**accelerator.facts(), **versions()}
    run_id = config.wandb.run_id or read_status(run_dir).get("wandb_id")  # of a part that died before its checkpoint
    charts = replace(config.wandb, name=config.wandb.name or config.job_name, run_id=run_id)
    plain, start = to_plain(config), progress.step
    if resumed is not None:
        restore_rng(resumed / STATE_FOLDER, policy.device)  # the last that can be refused: from here files change
        leave_later(resumed.parent, start)
    tracker = stack.enter_context(
        open_tracker(run_dir, charts, steps=config.steps, start_step=start, config=plain, facts=facts)
    )
    config.wandb.run_id = tracker.run_id
    write_status(run_dir, wandb_id=tracker.run_id)
    say_upload(config.policy)
    size, skipped, in_a_row = (
        config.log_freq or config.steps,
        progress.skipped_steps,
        progress.consecutive_skips,
    )
    window = Window(size, skipped_steps=skipped, consecutive_skips=in_a_row)
    if progress.window is not None:
        window.restore(progress.window, accelerator.device.torch_device)
    policy.train()
    seed_run(config.seed)  # again: what was imported and built meanwhile has drawn, more the first time than later
    if resumed is not None and (warning := restore_rng(resumed / STATE_FOLDER, policy.device)):
        log.warning(warning)
    checkpoints = stack.enter_context(
        open_checkpoints(run_dir, config.checkpoint, tracker, pinned=accelerator.pins_memory, resumed=resumed)
    )
    checkpoints.took = functools.partial(stop.deadline.took, "save")
    optimizer.register_step_pre_hook(lambda *_: checkpoints.hold())
    return Training(
        config, run_dir, accelerator, policy, model, optimizer, batches, held.micro_batches, window, tracker,
        checkpoints, evaluator, stop, facts, step=start, base_lrs=base_lrs, _logged_step=start,
    )  # fmt: skip
