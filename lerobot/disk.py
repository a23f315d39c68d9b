"""A disk that is full or fails takes records from a run, never the training. Imports no torch."""

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_told: set[Path] = set()
"""Folders of runs that were told of a fault; `begin` takes one off again."""


@contextmanager
def spared(folder: Path) -> Iterator[None]:
    """Let what is written below `folder` fail where the disk is to blame: said once for each run, and no error."""
    try:
        yield
    except OSError as error:
        if error.errno not in FAULTS:
            raise
        tell(folder, error)


def begin(folder: Path) -> None:
    """A run begins in `folder`: its first fault is told."""
    place = folder.resolve()
    _told.difference_update({told for told in _told if told.is_relative_to(place)})


def tell(folder: Path, error: OSError) -> None:
    """Say that what writes in `folder` goes on without, unless it or the run that it is of was told."""
    place = folder.resolve()
    if _told & {place, *place.parents}:
        return
    _told.add(place)
    log.warning(
        "%s cannot be written to (%s) and rows are being lost: the run goes on, metrics.jsonl and status.json catch up "
        "when there is room again, train.log, wandb's file and pictures do not",
        folder, error.strerror,
    )  # fmt: skip


class LogFile(logging.FileHandler):
    """A log file that a full disk makes shorter; `logging` would print a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """See `logging.Handler`."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError) or error.errno not in FAULTS:
            super().handleError(record)
            return
        tell(Path(self.baseFilename).parent, error)
