"""When things happen: periods, and the learning rate as a function of the step."""

import math
from dataclasses import dataclass

from lerobot.ranges import COUNT_OR_NONE, FRACTION, check_ranges


def due(step: int, every: int, last: bool) -> bool:
    """Whether what happens `every` updates happens after update `step`: always after the last; 0 means then only."""
    return last or (every > 0 and step % every == 0)


@dataclass
class SchedulerConfig:
    """A factor on the learning rate that depends on the step and on nothing else.

    `step` counts attempted updates, so overflows and the number of processes do not move the schedule.
    """

    type: str = ""
    num_warmup_steps: int = 0
    """Updates over which the rate rises linearly from 0."""

    def __post_init__(self) -> None:
        check_ranges("scheduler", self, {"num_warmup_steps": COUNT_OR_NONE})

    def factor(self, step: int, steps: int) -> float:
        """The factor in update `step`, from 1 to `steps`."""
        if step <= self.num_warmup_steps:
            return step / self.num_warmup_steps
        return self.after_warmup((step - 1 - self.num_warmup_steps) / max(1, steps - self.num_warmup_steps))

    def after_warmup(self, progress: float) -> float:
        """The factor at `progress` from 0 (first update after the warm-up) towards 1 (end of training)."""
        raise NotImplementedError


@dataclass
class ConstantConfig(SchedulerConfig):
    """The rate stays as it is after the warm-up."""

    type: str = "constant"

    def after_warmup(self, progress: float) -> float:
        """See `SchedulerConfig.after_warmup`."""
        return 1.0


@dataclass
class CosineConfig(SchedulerConfig):
    """Half a cosine from 1 down to `final_factor` (Loshchilov and Hutter 2017, one cycle)."""

    type: str = "cosine"
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("scheduler", self, {"final_factor": FRACTION})

    def after_warmup(self, progress: float) -> float:
        """See `SchedulerConfig.after_warmup`."""
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.final_factor + (1.0 - self.final_factor) * cosine
