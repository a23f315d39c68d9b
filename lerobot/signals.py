"""A signal asks for an end: the run writes a checkpoint after the update at hand and leaves with status 75.

Before a run has begun there is nothing to write, and the process leaves at once.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lerobot.accelerator.parallel_config import rank_of
from lerobot.time_limit import Deadline

log = logging.getLogger(__name__)

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
STOP_FILE = "stop"
"""In a run's folder it asks for what a signal asks for, from another process or machine."""
STOPPED, INTERRUPTED = 75, 130
"""Exit statuses: of a run that can go on, and of a keyboard's interrupt before there is one."""


class Stop:
    """Whether a signal, a `stop` file or the deadline has come; call it to ask."""

    def __init__(self, tell: Callable[[int], object] | None = None) -> None:
        self.deadline = Deadline()
        self._event = threading.Event()
        self._tell = tell
        self._has_file = False
        self.signal: str | None = None
        """Name of the one that came."""

    def __call__(self) -> bool:
        """Whether one has come."""
        return self.has_signal() or self._has_file or self.deadline.has_come()

    def has_signal(self) -> bool:
        """Whether a signal has come."""
        return self._event.is_set()

    def pass_on(self) -> None:
        """Take over a signal that something inside caught."""
        self._event.set()

    def request(self, number: int, _frame: object = None) -> None:
        """Remember the signal, and leave a second one to the system, which ends the process whatever it is doing."""
        if self._tell is not None:
            self._tell(number)
        else:
            for other in _numbers():
                signal.signal(other, signal.SIG_DFL)
        self.signal = signal.Signals(number).name
        if not self._event.is_set():
            log.warning("%s: stopping after what is at hand; again to end at once", self.signal)
        self._event.set()

    def heed(self, folder: Path) -> None:
        """Stop if there is a `stop` file in `folder`, and take it away. A look at the disk: for log times."""
        file = folder / STOP_FILE
        if file.exists():
            file.unlink(missing_ok=True)
            log.warning("%s: stopping after what is at hand", file)
            self._has_file = True


@contextmanager
def stop_on_signals(tell: Callable[[int], object] | None = None) -> Iterator[Stop]:
    """Catch SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 until exit; outside the main thread python allows no handler.

    tell: hands every signal on, to a process that does the work; then this one ends with that, not on the second.
    What caught signals around it, as a sweep does around a job, knows of one afterwards too.
    """
    stop = Stop(tell)
    with _handled(stop.request) as before:
        try:
            yield stop
        finally:
            for outer in {getattr(handler, "__self__", None) for handler in before}:
                if stop.has_signal() and isinstance(outer, Stop):
                    outer.pass_on()


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Until a run catches them itself, let the three signals end the process with one line and a status.

    Not by an exception: one that is raised inside an import is caught, wrapped or shown in full by what is imported.
    """
    with _handled(_leave):
        yield


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Until exit the system ends the process on any of the signals, whatever it waits for."""
    with _handled(signal.SIG_DFL):
        yield


def _leave(number: int, _frame: object = None) -> None:
    with suppress(OSError):  # nobody reads
        if rank_of():
            os._exit(STOPPED)  # the first of several processes says it
        os.write(2, f"error: stopped by {signal.Signals(number).name}, no run was at hand\n".encode())
    os._exit(INTERRUPTED if number == signal.SIGINT else STOPPED)


def _numbers() -> list[signal.Signals]:
    return [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


@contextmanager
def _handled(handler: Callable[[int, object], None] | signal.Handlers) -> Iterator[list[Any]]:
    """Handle the signals by `handler` until exit; gives the handlers of before."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    before = {number: signal.signal(number, handler) for number in _numbers()}
    try:
        yield list(before.values())
    finally:
        for number, old in before.items():
            signal.signal(number, old)
