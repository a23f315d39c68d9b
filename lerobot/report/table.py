"""The runs as a table: in `summary.csv` and in the terminal."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lerobot.report.groups import Group, differing, shown_overrides
from lerobot.report.record import Record

COLUMNS = (
    *("run", "state", "group", "seed", "step", "steps", "final_loss", "best_loss"),
    *("success_rate", "success_low", "success_high", "n_episodes", "samples_per_s", "step_s", "wall_s", "peak_mem_gb"),
    *("skipped_steps", "final_scale", "forward_dtype", "tf32", "device", "device_name", "error", "folder"),
)
"""Of `summary.csv`, in this order; then one for each override that differs, under its key."""


def csv_row(record: Record, group: str) -> dict[str, Any]:
    """The cells of `COLUMNS`. NaN stands for a loss that was not finite; a cell without a value is empty."""
    low, high = record.interval
    has_loss = bool(record.series("train/loss"))
    numbers = {
        "best_loss": record.best_loss,
        "success_rate": record.success_rate,
        "success_low": low,
        "success_high": high,
        "samples_per_s": record.samples_per_s,
        "step_s": record.typical("train/step_s"),
        "wall_s": record.wall_s,
        "peak_mem_gb": record.peak_mem_gb,
        "skipped_steps": record.last("train/skipped_steps"),
        "final_scale": record.last("train/scale"),
    }
    facts = {key: record.fact(key) for key in ("forward_dtype", "tf32", "device", "device_name")}
    return {
        **{"run": record.name, "state": record.state, "group": group, "seed": record.seed},
        **{"step": record.step, "steps": record.steps},
        "final_loss": (f"{record.final_loss:.6g}" if math.isfinite(record.final_loss) else "NaN") if has_loss else "",
        **{key: f"{value:.6g}" if math.isfinite(value) else "" for key, value in numbers.items()},
        "n_episodes": record.outcome[1] or "",
        **facts,
        **{"error": record.error, "folder": str(record.folder)},
    }


def write_csv(path: Path, records: Sequence[Record], groups: Sequence[Group]) -> None:
    """Write one row a run (RFC 4180, UTF-8), whole or not at all."""
    keys = [key for key in differing(records) if key not in COLUMNS]
    labels = {id(run): group.label for group in groups for run in group.runs}
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*COLUMNS, *keys], restval="")
    writer.writeheader()
    for record in records:
        words = {key: record.overrides.get(key, "") for key in keys}
        writer.writerow({key: _cell(value) for key, value in (csv_row(record, labels[id(record)]) | words).items()})
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(text.getvalue(), encoding="utf-8", newline="")
    partial.replace(path)


def _cell(value: Any) -> Any:
    """A spreadsheet runs a text that starts like a formula; a quote before it keeps it a text."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def cells(record: Record, keys: Sequence[str]) -> dict[str, str]:
    """What a person reads of a run, by heading; empty where there is nothing to say."""
    low, high = record.interval
    solved, n = record.outcome
    return {
        "run": record.name,
        "state": record.state,
        "with": shown_overrides(record, keys),
        "loss": _loss(record),
        "best": shown(record.best_loss),
        "success": f"{solved / n:.2f} ({low:.2f}-{high:.2f}, n={n})" if n else "",
        "samples/s": shown(record.samples_per_s, 3),
        "time": duration(record.wall_s),
        "memory": f"{record.peak_mem_gb:.1f} GB" if math.isfinite(record.peak_mem_gb) else "",
        "skipped": shown(record.last("train/skipped_steps")),
        "scale": shown(record.last("train/scale")),
        "computed in": computed_in(record),
    }


def computed_in(record: Record) -> str:
    """The dtype of the forward pass as probed, and TF32 where it was on."""
    dtype, tf32 = record.fact("forward_dtype"), record.fact("tf32")
    return "TF32" if dtype == "float32" and tf32 == "True" else dtype + (f" (TF32 {tf32})" if "in " in tf32 else "")


def _loss(record: Record) -> str:
    if not record.series("train/loss"):
        return ""
    return shown(record.final_loss) or "not finite"


def shown(value: float, digits: int = 4) -> str:
    """A number as it is read; empty for NaN."""
    if not math.isfinite(value):
        return ""
    whole = abs(value) >= 10**digits or (float(value).is_integer() and abs(value) < 1e15)
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def shown_range(values: Iterable[float]) -> str:
    """The least and the greatest of the finite ones, as they are read; empty without any."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = shown(min(finite)), shown(max(finite))
    return low if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, the two largest; empty for NaN."""
    if not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours else f"{minutes} min {rest:02d}" if minutes else f"{rest} s"


def filled(rows: Sequence[dict[str, str]]) -> list[str]:
    """The headings under which any row has something."""
    return [key for key in rows[0] if any(row[key] for row in rows)] if rows else []


def print_table(records: Sequence[Record]) -> None:
    """The runs on standard output; unshortened where that is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    keys = differing(records)
    rows = [cells(record, keys) for record in records]
    headings = [key for key in filled(rows) if key not in ("best", "memory")]  # a terminal is narrow
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[heading]) for heading in headings))
    console = Console()
    Console(width=None if console.is_terminal else 240).print(table)
