"""`status.json`: what became of a run, in the folder of the run."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lerobot import disk
from lerobot.errors import ConfigError

STATUS_FILE = "status.json"
PRUNED = "pruned"
"""What a job is called that a search stopped, beside its state in the file."""
SWEEP_FILE = "sweep.json"
"""In the folder of a sweep, which is no run's."""
_unwritten: dict[Path, dict[str, Any]] = {}
"""By folder: what a full disk did not take, which holds for this process and is written with the next change."""


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seconds_between(started: Any, ended: Any) -> float:
    """From one time of `now` to another; NaN where either is none."""
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    except (TypeError, ValueError):
        return math.nan


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by strict JSON of `value`, all of it or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a power cut after the rename would leave an empty file
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_status(folder: Path) -> dict[str, Any]:
    """What `status.json` says; an empty dict where there is none yet, or one that a crash emptied or tore."""
    path = folder / STATUS_FILE
    try:
        status = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError:
        status = {}
    return {**(status if isinstance(status, dict) else {}), **_unwritten.get(folder.resolve(), {})}


def write_status(folder: Path, **changes: Any) -> None:
    """Change keys of `status.json`; `state` is running, done, failed, refused or stopped. A full disk is no error."""
    status, place = {**read_status(folder), **changes}, folder.resolve()
    with disk.spared(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATUS_FILE, status)
        _unwritten.pop(place, None)
        return
    _unwritten[place] = status


@dataclass
class Final:
    """How a run ends, filled in by whoever runs it."""

    state: str = "done"
    step: int | None = None
    signal: str | None = None
    """Name of the one that stopped it."""


@contextmanager
def running(folder: Path, **facts: Any) -> Iterator[Final]:
    """Keep `status.json` while a run goes on: running, and at the end what became of it, also after an exception.

    Where going on with a run is refused, what had become of it stays.
    """
    before = read_status(folder)
    fresh = {"step": None, "error": None, "ended": None, "signal": None, "pruned": False}
    disk.begin(folder)
    write_status(folder, state="running", **fresh, started=now(), pid=os.getpid(), **facts)
    final = Final()
    try:
        yield final
    except BaseException as error:
        if isinstance(error, ConfigError) and before.get("state") not in (None, "refused"):
            write_status(folder, **{**fresh, **before})
            raise
        state = "refused" if isinstance(error, ConfigError) else "failed"
        write_status(folder, state=state, error=" ".join(str(error).split()) or type(error).__name__, ended=now())
        raise
    step = {} if final.step is None else {"step": final.step}
    write_status(folder, state=final.state, ended=now(), signal=final.signal, **step)
