"""What an update is made of: its batches, what its losses are means over, and whether it is the last."""

from collections.abc import Callable, Iterator

import torch

from lerobot.accelerator.parallel import World
from lerobot.policies.base import Batch, Counts, Policy
from lerobot.signals import Stop


class Feed:
    """The batches of one update after the other, in a run of one process."""

    def __init__(self, batches: Iterator[Batch], per_update: int, stop: Stop) -> None:
        self.batches, self.per_update, self.stop = batches, per_update, stop

    def take(self) -> tuple[list[Batch], Counts | None]:
        """The next update's batches, and what the losses of all ranks are means over; None where this is all."""
        return self._fetch(), None

    def is_stopping(self) -> bool:
        """Whether the run is to end after the update at hand."""
        return self.stop()

    def agree(self) -> None:
        """Ask all ranks now: where no update comes in between, as after an evaluation."""

    def close(self) -> None:
        """Nothing is taken any more."""

    def _fetch(self) -> list[Batch]:
        return [next(self.batches) for _ in range(self.per_update)]


class SharedFeed(Feed):
    """The same on one of several ranks, which add up what they count, and whether one of them is asked to stop.

    They do so an update ahead, beside the computation: no update waits for a sum. So all stop after the same update.
    """

    def __init__(self, feed: Feed, policy: Policy, world: World) -> None:
        super().__init__(feed.batches, feed.per_update, feed.stop)
        self._policy, self._world = policy, world
        self._ahead: tuple[list[Batch], list[str], Callable[[], list[float]]] | None = None
        self._stopping = False

    def take(self) -> tuple[list[Batch], Counts | None]:
        """See `Feed`. Each rank's share of the counts: gradients and metrics are averaged over the ranks."""
        batches, names, wait = self._ahead or self._look_ahead()
        asked, *sums = wait()
        self._ahead = self._look_ahead()
        if asked:
            self._obey()
        shares = (torch.tensor(value / self._world.size) for value in sums)
        return batches, dict(zip(names, shares, strict=True))

    def is_stopping(self) -> bool:
        """See `Feed`."""
        return self._stopping

    def agree(self) -> None:
        """See `Feed`."""
        if self._world.any(self.stop()):
            self._obey()

    def close(self) -> None:
        """See `Feed`: leave no sum under way."""
        if self._ahead is not None:
            self._ahead[2]()

    def _obey(self) -> None:
        self._stopping = True
        if not self.stop():  # another rank's signal
            self.stop.pass_on()

    def _look_ahead(self) -> tuple[list[Batch], list[str], Callable[[], list[float]]]:
        batches = self._fetch()
        each = [self._policy.counts(batch) for batch in batches]
        counts = {name: float(sum(counts[name] for counts in each)) for name in each[0]}
        return batches, list(counts), self._world.start_sum([float(self.stop()), *counts.values()])
