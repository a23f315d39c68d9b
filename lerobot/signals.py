"""A signal asks for an end: the run writes a checkpoint after the update at hand and leaves with status 75."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")


class Stop:
    """Whether a signal has come; call it to ask."""

    def __init__(self, tell: Callable[[int], object] | None = None) -> None:
        self._event = threading.Event()
        self._tell = tell

    def __call__(self) -> bool:
        """Whether one has come."""
        return self._event.is_set()

    def request(self, number: int, _frame: object = None) -> None:
        """Remember the signal; a second one ends the process at once, as it would without this handler."""
        if self._tell is not None:
            self._tell(number)
        elif self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not self._event.is_set():
            log.warning("%s: stopping after what is at hand; again to end at once", signal.Signals(number).name)
        self._event.set()


@contextmanager
def stop_on_signals(tell: Callable[[int], object] | None = None) -> Iterator[Stop]:
    """Catch SIGINT, SIGTERM and SIGUSR1 until exit; outside the main thread python allows no handler.

    tell: hands every signal on, to a process that does the work; then this one ends with that, not on the second.
    What caught signals around it, as a sweep does around a job, knows of one afterwards too.
    """
    stop = Stop(tell)
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
            outer = getattr(handler, "__self__", None)
            if stop() and isinstance(outer, Stop):
                outer._event.set()
