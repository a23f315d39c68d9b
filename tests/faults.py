"""What a disk does to a save: it fills up, fails or the process goes, at any chosen operation, in a fork of this process."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from lerobot.checkpoint import tensors
from lerobot.errors import RunError

WRITES = os.O_WRONLY | os.O_RDWR
MAKES = ("open", "os.mkdir", "os.symlink", "write")
CHANGES = (*MAKES, "os.rename", "os.remove", "os.rmdir", "fsync")
DONE, TOLD, BORNE, GONE = 0, 1, 2, 9


def in_fork(job):
    """Run `job` in a fork: DONE, TOLD where it raised what a user gets to read, GONE where the process went."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            job()
            status = DONE
        except RunError:
            status = TOLD
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save_with(fault, at, job, folder):
    """Run `job` in a fork and let its operation number `at` on the disk below `folder` fail.

    As `in_fork`; BORNE where it failed and the job did without.
    """

    def spoiled():
        came = _spoil(fault, at, str(folder))
        job()
        if came():
            os._exit(BORNE)

    return in_fork(spoiled)


def _spoil(fault, at, folder):
    """exit: the process goes before the operation. EIO: it fails. ENOSPC: it and all that need room from there on fail.

    Returns whether it has come to that.

    Python tells of what it does to files as audit events, of which a fork never gets rid.
    """
    count = 0

    def operation(event):
        nonlocal count
        count += 1
        if fault == "exit" and count == at:
            os._exit(GONE)
        if (fault == "EIO" and count == at) or (fault == "ENOSPC" and count >= at and event in MAKES):
            code = getattr(errno, fault)
            raise OSError(code, os.strerror(code))

    def hook(event, args):
        reads = event == "open" and not args[2] & WRITES
        if event in CHANGES and not reads and any(str(arg).startswith(folder) for arg in args):
            operation(event)

    save_file = tensors.save_file

    def counted_fsync(_handle):  # a fork that goes takes nothing with it that was written
        operation("fsync")

    def counted_save(values, file, metadata):
        try:
            operation("write")
        except OSError:
            Path(file).write_bytes(b"half")
            raise
        save_file(values, file, metadata)

    os.fsync, tensors.save_file = counted_fsync, counted_save
    sys.addaudithook(hook)
    return lambda: count >= at


@contextmanager
def small_disk(folder, size="2m"):
    """A real disk of `size` at `folder`, where this process may mount one; yields what fills it, or None."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False

    def fill():
        with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))

    try:
        yield fill if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
