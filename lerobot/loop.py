"""The loop: what happens after which update. It knows no precision, no wandb and no device."""

import time
from typing import Any, Protocol

from lerobot.schedule import due


class Training(Protocol):
    """What the loop drives, built by the runner."""

    step: int
    """Attempted updates so far."""

    def update(self, step: int) -> None:
        """Fetch the batches of update `step` and apply it."""

    def log(self, step: int) -> None:
        """Write the means since the last call."""

    def save(self, step: int) -> None:
        """Write a checkpoint that a run can go on from."""

    def evaluate(self, step: int) -> None:
        """Roll the policy out, if there is a simulator."""

    def should_stop(self) -> bool:
        """Whether a signal asked for an end."""


def run(training: Training, config: Any) -> bool:
    """Take `training` from its step to `config.steps`; return False where a signal ended it before, checkpoint written."""
    for step in range(training.step + 1, config.steps + 1):
        training.update(step)
        training.step = step
        last, stopping = step == config.steps, training.should_stop()
        if due(step, config.log_freq, last or stopping):
            training.log(step)
        if due(step, config.save_freq, last or stopping):
            training.save(step)
        if stopping and not last:
            return False
        if due(step, config.env_eval_freq, last):
            training.evaluate(step)
    return True


class Clock:
    """Seconds since it was made, and since it was last asked."""

    def __init__(self) -> None:
        self.start = self.lap_start = time.perf_counter()

    def total_s(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self.start

    def lap_s(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        lap, self.lap_start = now - self.lap_start, now
        return lap
