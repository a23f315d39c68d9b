"""Where rows go. A place takes what it can show and ignores the rest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""`step`, `time_s` and the metrics; numbers may be NaN, and None stands for no value."""


class Sink:
    """A place that shows nothing: the base of those that do."""

    def advance(self, step: int) -> None:
        """Update `step` is done."""

    def log(self, row: Row) -> None:
        """Take one row."""

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Take what a kill of an earlier part of the run took from it; `rows` are all that there were."""

    def log_skipped(self, row: Row) -> None:
        """Take the row of one skipped update."""
        self.log(row)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Take what really runs, or what is newly known of it."""

    def video(self, step: int, key: str, path: Path) -> None:
        """Take an mp4."""

    def checkpoint(self, step: int, folder: Path) -> None:
        """Take a complete checkpoint folder."""
