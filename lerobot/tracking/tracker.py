"""One door for what a run reports: the metrics file, the console, wandb."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from lerobot.tracking.config import WandbConfig
from lerobot.tracking.console import open_console
from lerobot.tracking.jsonl import METRICS_FILE, JsonlSink, truncate_after
from lerobot.tracking.sink import Sink
from lerobot.tracking.wandb import open_wandb


class Tracker:
    """Hands each row to every place that wants it. Without places it drops them: what other ranks get."""

    def __init__(self, sinks: Sequence[Sink] = (), *, run_id: str | None = None, time_s: float = 0.0) -> None:
        self.run_id = run_id
        """wandb's id of the run, to be stored with it; None if wandb never was on."""
        self.newest: dict[str, tuple[int, Any]] = {}
        """Metric to the step and the value of its newest row."""
        self._sinks = sinks
        self._started = time.monotonic() - time_s

    def advance(self, step: int) -> None:
        """Update `step` is done; moves the progress bar and reads nothing."""
        for sink in self._sinks:
            sink.advance(step)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one row. A NaN shows as NaN where a place can show it, as null in `metrics.jsonl`."""
        row = self._row(step, metrics)
        self.newest |= {key: (step, value) for key, value in row.items()}
        for sink in self._sinks:
            sink.log(row)

    def log_skipped(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Write the rows of `Popped.skipped`."""
        for step, metrics in rows:
            row = self._row(step, metrics)
            for sink in self._sinks:
                sink.log_skipped(row)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Say what of `run.json` became known after the tracker was opened."""
        for sink in self._sinks:
            sink.describe(facts)

    def video(self, step: int, key: str, path: Path) -> None:
        """Show an mp4 where videos can be shown."""
        for sink in self._sinks:
            sink.video(step, key, path)

    def checkpoint(self, step: int, folder: Path) -> None:
        """Say that `folder` holds the complete checkpoint of `step`."""
        for sink in self._sinks:
            sink.checkpoint(step, folder)

    def _row(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        time_s = round(time.monotonic() - self._started, 3)
        # A simulator counts in numpy numbers, which JSON does not know.
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in metrics.items()}
        return {"step": step, "time_s": time_s, **plain}


@contextmanager
def open_tracker(
    run_dir: Path,
    wandb: WandbConfig,
    *,
    steps: int,
    start_step: int = 0,
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> Iterator[Tracker]:
    """The tracker of one run, closed on exit and marked failed there if an exception passes.

    Rows of an earlier part of the run beyond `start_step` move aside; `time_s` goes on where that part stopped.
    steps: of the whole run; 0 where nothing counts up to a total (evaluation), and no bar is shown.
    config: resolved and plain. facts: what really runs (`run.json`). Both go to wandb.
    """
    with ExitStack() as stack:
        # Opened first, closed last: what goes wrong in closing the others still marks the run as failed.
        charts = stack.enter_context(open_wandb(run_dir, wandb, config=config, facts=facts))
        path = run_dir / METRICS_FILE
        kept = truncate_after(path, start_step)
        charts.catch_up(kept)
        record = stack.enter_context(closing(JsonlSink(path)))
        console = stack.enter_context(open_console(steps, start_step))
        time_s = kept[-1]["time_s"] if kept else 0.0
        yield Tracker([record, console, charts], run_id=charts.run_id, time_s=time_s)
