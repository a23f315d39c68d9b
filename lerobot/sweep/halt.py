"""Whether a job may begin and how it goes on: read from the files of the sweep, since jobs may be processes apart."""

from pathlib import Path
from typing import Any

from lerobot.accelerator.config import AUTO
from lerobot.checkpoint import paths
from lerobot.status import STATUS_FILE, read_status, write_status
from lerobot.sweep.jobs import read_sweep
from lerobot.sweep.table import NOT_RUN


def halted(folder: Path, on_error: str) -> str | None:
    """Why no further job of the sweep in `folder` may begin, if so."""
    sweep = read_sweep(folder) if on_error == "stop" else None
    for job in sweep.jobs if sweep else []:
        if read_status(folder / job.folder).get("state") == "failed":
            return f"{job.folder} failed, and sweep.on_error=stop"
    return None


def go_on(config: Any, folder: Path) -> None:
    """Let a job that was begun before go on: from its newest checkpoint, else anew in its own folder."""
    if read_status(folder).get("state") == "stopped":
        write_status(folder, state=NOT_RUN)  # its turn has come: what it says from here on is of this pass
    was_begun = (folder / STATUS_FILE).exists() or paths.has_checkpoints(folder)
    if not was_begun or read_status(folder).get("state") == "done":
        return
    if not hasattr(config, "resume"):  # an evaluation or a recording begins anew
        (folder / STATUS_FILE).unlink()
    elif paths.has_checkpoints(folder):
        config.resume = str(paths.find_to_go_on(folder))
    else:
        config.resume = AUTO
