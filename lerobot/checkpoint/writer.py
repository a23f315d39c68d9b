"""The checkpoints of a run that is going on: written by one thread beside it, the best marked, old ones removed."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from lerobot.accelerator.shards import gathered, is_shard
from lerobot.checkpoint.config import CheckpointConfig
from lerobot.checkpoint.folders import point, remove, tidy, whole_steps
from lerobot.checkpoint.paths import BEST, CHECKPOINTS_FOLDER, LAST, pointed, step_of
from lerobot.checkpoint.tensors import Staging
from lerobot.checkpoint.training_state import Snapshot, write_checkpoint
from lerobot.errors import RunError
from lerobot.status import SWEEP_FILE
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics
from lerobot.tracking.tracker import Tracker

log = logging.getLogger(__name__)


class Checkpoints:
    """What touches `checkpoints/` while a run goes on, one thing after the other.

    Whatever goes wrong in the thread is raised by the next call here, and at the latest when `open_checkpoints` closes.
    """

    def __init__(
        self, run_dir: Path, settings: CheckpointConfig, tracker: Tracker, staging: Staging, resumed: int | None
    ) -> None:
        self.run_dir = run_dir
        self.root = run_dir / CHECKPOINTS_FOLDER
        self.settings = settings
        self.tracker = tracker
        self.took: Callable[[float], None] = lambda _: None
        """Told how long each save took, in seconds."""
        self._resumed = resumed
        self._staging = staging
        self._thread = ThreadPoolExecutor(1, "checkpoints") if settings.background else None
        self._copying: Future[None] | None = None
        self._pending: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._steps = set(whole_steps(self.root)) if resumed is not None else set[int]()
        self._values: dict[int, float] = {}
        self._said_no_best = False

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tensors` for `write`, as they are until the next `hold`.

        Waits for the save that has the memory, so that one goes on at most. On the processor copying takes a while,
        and the thread does it during the next forward and backward pass, which change no weights.
        """
        if self._thread is None:
            return {name: gathered(value).cpu() if is_shard(value) else value for name, value in tensors.items()}
        self.wait()
        staged = self._staging.take(tensors)
        self._copying = self._thread.submit(self._staging.fill, tensors)
        return staged

    def hold(self) -> None:
        """Return when what is being saved has been copied. To be called before weights or moments change."""
        if self._copying is not None:
            self._copying.result()

    def write(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; the tracker is told when it is whole."""
        step = snapshot.progress.step
        self._steps.add(step)
        self.note(step)
        keep, copying = self._keeping(), self._copying

        def job() -> tuple[Path, float]:
            started = time.perf_counter()
            if copying is not None:
                copying.result()  # done by now, by the same thread; raises what went wrong in it
            folder = write_checkpoint(self.run_dir, snapshot)
            keep()
            return folder, time.perf_counter() - started

        def then(written: tuple[Path, float]) -> None:
            self.tracker.checkpoint(step, written[0])
            self.took(written[1])

        self._do(job, then)

    def note(self, step: int) -> None:
        """Remember the metric that the best is told by, if it was logged for `step`."""
        best, newest = self.settings.best or "", self.tracker.newest
        at, value = newest.get(best, (None, None))
        if at == step:
            self._remember(step, value)
        elif (
            best
            and at is None
            and any(key.startswith(best.partition("/")[0] + "/") or "/" not in best for key in newest)
        ):
            self.say_no_best()  # its like was logged, and it was not

    def _remember(self, step: int, value: Any) -> None:
        if isinstance(value, (int, float)) and math.isfinite(value):
            self._values[step] = value

    def lacks(self, step: int) -> bool:
        """Whether `step` is better than every checkpoint and has none."""
        return step not in self._steps and self._best({*self._steps, step}) == step

    def settle(self) -> None:
        """Mark the best again, after its metric was logged."""
        if self._values:
            self._do(self._keeping(), lambda _: None)

    def poll(self) -> None:
        """Raise what went wrong, if something has by now. Costs nothing: called in every update."""
        while self._pending and self._pending[0][0].done():
            self._finish()

    def wait(self) -> None:
        """Return when everything is written."""
        while self._pending:
            self._finish()

    def recall(self) -> None:
        """Take from `metrics.jsonl` what was logged before the run went on."""
        path = self.run_dir / METRICS_FILE
        for row in read_metrics(path) if self.settings.best and path.exists() else ():
            self._remember(row["step"], row.get(self.settings.best or ""))

    def close(self) -> None:
        """Let the thread end."""
        if self._thread is not None:
            self._thread.shutdown()

    def say_no_best(self) -> None:
        """Say so, once, where the metric that is to tell the best is not there."""
        if self.settings.best and not self._values and self.tracker.newest and not self._said_no_best:
            self._said_no_best = True
            names = ", ".join(sorted(key for key in self.tracker.newest if "/" in key))
            log.warning(
                "checkpoint.best=%s: nothing of that name was logged, so no checkpoint is the best; type one of %s",
                self.settings.best, names,
            )  # fmt: skip

    def _do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if self._thread is None:
            then(self._attempt(job))
        else:
            self._pending.append((self._thread.submit(self._attempt, job), then))

    def _attempt(self, job: Callable[[], Any]) -> Any:
        try:
            return job()
        except OSError as error:
            reason = " ".join(str(error.strerror or error).split())
            saved = pointed(self.root / LAST) is not None
            left = "the checkpoints in it are whole" if saved else "nothing is saved"
            sweep = self.run_dir.parent if (self.run_dir.parent / SWEEP_FILE).exists() else None
            again = f"type -m sweep.resume={sweep}" if sweep else "add resume=auto to the line that began it"
            go_on = f"go on with resume={self.run_dir}" if saved and not sweep else again
            raise RunError(f"{self.root} cannot be written to ({reason}), {left}: make room, then {go_on}") from error

    def _finish(self) -> None:
        future, then = self._pending.popleft()
        then(future.result())

    def _best(self, steps: set[int]) -> int | None:
        """Of `steps`, the one with the best value; the earliest of equals."""
        best: int | None = None
        for step in sorted(steps & self._values.keys()):
            if best is None or self.settings.is_better(self._values[step], than=self._values[best]):
                best = step
        return best

    def _keeping(self) -> Callable[[], None]:
        """A job that points `best` at what is the best now, and removes what is too old to stay."""
        best, ours = self._best(self._steps), sorted(self._steps)

        def keep() -> None:
            there = whole_steps(self.root)
            if best in there and pointed(self.root / BEST) != there[best]:
                point(self.root / BEST, there[best])
            if self.settings.keep is None:
                return
            marked = [step_of(folder) for name in (LAST, BEST) if (folder := pointed(self.root / name)) is not None]
            for step in [step for step in ours if step in there][: -self.settings.keep]:
                if step not in (*marked, self._resumed):
                    remove(there[step])

        return keep


@contextmanager
def open_checkpoints(
    run_dir: Path, settings: CheckpointConfig, tracker: Tracker, *, pinned: bool, resumed: Path | None
) -> Iterator[Checkpoints]:
    """The checkpoints of one run, all of them written on exit; `resumed` is the step folder that it went on from.

    An error that passes is not hidden by one of the thread, which is then logged.
    """
    tidy(run_dir / CHECKPOINTS_FOLDER)
    step = None if resumed is None else step_of(resumed)
    checkpoints = Checkpoints(run_dir, settings, tracker, Staging(pinned=pinned), step)
    checkpoints.recall()
    checkpoints.settle()  # going back may have left the best behind
    try:
        yield checkpoints
    except BaseException:
        try:
            checkpoints.wait()
        except RunError as error:
            log.error("%s", error)
        raise
    else:
        checkpoints.wait()
        checkpoints.say_no_best()
    finally:
        checkpoints.close()
