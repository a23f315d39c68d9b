"""A signal asks for an end: the run writes a checkpoint after the update at hand and leaves with status 75."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
STOP_FILE = "stop"
"""In a run's folder it asks for what a signal asks for, from another process or machine."""


class Stop:
    """Whether a signal has come; call it to ask."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal: str | None = None
        """Name of the one that came."""

    def __call__(self) -> bool:
        """Whether one has come."""
        return self._event.is_set()

    def request(self, number: int, _frame: object = None) -> None:
        """Remember the signal; a second one ends the process at once, as it would without this handler."""
        if self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        log.warning("%s: stopping after what is at hand; again to end at once", signal.Signals(number).name)
        self.signal = signal.Signals(number).name
        self._event.set()

    def heed(self, folder: Path) -> None:
        """Stop if there is a `stop` file in `folder`, and take it away. A look at the disk: for log times."""
        file = folder / STOP_FILE
        if file.exists():
            file.unlink(missing_ok=True)
            log.warning("%s: stopping after what is at hand", file)
            self._event.set()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catch SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 until exit; outside the main thread python allows no handler."""
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
