"""Means over the updates between two log rows, kept on the device so that nothing waits for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lerobot.errors import ConfigError


@dataclass
class Popped:
    """What happened since the last log row, as host numbers."""

    metrics: dict[str, float | None]
    """NaN: an update that landed was not finite. None: no value, as every update of the window was skipped."""
    skipped: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """One (step, metrics) for each skipped update, oldest first: a row of its own."""


class Window:
    """Means of the metrics of several updates, and a record of those that were skipped.

    `add` reads nothing from the device and `pop` reads once. Memory does not depend on the number of updates:
    device metrics are running sums, skipped updates go to `size` slots. A non-finite value enters its mean only
    if its update landed: an overflow's gradient norm does not hide the others, a NaN in the weights stays visible.

    size: most updates between two pops (`log_freq`); only rows of skipped updates beyond it are lost, not their count.
    skipped_steps, consecutive_skips: where a resumed run stands.
    """

    def __init__(self, size: int, *, skipped_steps: int = 0, consecutive_skips: int = 0) -> None:
        self._size = max(size, 1)
        self._skipped_steps = skipped_steps
        self._consecutive_skips = consecutive_skips
        self._first_step: int | None = None
        self._host: dict[str, tuple[float, float]] = {}
        self._device: dict[tuple[str, ...], Tensor] = {}  # (3, n): sums, counts, non-finite values that landed
        self._skips: _Skips | None = None

    @torch.no_grad()
    def add(
        self,
        metrics: Mapping[str, Tensor | float],
        *,
        step: int,
        skipped: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Take in one update: 0-d tensors stay on their device, numbers (times) on the host.

        skipped: 1 where the update did not land, else 0. scale: the loss scale after the update.
        """
        if self._first_step is None:
            self._first_step = step
        if skipped is not None:
            skipped = skipped.detach().float()
            if self._skips is None:
                self._skips = _Skips(self._size, self._consecutive_skips, skipped.device, scale is not None)
            self._skips.add(step - self._first_step, skipped, scale)
        tensors = {key: value for key, value in metrics.items() if isinstance(value, Tensor)}
        for key, value in metrics.items():
            if not isinstance(value, Tensor):
                total, count = self._host.get(key, (0.0, 0))
                self._host[key] = (total + value, count + 1)
        if tensors:
            self._add_tensors(tensors, skipped)

    def _add_tensors(self, tensors: dict[str, Tensor], skipped: Tensor | None) -> None:
        device = next(iter(tensors.values())).device
        values = torch.stack([value.detach().to(device, torch.float32) for value in tensors.values()])
        keys = tuple(tensors)
        if keys not in self._device:
            self._device[keys] = torch.zeros(3, len(keys), device=device)
        finite = values.isfinite()
        landed = torch.ones_like(finite) if skipped is None else (skipped == 0).expand_as(finite)
        enters = finite | landed
        self._device[keys] += torch.stack([values.where(enters, 0.0), enters.float(), (landed & ~finite).float()])

    def pop(self) -> Popped:
        """The means since the last pop, in one transfer from the device; the window is empty afterwards."""
        parts = list(self._device.values()) + ([self._skips.state()] if self._skips else [])
        numbers = iter(torch.cat([part.flatten() for part in parts]).tolist() if parts else [])

        totals = dict(self._host)
        nonfinite = 0.0  # updates that landed with a value that is not finite; the worst metric's
        for keys in self._device:
            sums, counts, bad = (list(islice(numbers, len(keys))) for _ in range(3))
            for key, added, count in zip(keys, sums, counts, strict=True):
                total, n = totals.get(key, (0.0, 0))
                totals[key] = (total + added, n + count)
            nonfinite = max(nonfinite, *bad)
        metrics: dict[str, float | None] = {key: total / n if n else None for key, (total, n) in totals.items()}
        if nonfinite:
            metrics["train/nonfinite_steps"] = int(nonfinite)
        popped = Popped(metrics)
        if self._skips:
            self._pop_skips(popped, self._skips, numbers)

        self._host.clear()
        self._device.clear()
        self._first_step = None
        return popped

    def state(self) -> dict[str, Any]:
        """What was added since the last pop, for `restore`; waits for the device."""
        return {
            "first_step": self._first_step,
            "host": {key: list(entry) for key, entry in self._host.items()},
            "device": [[list(keys), _as_json(values)] for keys, values in self._device.items()],
            "skips": None if self._skips is None else _as_json(self._skips.used()),
            "has_scale": self._skips is not None and self._skips.has_scale,
        }

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on in the middle of a window, so that its means are those of a run that never stopped.

        Raises `ConfigError` where `state` is not what `state()` gave.
        """
        try:
            self._first_step = state["first_step"]
            self._host = {key: (total, n) for key, (total, n) in state["host"].items()}
            self._device = {tuple(keys): _from_json(values).to(device) for keys, values in state["device"]}
            if state["skips"] is not None:
                self._skips = _Skips(self._size, self._consecutive_skips, device, state["has_scale"])
                self._skipped_steps -= self._skips.fill(_from_json(state["skips"]))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the metrics in training_step.json cannot be read ({error}): go on from another checkpoint of the run"
            ) from error

    def totals(self) -> tuple[int, int]:
        """Skipped updates in all, and how many in a row until now; waits for the device where some may have been."""
        if self._skips is None:
            return self._skipped_steps, self._consecutive_skips
        count, consecutive = self._skips.totals()
        return self._skipped_steps + count, consecutive

    def _pop_skips(self, popped: Popped, skips: "_Skips", numbers: Iterator[float]) -> None:
        count, consecutive, scale = islice(numbers, 3)
        for index in range(min(int(count), self._size)):
            offset, scale_after = islice(numbers, 2)
            row = {"train/scale": scale_after} if skips.has_scale else {}
            row["train/skipped_steps"] = self._skipped_steps + index + 1
            popped.skipped.append(((self._first_step or 0) + int(offset), row))
        self._skipped_steps += int(count)
        if skips.has_scale:
            popped.metrics["train/scale"] = scale
        popped.metrics["train/skipped_steps"] = self._skipped_steps
        popped.metrics["train/consecutive_skips"] = int(consecutive)
        skips.restart()


class _Skips:
    """Which updates of a window were skipped, written without asking the device whether one was."""

    def __init__(self, size: int, consecutive: int, device: torch.device, has_scale: bool) -> None:
        self.has_scale = has_scale
        self._counts = torch.zeros(3, device=device)  # in this window, in a row, last scale
        self._counts[1].fill_(consecutive)
        self._rows = torch.zeros(size + 1, 2, device=device)  # steps since the window's first, scale after it

    def add(self, offset: int, skipped: Tensor, scale: Tensor | None) -> None:
        count, consecutive, _ = self._counts.unbind()
        last = torch.zeros_like(skipped) if scale is None else scale.detach().to(skipped.device, torch.float32)
        # Always written at the next free slot: where nothing was skipped the slot stays free. The last one is spill.
        slot = count.clamp(max=len(self._rows) - 1).long().reshape(1)
        self._rows.index_copy_(0, slot, torch.stack([torch.full_like(skipped, offset), last]).reshape(1, 2))
        self._counts = torch.stack([count + skipped, (consecutive + 1) * skipped, last.reshape(())])

    def state(self) -> Tensor:
        return torch.cat([self._counts, self._rows.flatten()])

    def totals(self) -> tuple[int, int]:
        count, consecutive, _ = self._counts.tolist()
        return int(count), int(consecutive)

    def used(self) -> Tensor:
        """(1 + n, 2): updates skipped and last scale, then the rows."""
        count, _, last = self._counts.unbind()
        return torch.cat([torch.stack([count, last]).reshape(1, 2), self._rows[: int(count)][: len(self._rows) - 1]])

    def fill(self, used: Tensor) -> int:
        """Take over what `used` gave; return how many updates it tells of."""
        rows = used[1 : len(self._rows)].to(self._rows)
        self._rows[: len(rows)] = rows
        self._counts[0], self._counts[2] = float(used[0, 0]), float(used[0, 1])
        return int(used[0, 0])

    def restart(self) -> None:
        self._counts[0] = 0.0


def _as_json(values: Tensor) -> list[list[str]]:
    """Numbers in words: strict JSON has no NaN, and the shortest decimal of a float reads back to the bit."""
    return [[repr(number) for number in row] for row in values.tolist()]


def _from_json(rows: list[list[str]]) -> Tensor:
    return torch.tensor([[float(number) for number in row] for row in rows])
