"""What ranks do apart: the first writes and speaks for all, the others compute and leave nothing behind."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from lerobot.accelerator.parallel import World
from lerobot.accelerator.shards import gathered
from lerobot.checkpoint.training_state import Snapshot
from lerobot.claim import claimed
from lerobot.status import Final, now, running, write_status

_SLOWEST = ("_s", "_gb")
"""Ends of metrics of which the highest holds: an update takes as long as its slowest rank, and fits if all do."""
_RATE = "train/samples_per_s"
_NONFINITE = "train/nonfinite_steps"


@contextmanager
def run_folder(world: World, run_dir: Path, *, goes_on: bool, steps: int) -> Iterator[Final]:
    """Hold the run's folder and keep its status, on the first rank."""
    if not world.is_first:
        yield Final()
        return
    with claimed(run_dir, goes_on=goes_on), running(run_dir, steps=steps) as final:
        world.on_lost = lambda text: write_status(run_dir, state="failed", error=text, ended=now())
        yield final


def combined(world: World, row: Mapping[str, float | None]) -> dict[str, float | None]:
    """One row of all ranks' rows: means, and of times and memory the highest. One collective."""
    if world.size == 1:
        return dict(row)
    keys = sorted({*row, _NONFINITE})
    values = [row.get(key, 0.0) for key in keys]
    has = [float(value is not None) for value in values]
    rows = world.gather_numbers([*has, *(0.0 if value is None else value for value in values)])
    made: dict[str, float | None] = {}
    for i, key in enumerate(keys):
        made[key] = _one([row[len(keys) + i] for row in rows if row[i]], key)
    if not made[_NONFINITE]:
        del made[_NONFINITE]
    return {key: made[key] for key in [*row, *(made.keys() - row.keys())]}


def _one(values: list[float], key: str) -> float | None:
    if not values:
        return None
    if len(set(values)) == 1:  # a mean of equal numbers may be another
        return values[0]
    if any(math.isnan(value) for value in values):
        return math.nan
    if key == _RATE:
        return min(values)
    highest = key.endswith(_SLOWEST) or key == _NONFINITE
    return max(values) if highest else sum(values) / len(values)


class NoCheckpoints:
    """Stands for `Checkpoints` on the other ranks, which bring their shards and keep nothing."""

    took: Callable[[float], None] = staticmethod(lambda _: None)

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Checkpoints`."""
        for tensor in tensors.values():
            gathered(tensor)
        return {}

    def hold(self) -> None:
        """See `Checkpoints`."""

    def write(self, snapshot: Snapshot) -> None:
        """See `Checkpoints`."""

    def note(self, step: int) -> None:
        """See `Checkpoints`."""

    def lacks(self, step: int) -> bool:
        """See `Checkpoints`."""
        return False

    def settle(self) -> None:
        """See `Checkpoints`."""

    def poll(self) -> None:
        """See `Checkpoints`."""

    def wait(self) -> None:
        """See `Checkpoints`."""
