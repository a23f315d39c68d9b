"""Uploads every offline wandb run below some folders: `python -m lerobot.tracking.sync outputs`, on a login node.

A run that was resumed has a segment for each part, with one id. `wandb sync` (0.31) appends a segment to what the
server has of its run, so each is sent once, and all in order: a second time its rows would be there twice.
"""

import argparse
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from lerobot.status import read_status
from lerobot.tracking.segments import HEADER

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Segments in one call, which is one line of arguments."""


def segments(folders: Iterable[Path]) -> list[Path]:
    """The offline segments below `folders` that were not sent yet, oldest first (their names begin with the time)."""
    found = {path.resolve() for folder in folders for path in folder.glob("**/offline-run-*/run-*.wandb")}
    waiting = [path.parent for path in found if not _is_sent(path)]
    return sorted(waiting, key=lambda path: (path.name, str(path)))


def _is_sent(path: Path) -> bool:
    return path.with_suffix(".wandb.synced").exists()


def is_running(segment: Path) -> bool:
    """Whether the run that writes it says that it goes on: what it writes after an upload would never be sent."""
    return read_status(segment.parents[1]).get("state") == "running"


def sync(folders: Sequence[Path], *, also_running: bool, only_look: bool) -> int:
    """Send what is there; return how many segments are left over."""
    found = segments(folders)
    chosen = [segment for segment in found if also_running or not is_running(segment)]
    if len(chosen) < len(found):
        number = len(found) - len(chosen)
        log.info("%d of runs that go on (or were killed) are left out: --running sends them too", number)
    whole = [segment for segment in chosen if any(file.stat().st_size > HEADER for file in segment.glob("run-*.wandb"))]
    if len(whole) < len(chosen):
        log.info("%d hold no row, their runs were killed at once: left out", len(chosen) - len(whole))
    chosen = whole
    log.info("%d to send", len(chosen))
    if only_look:
        for segment in chosen:
            log.info("%s", segment)
        return 0
    wandb = [found_there] if (found_there := shutil.which("wandb")) else [sys.executable, "-m", "wandb"]
    for first in range(0, len(chosen), AT_ONCE):
        done = subprocess.run([*wandb, "sync", *map(str, chosen[first : first + AT_ONCE])])
        if done.returncode:
            break
    left = [segment for segment in chosen if not all(map(_is_sent, segment.glob("run-*.wandb")))]
    if left:
        log.error("error: %d of %d are not sent; the same line goes on with them", len(left), len(chosen))
    return len(left)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}: type {self.prog} <folder>..., such as outputs", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> None:
    """See the module. Status 1 where something is left over, 2 where a folder is not there."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = _Parser("python -m lerobot.tracking.sync", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="runs, sweeps, or what holds them")
    parser.add_argument("--running", action="store_true", help="also runs that say they go on, as a killed one does")
    parser.add_argument("--dry-run", action="store_true", help="list what would be sent")
    typed = parser.parse_args(argv)
    if absent := [str(folder) for folder in typed.folders if not folder.is_dir()]:
        print(f"error: {absent[0]} is no folder: type the one that holds the runs, such as outputs", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)
    raise SystemExit(1 if sync(typed.folders, also_running=typed.running, only_look=typed.dry_run) else 0)


if __name__ == "__main__":
    main()
