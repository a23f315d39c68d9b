"""A signal asks for an end: the run writes a checkpoint after the update at hand and leaves with status 75.

Before a run has begun there is nothing to write, and the process leaves at once.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lerobot.time_limit import Deadline

log = logging.getLogger(__name__)

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")
STOPPED, INTERRUPTED = 75, 130
"""Exit statuses: of a run that can go on, and of a keyboard's interrupt before there is one."""


class Stop:
    """Whether a signal or the deadline has come; call it to ask."""

    def __init__(self) -> None:
        self.deadline = Deadline()
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Whether one has come."""
        return self._event.is_set() or self.deadline.has_come()

    def request(self, number: int, _frame: object = None) -> None:
        """Remember the signal, and leave a second one to the system, which ends the process whatever it is doing."""
        for other in _numbers():
            signal.signal(other, signal.SIG_DFL)
        log.warning("%s: stopping after what is at hand; again to end at once", signal.Signals(number).name)
        self._event.set()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catch SIGINT, SIGTERM and SIGUSR1 until exit; outside the main thread python allows no handler."""
    stop = Stop()
    with _handled(stop.request):
        yield stop


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Until a run catches them itself, let the three signals end the process with one line and a status.

    Not by an exception: one that is raised inside an import is caught, wrapped or shown in full by what is imported.
    """
    with _handled(_leave):
        yield


def _leave(number: int, _frame: object = None) -> None:
    with suppress(OSError):  # nobody reads
        os.write(2, f"error: stopped by {signal.Signals(number).name}, no run was at hand\n".encode())
    os._exit(INTERRUPTED if number == signal.SIGINT else STOPPED)


def _numbers() -> list[signal.Signals]:
    return [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


@contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _numbers()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
