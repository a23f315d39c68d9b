"""Simulators side by side, in this process or in processes of their own. Imports no torch: a worker starts fast.

gymnasium's vector environments are not used: they step those that have finished, and reset them out of turn.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from lerobot.envs.config import EnvConfig
from lerobot.errors import ConfigError
from lerobot.features import Feature

Observation = dict[str, np.ndarray]


class Simulator:
    """One environment, made and remade on request."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self.env: Any = None

    def open(self, task: str, features: dict[str, Feature], render: bool) -> None:
        """Make an environment of `task` in place of the one before."""
        self.close()
        self.env = self.config.make(task, features, render)

    def reset(self, seed: int) -> Observation:
        """The first observation of the episode that starts from `seed`."""
        return self.env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool]:
        """The next observation, the reward, whether the episode has ended and whether it is solved."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), bool(terminated or truncated), bool(info["is_success"])

    def render(self) -> np.ndarray:
        """A picture `(h, w, 3)` uint8 of where it stands."""
        return self.env.render()

    def close(self) -> None:
        """Free the environment."""
        if self.env is not None:
            self.env.close()
            self.env = None


class Lane(Protocol):
    """A `Simulator` that is asked first and answers later, so that several can work meanwhile."""

    def ask(self, method: str, *args: Any) -> None:
        """Call a method of the simulator."""

    def answer(self) -> Any:
        """What the call returned; it is waited for."""

    def close(self) -> None:
        """Free the simulator."""


class LocalLane:
    """A simulator in this process, which works while it is asked."""

    def __init__(self, config: EnvConfig) -> None:
        self._simulator = Simulator(config)
        self._answer: Any = None

    def ask(self, method: str, *args: Any) -> None:
        """See `Lane`."""
        self._answer = getattr(self._simulator, method)(*args)

    def answer(self) -> Any:
        """See `Lane`."""
        return self._answer

    def close(self) -> None:
        """See `Lane`."""
        self._simulator.close()


class ProcessLane:
    """A simulator in a process of its own. It is spawned: a fork of a process that runs torch's threads may hang."""

    def __init__(self, config: EnvConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, config), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, method: str, *args: Any) -> None:
        """See `Lane`."""
        with suppress(BrokenPipeError):  # `answer` says what happened
            self._pipe.send((method, args))

    def answer(self) -> Any:
        """See `Lane`."""
        try:
            value, error, trace = self._pipe.recv()
        except (EOFError, ConnectionResetError) as ended:
            self._process.join(5)
            raise RuntimeError(f"a simulator's process ended by itself (exit code {self._process.exitcode})") from ended
        if error:
            raise ConfigError(error) if not trace else RuntimeError(f"{error}\n{trace}")
        return value

    def close(self) -> None:
        """See `Lane`."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


@contextmanager
def open_lanes(config: EnvConfig, n: int, processes: bool) -> Iterator[list[Lane]]:
    """`n` lanes, freed on exit."""
    lanes: list[Lane] = []
    try:
        lanes += [ProcessLane(config) if processes else LocalLane(config) for _ in range(n)]
        yield lanes
    finally:
        for lane in lanes:
            lane.close()


def _serve(pipe: Connection, config: EnvConfig) -> None:
    """Answer calls until the other side closes, or one fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    simulator = Simulator(config)
    with suppress(EOFError, BrokenPipeError):
        while True:
            method, args = pipe.recv()
            try:
                value = getattr(simulator, method)(*args)
            except ConfigError as error:
                pipe.send((None, str(error), ""))
                break
            except Exception as error:
                pipe.send((None, repr(error), traceback.format_exc()))
                break
            pipe.send((value, "", ""))
    simulator.close()
