"""A signal asks for an end: the run writes a checkpoint after the update at hand and leaves with status 75."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lerobot.time_limit import Deadline

log = logging.getLogger(__name__)

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


class Stop:
    """Whether a signal or the deadline has come; call it to ask."""

    def __init__(self) -> None:
        self.deadline = Deadline()
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Whether one has come."""
        return self._event.is_set() or self.deadline.has_come()

    def request(self, number: int, _frame: object = None) -> None:
        """Remember the signal; a second one ends the process at once, as it would without this handler."""
        if self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        log.warning("%s: stopping after what is at hand; again to end at once", signal.Signals(number).name)
        self._event.set()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catch SIGINT, SIGTERM and SIGUSR1 until exit; outside the main thread python allows no handler."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.signal(number, stop.request) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
