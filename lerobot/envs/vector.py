"""Objects that work side by side, in this process or in processes of their own. Imports no torch: a worker starts fast.

gymnasium's vector environments are not used: they step those that have finished, and reset them out of turn.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

from lerobot.errors import ConfigError


class Worker(Protocol):
    """What a lane runs: any object with methods, one of them `close`."""

    def close(self) -> None:
        """Free what it holds."""


class Lane(Protocol):
    """A worker whose methods are asked for first and answered later, so that several can work meanwhile."""

    def ask(self, method: str, *args: Any) -> None:
        """Call a method of the worker."""

    def answer(self) -> Any:
        """What the call returned; it is waited for. Raises what the method raised."""

    def close(self) -> None:
        """Free the worker."""


class LocalLane:
    """A worker in this process: it works while it is asked."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._worker = make()
        self._answer: Any = None

    def ask(self, method: str, *args: Any) -> None:
        """See `Lane`."""
        self._answer = getattr(self._worker, method)(*args)

    def answer(self) -> Any:
        """See `Lane`."""
        return self._answer

    def close(self) -> None:
        """See `Lane`."""
        self._worker.close()


class ProcessLane:
    """A worker in a process of its own. It is spawned: a fork of a process that runs torch's threads may hang."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, method: str, *args: Any) -> None:
        """See `Lane`."""
        with suppress(BrokenPipeError):  # `answer` says what happened
            self._pipe.send((method, args))

    def answer(self) -> Any:
        """See `Lane`."""
        try:
            value, error = self._pipe.recv()
        except (EOFError, ConnectionResetError) as ended:
            self._process.join(5)
            raise RuntimeError(f"a simulator's process ended (exit code {self._process.exitcode})") from ended
        if error:
            raise error
        return value

    def close(self) -> None:
        """See `Lane`."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def open_lanes(make: Callable[[], Worker], n: int, processes: bool) -> Iterator[list[Lane]]:
    """`n` lanes, freed on exit. With `processes`, `make` and what is asked must pickle."""
    lanes: list[Lane] = []
    try:
        for _ in range(n):
            lanes.append(ProcessLane(make) if processes else LocalLane(make))
        yield lanes
    finally:
        for lane in lanes:
            lane.close()


def ask_all(lanes: list[Lane], method: str, *args: Any) -> list[Any]:
    """The answers of all `lanes` to the same call."""
    for lane in lanes:
        lane.ask(method, *args)
    return [lane.answer() for lane in lanes]


def _serve(pipe: Connection, make: Callable[[], Worker]) -> None:
    """Answer calls until the other side closes, or one fails."""
    # Ctrl-C and a scheduler's SIGTERM reach the whole group; the parent finishes what it can, then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = make()
    with suppress(EOFError, BrokenPipeError):
        while True:
            method, args = pipe.recv()
            try:
                answer = getattr(worker, method)(*args), None
            except ConfigError as error:
                answer = None, error
            except Exception as error:
                # An exception of a simulator may not pickle, and its trace would be lost.
                answer = None, RuntimeError(f"{error!r} in a simulator's process\n{traceback.format_exc()}")
            pipe.send(answer)
    worker.close()
