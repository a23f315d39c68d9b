"""What became of a sweep: a table of its jobs, and the states that its exit status follows from."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from lerobot.errors import ConfigError
from lerobot.status import STATUS_FILE, read_status
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

COLUMNS = {
    "train/loss": "loss",
    "eval/success_rate": "success",
    "train/samples_per_s": "samples/s",
    "train/skipped_steps": "skipped",
}


class Ending(Callback):
    """Remembers, in the process that started a sweep, which folder it was in and shows its jobs at the end."""

    folder: Path | None = None

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """See Hydra: called once, after the last job, in the parent."""
        Ending.folder = Path(config.hydra.sweep.dir)
        show(Ending.folder)


def job_folders(folder: Path) -> list[Path]:
    """The jobs of a sweep by number."""
    jobs = [path.parent for path in folder.glob(f"*/{STATUS_FILE}")]
    return sorted(
        jobs, key=lambda job: (int(number) if (number := job.name.partition("_")[0]).isdigit() else -1, job.name)
    )


def states(folder: Path) -> list[str]:
    """How each job ended. One that was still running when its process went is failed."""
    return [state(read_status(job)) for job in job_folders(folder)]


def state(status: dict[str, Any]) -> str:
    """How a job ended by its status. One that a search pruned ended as it should."""
    told = status.get("state", "failed")
    return "failed" if told == "running" else "done" if status.get("pruned") else told


def show(folder: Path) -> None:
    """Print the jobs: what differs, how each ended, its last numbers; then why some did not run to their end."""
    from rich.console import Console
    from rich.table import Table

    jobs = job_folders(folder)
    words = {job: _overrides(job) for job in jobs}
    shared = set.intersection(*map(set, words.values())) if len(jobs) > 1 else set()
    table = Table("job", "state", "with", *COLUMNS.values(), title=str(folder), title_justify="left")
    table.columns[0].no_wrap = True
    for job, state in zip(jobs, states(folder), strict=True):
        numbers = _last(job)
        cells = [f"{numbers[key]:.4g}" if numbers.get(key) is not None else "" for key in COLUMNS]
        table.add_row(job.name, state, " ".join(word for word in words[job] if word not in shared), *cells)
    console = Console(stderr=True)
    console.print(table)
    for job in jobs:
        if error := read_status(job).get("error"):
            console.print(f"{job.name}: {error}", markup=False, highlight=False, soft_wrap=True)


def _overrides(job: Path) -> list[str]:
    file = job / ".hydra" / "overrides.yaml"
    return list(map(str, OmegaConf.load(file))) if file.is_file() else []


def _last(job: Path) -> dict[str, Any]:
    """The newest value of each column."""
    path = job / METRICS_FILE
    try:
        rows = read_metrics(path) if path.is_file() else []
    except ConfigError:  # one garbled file takes no other job's row away
        rows = []
    return {key: row[key] for row in rows for key in COLUMNS if key in row}
