"""Step folders on the disk: put in their place whole, pointed at, and removed, so that a kill at any moment loses none.

Imports no torch. A name that starts with a point and ends in `.tmp` is never read and goes with the next save.
"""

import logging
import os
import shutil
from pathlib import Path

from lerobot.checkpoint.paths import BEST, LAST, OLD, is_whole, pointed, step_of
from lerobot.errors import ConfigError

log = logging.getLogger(__name__)


def temporary(final: Path) -> Path:
    """Where `final` is prepared."""
    return final.with_name(f".{final.name}.tmp")


def put(folder: Path, final: Path) -> None:
    """Rename the whole `folder` to `final`, on the disk.

    One that is there (a run that went on from an earlier checkpoint writes later ones again) counts until the new one
    has its name, see `paths.pointed`.
    """
    flush(folder)
    old = final.with_name(final.name + OLD)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    for parent in (final.parent, final.parent.parent):  # the first one made its parent too
        flush(parent, deep=False)
    if old.exists():
        remove(old)


def point(pointer: Path, folder: Path) -> None:
    """Let `pointer` lead to `folder` beside it: a link, or a file with its name where links fail."""
    new = temporary(pointer)
    new.unlink(missing_ok=True)
    try:
        new.symlink_to(folder.name)
    except (OSError, NotImplementedError):  # Windows without the right to, network file systems
        new.write_text(folder.name + "\n")
        flush(new)
    os.replace(new, pointer)  # noqa: PTH105
    flush(pointer.parent, deep=False)


def remove(folder: Path) -> None:
    """Remove `folder`, which at no moment is there in part under its own name."""
    gone = temporary(folder)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)  # what a network file system holds back goes with the next save


def whole_steps(root: Path) -> dict[int, Path]:
    """The complete checkpoints in `root` by step, oldest first."""
    found = [(step, folder) for folder in root.glob("*") if (step := step_of(folder)) is not None and is_whole(folder)]
    return dict(sorted(found))


def leave_later(root: Path, step: int) -> None:
    """Go back to `step`: later checkpoints, of a part that the run leaves, move to the first free `<root>.<n>`.

    `last` moves first, so that a kill in between leaves the run where it went back to.
    """
    tidy(root)
    later = [folder for folder in root.glob("*") if (step_of(folder) or 0) > step]
    if not later:
        return
    number = 1
    while (left := root.with_name(f"{root.name}.{number}")).exists():
        number += 1
    left.mkdir()
    point(root / LAST, root / f"{step:06d}")
    if (best := pointed(root / BEST)) is not None and (step_of(best) or 0) > step:
        (root / BEST).unlink()
    for folder in later:
        folder.rename(left / folder.name)
    for changed in (left, root, root.parent):
        flush(changed, deep=False)
    log.info("going back to step %d: checkpoints beyond it are kept in %s", step, left)


def tidy(root: Path) -> None:
    """Finish what kills left undone. Nothing else may be writing to `root` meanwhile."""
    for name in (LAST, BEST):
        if (root / name).is_dir() and not (root / name).is_symlink():
            raise ConfigError(f"{root / name} is a folder and no link, as copies that follow links make it: remove it")
    for old in root.glob(f"*{OLD}"):
        final = old.with_name(old.name.removesuffix(OLD))
        if step_of(old) is not None and final.exists():
            remove(old)
        elif step_of(old) is not None:
            old.rename(final)
    for left in root.glob(".*.tmp"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()


def flush(path: Path, *, deep: bool = True) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk: no rename gets ahead of what it names."""
    if os.name == "nt":  # Windows opens no folders
        return
    for entry in [*(path.rglob("*") if deep else ()), path]:
        handle = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
