"""The loop: what happens after which update. It knows no precision, no wandb and no device."""

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
        ...


def run(training: Training, config: Any) -> bool:
    """Take `training` from its step to `config.steps`; False where it was asked to stop before, checkpoint written.

    A stop writes no row of its own: means over a part of a window are kept in the checkpoint, so that the resumed run
    writes the rows of an uninterrupted one.
    """
    for step in range(training.step + 1, config.steps + 1):
        training.update(step)
        training.step = step
        last, stopping = step == config.steps, training.should_stop()
        if due(step, config.log_freq, last):
            training.log(step)
        if due(step, config.save_freq, last or stopping):
            training.save(step)
        if stopping and not last:
            return False
        if due(step, config.env_eval_freq, last):
            training.evaluate(step)
            if training.should_stop() and not last:  # the resumed run evaluates first what was cut short here
                if not due(step, config.save_freq, last):
                    training.save(step)
                return False
    return True
