"""Starts the processes of a run for `parallelism.nproc=`, through torch's elastic launcher, and answers for them.

The config is composed already: the processes read it from a file, the first one speaks and writes. Signals are passed
on to all, so that they stop after the same update.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from lerobot.accelerator.config import AUTO
from lerobot.accelerator.parallel import check_build
from lerobot.accelerator.parallel_config import LOST
from lerobot.accelerator.slots import find_pool, wants_card
from lerobot.config import TrainConfig
from lerobot.errors import ConfigError
from lerobot.signals import INTERRUPTED, STOPPED, Stop, stop_on_signals
from lerobot.status import now, read_status, write_status
from lerobot.time_limit import process_age_s

log = logging.getLogger(__name__)

POLL_S = 0.1
SHUTDOWN_S = 10
"""How long processes have to leave after one of them failed."""
_STOPS = {STOPPED, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT}
"""How processes leave that a signal stopped before the run began."""


def number_of_processes(config: TrainConfig) -> int:
    """How many processes `parallelism.nproc` asks for. Raises `ConfigError` where the layout is for another number."""
    nproc = config.parallelism.nproc
    if nproc == AUTO:
        nproc = max(1, len(find_pool(1).cards)) if wants_card(config.policy.device) else 1
        log.info("parallelism.nproc=auto: %d", nproc)
    config.parallelism.shape(nproc or 1)
    return nproc or 1


def launch(config: TrainConfig, number: int) -> str:
    """Run `config` in `number` processes; return the final state of `status.json`."""
    if os.name == "nt":
        raise ConfigError("parallelism.nproc= does not work on Windows: start in WSL, or with one process")
    check_build()
    run_dir = Path(config.output_dir or "")
    began = time.time() - process_age_s()
    with TemporaryDirectory(prefix="lerobot-") as folder, stop_on_signals(lambda n: told.append(n)) as stop:
        told: list[int] = []
        file = Path(folder) / "run"
        file.write_bytes(pickle.dumps((config, _logging(), began)))
        agent = _Agent(file, number)
        agent.start()
        while agent.is_alive():
            agent.join(POLL_S)
            agent.pass_on(told)
    return _final_state(run_dir, agent, stop)


class _Agent(threading.Thread):
    """torch's launcher, beside the thread that hears signals: its own way to pass one on ends processes for good."""

    def __init__(self, file: Path, number: int) -> None:
        super().__init__(daemon=True)
        self.file, self.number = file, number
        self.failures: dict[int, Any] = {}
        self.error: Exception | None = None
        self._passed = 0

    def run(self) -> None:
        """See `threading.Thread`."""
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        try:
            with _environment(self.number):
                self._launch()
        except ChildFailedError as error:
            self.failures = dict(error.failures)
        except Exception as error:
            self.error = error

    def _launch(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        logging.getLogger("torch.distributed.launcher").setLevel(logging.CRITICAL)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.number,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            local_addr="localhost",
            logs_specs=DefaultLogsSpecs(log_dir=str(self.file.parent / "logs")),
        )
        elastic_launch(config, sys.executable)("-m", "lerobot.rank", str(self.file))

    def pass_on(self, told: list[int]) -> None:
        """Hand the signals in `told` to the processes, once all are there; after the first one, each ends them."""
        ranks = self._ranks() if self._passed < len(told) else []
        while ranks and (len(ranks) == self.number or self._passed) and self._passed < len(told):
            number = told[self._passed] if self._passed == 0 else signal.SIGKILL
            for rank in ranks:
                rank.send_signal(number)
            self._passed += 1

    def _ranks(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            try:
                found += [child] if str(self.file) in child.cmdline() else []
            except psutil.Error:
                continue
        return found


@contextmanager
def _environment(number: int) -> Iterator[None]:
    """What the processes inherit, put back on exit."""
    own = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_S), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    own["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109
    own["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // number))
    before = {name: os.environ.get(name) for name in (*own, "TORCHELASTIC_SIGNALS_TO_HANDLE")}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def _logging() -> tuple[int, list[tuple[str | None, Any]]]:
    """The root logger's level, and of each of its places the file (None: the console) and the form of a line."""
    root = logging.getLogger()
    places = [h for h in root.handlers if type(h) is logging.StreamHandler or isinstance(h, logging.FileHandler)]
    return root.level, [(getattr(place, "baseFilename", None), place.formatter) for place in places]


def _final_state(run_dir: Path, agent: _Agent, stop: Stop) -> str:
    """What became of the run, said here where its first process could not say it."""
    if agent.error is not None:
        write_status(run_dir, state="failed", error=str(agent.error), ended=now())
        raise agent.error
    codes = {rank: failure.exitcode for rank, failure in sorted(agent.failures.items())}
    status = read_status(run_dir)
    if status.get("state") in (None, "running") or LOST in str(status.get("error")):
        if stop.has_signal() or (codes and set(codes.values()) <= _STOPS):
            write_status(run_dir, state="stopped", ended=now())
        else:
            text = _fault(codes)
            write_status(run_dir, state="failed", error=text, ended=now())
            log.error("%s", text)
    return read_status(run_dir)["state"]


def _fault(codes: dict[int, int]) -> str:
    """Whose fault it was, by how the processes left: one that only lost a killed one leaves with 1."""
    own = {rank: code for rank, code in codes.items() if code > 0 and code not in _STOPS}
    killed = {rank: -code for rank, code in codes.items() if code < 0 and code not in _STOPS}
    if killed:
        rank, number = next(iter(killed.items()))
        memory = " (as the system does when memory is full)" if number == signal.SIGKILL else ""
        return f"process {rank} was ended by {signal.Signals(number).name}{memory}"
    blamed = ", ".join(f"process {rank} left with status {code}" for rank, code in (own or codes).items())
    return f"{blamed or 'the processes left'}, what it said is above"
