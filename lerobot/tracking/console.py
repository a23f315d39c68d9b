"""Progress for eyes: a line in the log at each row, and a bar under it where there is a terminal."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lerobot.tracking.sink import Row, Sink

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger(__name__)

SHORT = {
    "train/loss": ("loss", "{:.3f}"),
    "train/grad_norm": ("grdn", "{:.3f}"),
    "train/lr": ("lr", "{:.1e}"),
    "train/samples_per_s": ("smp/s", "{:.0f}"),
    "train/step_s": ("step_s", "{:.3f}"),
    "train/data_s": ("data_s", "{:.3f}"),
    "train/update_s": ("updt_s", "{:.3f}"),
    "train/scale": ("scale", "{:g}"),
    "train/skipped_steps": ("skip", "{:.0f}"),
    "train/nonfinite_steps": ("nonfinite", "{:.0f}"),
    "device/peak_mem_gb": ("mem_gb", "{:.2f}"),
    "eval/success_rate": ("success", "{:.2f}"),
    "eval/sum_reward": ("reward", "{:.1f}"),
    "eval/loss": ("eval_loss", "{:.3f}"),
}
"""What a line shows, in this order. `metrics.jsonl` has the rest."""
BAR_KEYS = ("train/loss", "train/samples_per_s", "train/scale", "train/skipped_steps", "eval/success_rate")


def line(row: Row, steps: int) -> str:
    """One row in short words, `step:200/2500 loss:0.123 ... left:0:02:10`; empty if it has nothing for eyes."""
    words = _words(row, SHORT)
    if not words or not steps:
        return " ".join(words)
    seconds = row.get("train/step_s")
    if seconds and seconds > 0 and row["step"] < steps:
        words.append(f"left:{timedelta(seconds=round(seconds * (steps - row['step'])))}")
    return " ".join([f"step:{row['step']}/{steps}", *words])


def _words(row: Row, keys: Any) -> list[str]:
    shown = [(SHORT[key], row[key]) for key in keys if row.get(key) is not None]
    return [f"{name}:{form.format(value)}" for (name, form), value in shown]


class LogSink(Sink):
    """One line a row through `logging`, hence also in the run's log file."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def log(self, row: Row) -> None:
        """Write the line."""
        if text := line(row, self._steps):
            log.info(text)

    def log_skipped(self, row: Row) -> None:
        """Nothing: the next row's `skip` counts it."""


class BarSink(LogSink):
    """The lines, and a bar that moves at every update."""

    def __init__(self, steps: int, progress: "Progress", start_step: int) -> None:
        super().__init__(steps)
        self._progress = progress
        self._task = progress.add_task("train", total=steps, completed=start_step, words="")

    def advance(self, step: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step)

    def log(self, row: Row) -> None:
        """Write the line and show the newest values beside the bar."""
        super().log(row)
        if words := _words(row, BAR_KEYS):
            self._progress.update(self._task, words=" ".join(words))


@contextmanager
def open_console(steps: int, start_step: int) -> Iterator[Sink]:
    """Lines, and a bar to `steps` if stderr is a terminal that can redraw; elsewhere no control character."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not steps or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield LogSink(steps)
        return
    columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[words]}"))
    # A redirected stdout keeps what is written to it; rich would send it to the terminal.
    bar = Progress(*columns, console=console, refresh_per_second=4, redirect_stdout=sys.stdout.isatty())
    with bar, _handlers_above_the_bar():
        yield BarSink(steps, bar, start_step)


@contextmanager
def _handlers_above_the_bar() -> Iterator[None]:
    """Send log lines through the streams that rich put in place of stdout and stderr, so that none cuts the bar."""
    moved: list[tuple[logging.StreamHandler, Any]] = []
    streams: dict[Any, Any] = {sys.__stdout__: sys.stdout, sys.__stderr__: sys.stderr}
    for handler in (*logging.getLogger().handlers, *logging.getLogger("lerobot").handlers):
        if isinstance(handler, logging.FileHandler) or not isinstance(handler, logging.StreamHandler):
            continue
        stream = handler.stream
        if streams.get(stream, stream) is not stream:
            moved.append((handler, stream))
            handler.setStream(streams[stream])
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
