"""What became of a sweep: a table of its jobs, and the states that its exit status follows from."""

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from lerobot.checkpoint.paths import has_checkpoints
from lerobot.claim import is_held
from lerobot.report.record import Record, read_run
from lerobot.status import PRUNED, STATUS_FILE, read_status
from lerobot.sweep.jobs import read_sweep, spelled

COLUMNS = {
    "train/loss": "loss",
    "eval/success_rate": "success",
    "train/samples_per_s": "samples/s",
    "train/skipped_steps": "skipped",
}
NOT_RUN, MISSING = "not run", "missing"
"""Has not begun; and was begun and left no status."""
UNFINISHED = ("failed", "stopped", "running", MISSING, NOT_RUN)
STOPPED = ("stopped", "running", NOT_RUN)
"""A search tries other values in place of those that failed."""


@dataclass(frozen=True)
class Outcome:
    """One job and what became of it."""

    name: str
    state: str
    differs: list[str]
    error: str | None
    numbers: dict[str, float]


class Ending(Callback):
    """Remembers, in the process that started a sweep, which folder it was in and shows its jobs at the end."""

    folder: Path | None = None
    draws = False
    """Whether the report gets pictures."""
    reevaluates = False

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """See Hydra: called once, after the last job, in the parent."""
        close(Path(config.hydra.sweep.dir))
        Ending.draws = bool(OmegaConf.select(config, "picture", default=True))
        Ending.reevaluates = bool(OmegaConf.select(config, "sweep.reevaluate", default=False))


def close(folder: Path) -> None:
    """Show the jobs of a sweep and how to go on with it."""
    Ending.folder = folder
    show(folder)


def job_folders(folder: Path) -> list[Path]:
    """The folders of the jobs by number, also of those that have not begun."""
    if (sweep := read_sweep(folder)) is not None:
        return [folder / job.folder for job in sweep.jobs]
    jobs = [path.parent for path in folder.glob(f"*/{STATUS_FILE}")]
    return sorted(
        jobs, key=lambda job: (int(number) if (number := job.name.partition("_")[0]).isdigit() else -1, job.name)
    )


def state_of(job: Path) -> str:
    """done, failed, refused, stopped, running, missing or not run. A job whose process is gone has failed."""
    status = read_status(job)
    state = status.get("state")
    if state == "running":
        return "running" if is_held(job) else "failed"
    if status.get("pruned"):  # by a search: it ended as it should
        return "done"
    if state is not None:
        return state
    return MISSING if job.exists() else NOT_RUN


def states(folder: Path) -> list[str]:
    """The state of each job."""
    return [state_of(job) for job in job_folders(folder)]


def outcomes(folder: Path) -> list[Outcome]:
    """What became of each job of a sweep."""
    folders, sweep = job_folders(folder), read_sweep(folder)
    records = [read_run(job, job.name) for job in folders]
    words = [[spelled(f"{key}={value}") for key, value in record.overrides.items()] for record in records]
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    differs = [[word for word in row if word not in shared] for row in words]
    if sweep is not None:
        differs = [job.differs for job in sweep.jobs]
    return [
        Outcome(job.name, _shown(job, state := state_of(job)), row, _error(job, state), _numbers(record))
        for job, row, record in zip(folders, differs, records, strict=True)
    ]


def _shown(job: Path, state: str) -> str:
    """A pruned job counts as done, and is told from those that went to their end."""
    return PRUNED if state == "done" and read_status(job).get("pruned") else state


def _error(job: Path, state: str) -> str | None:
    if state == MISSING:
        return "it left no status.json"
    status = read_status(job)
    return "its process is gone" if status.get("state") == "running" and state == "failed" else status.get("error")


def show(folder: Path) -> None:
    """Print the jobs: what differs, how each ended, its last numbers; then why some did not run to their end."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = outcomes(folder)
    used = [key for key in COLUMNS if any(row.numbers.get(key) is not None for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("with", overflow="fold")
    for key in used:
        table.add_column(COLUMNS[key], no_wrap=True, justify="right")
    for row in rows:
        cells = [f"{row.numbers[key]:.4g}" if row.numbers.get(key) is not None else "" for key in used]
        table.add_row(row.name.partition("_")[0], row.state, Text(" ".join(row.differs)), *cells)
    console = Console(stderr=True)
    console.print(str(folder), markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    for sentence, names in _by_error(rows):
        console.print(f"{', '.join(names)}: {sentence}", markup=False, highlight=False, soft_wrap=True)
    if stuck := [row.name for row in rows if row.state == "refused" and has_checkpoints(folder / row.name)]:
        line = f"goes on from its checkpoints alone, remove its folder to run it anew: {', '.join(stuck)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    sweep = read_sweep(folder)
    if sweep is not None and any(row.state in (STOPPED if sweep.search else UNFINISHED) for row in rows):
        line = f"go on with it: lerobot-{sweep.command} -m sweep.resume={shlex.quote(str(folder))}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _by_error(rows: Iterable[Outcome]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.error:
            found.setdefault(row.error, []).append(row.name)
    return list(found.items())


def _numbers(record: Record) -> dict[str, float]:
    """What the report says too: the newest value, of the speed the median."""
    found = {key: record.last(key) for key in COLUMNS} | {"train/samples_per_s": record.samples_per_s}
    return {key: value for key, value in found.items() if math.isfinite(value)}
