"""A run's folder belongs to one process at a time, and a finished run is not trained over."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lerobot.checkpoint.paths import has_checkpoints
from lerobot.errors import ConfigError
from lerobot.status import STATUS_FILE, SWEEP_FILE, read_status
from lerobot.tracking.jsonl import METRICS_FILE

LOCK_FILE = ".lock"


class OccupiedError(ConfigError):
    """A folder that another run has. Nothing is written into it."""


def refuse_occupied(folder: Path) -> None:
    """Refuse a folder that holds a run already, or checkpoints of any. One that was refused before it began is none."""
    if (folder / SWEEP_FILE).exists():
        raise OccupiedError(
            f"{folder} holds a sweep: type -m sweep.resume={folder} to go on with it, or another output_dir"
        )
    if has_checkpoints(folder):
        raise OccupiedError(f"{folder} holds a run: type resume={folder} to go on with it, or another output_dir")
    status = read_status(folder)
    began = status.get("state") != "refused" or (folder / METRICS_FILE).exists()
    if began and (folder / STATUS_FILE).exists():
        again = f", or add resume=auto to the line that began it, output_dir={folder}" if "steps" in status else ""
        raise OccupiedError(f"{folder} holds a run that saved no checkpoint: type another output_dir{again}")


def refuse_runs(folder: Path) -> None:
    """Refuse, for a new sweep, a folder that is a run's or holds other runs: its jobs would lie among their files."""
    if has_checkpoints(folder) or any((*folder.glob(STATUS_FILE), *folder.glob(f"*/{STATUS_FILE}"))):
        raise OccupiedError(f"{folder} holds runs and a sweep needs a folder of its own: type another output_dir")


def refuse_held(folder: Path) -> None:
    """Refuse a folder in which a run is at work."""
    if is_held(folder):
        raise _in_use(folder)


def _in_use(folder: Path) -> OccupiedError:
    return OccupiedError(f"{folder} is in use by another process: wait, or type another output_dir")


@contextmanager
def claimed(folder: Path, *, goes_on: bool) -> Iterator[None]:
    """Hold `folder` until exit; the system lets go of it when the process dies.

    `goes_on` says that the run in it is to be continued; otherwise one that is there is refused.
    """
    make_folder(folder)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _in_use(folder) from None
    try:
        if not goes_on:
            refuse_occupied(folder)
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a living process holds `folder`."""
    if not (folder / LOCK_FILE).exists():
        return False
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # of another user, or on a medium that cannot be written
        return False
    lock.release()
    return False


def make_folder(folder: Path) -> None:
    """Make `folder` unless it is there, and refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK_FILE).touch()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to ({error.strerror}): type another output_dir") from error
