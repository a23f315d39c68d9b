"""One job of a sweep that runs beside others: its card, its process, and its way back after a preemption.

Hydra's launchers call a `Job` in place of the task function. Imports no torch: a job's card is chosen before.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import configure_log, setup_globals
from omegaconf import DictConfig, OmegaConf

from lerobot.accelerator.slots import Pool, find_pool, waited_slot, wants_card
from lerobot.errors import ConfigError
from lerobot.status import read_status, write_status
from lerobot.sweep.table import NOT_RUN

STOPPING_FILE = ".stopping"
"""In a sweep's folder: the signal that ends it, for the processes that wait on its jobs."""
POLL_S = 0.1
MOST_JOBS = 8
"""On the processor, unless more are typed: each needs memory of its own."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")


@dataclass
class Job:
    """What a launcher runs for each job: `task`, on a card of its own, in a process of its own if `apart`."""

    task: Callable[[DictConfig], Any]
    sweep: Path
    pool: Pool = field(default_factory=Pool)
    apart: bool = True
    launcher: int = field(default_factory=os.getpid)
    """The process that started the sweep; with one job at a time joblib runs it there."""
    requeues: bool = False
    """Whether the launcher listens for SIGUSR2, ahead of the time limit, and then brings the job back."""

    def __call__(self, cfg: DictConfig) -> None:
        """See Hydra's task functions."""
        folder = Path(HydraConfig.get().runtime.output_dir)
        with waited_slot(self.pool, _device(cfg), self._is_stopping) as environment:
            if environment is None or self._is_stopping():
                write_status(folder, state=NOT_RUN, error="the sweep was stopped before its turn")
                return
            if self.apart:
                self._run_apart(cfg, environment, folder)
            else:
                os.environ.update(environment)  # for good: torch looks at it once
                self.task(cfg)
        if self.requeues and read_status(folder).get("signal") == "SIGUSR2":
            signal.raise_signal(signal.SIGUSR2)  # to the launcher, whose handler is back now

    def _is_stopping(self) -> bool:
        return (self.sweep / STOPPING_FILE).exists()

    def _run_apart(self, cfg: DictConfig, environment: dict[str, str], folder: Path) -> None:
        """Run the task in a new process, which gets the signal that ends the sweep, and say if it was killed."""
        import cloudpickle  # comes with the launchers

        whole = cloudpickle.dumps((self.task, cfg, Singleton.get_state()))
        parent = os.getppid()
        ears = nullcontext() if os.getpid() == self.launcher else _deaf()
        with ears, subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, env=environment, start_new_session=True
        ) as child, _handed_on(child, "SIGUSR2" if self.requeues else None):  # fmt: skip
            assert child.stdin is not None
            child.stdin.write(whole)
            child.stdin.close()
            is_told = False
            while child.poll() is None:
                if not is_told and (self._is_stopping() or os.getppid() != parent):
                    is_told = True
                    child.send_signal(signal.SIGTERM)
                try:
                    child.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        if child.returncode and read_status(folder).get("state") in (None, "running"):
            number = -child.returncode
            how = f"killed by {signal.Signals(number).name}" if number > 0 else f"its process left with {-number}"
            write_status(folder, state="stopped" if is_told else "failed", error=how)


def _device(cfg: DictConfig) -> str | None:
    """The device that a job asks for; recording demonstrations takes none."""
    return OmegaConf.select(cfg, "policy.device") if "policy" in cfg else "cpu"


@contextmanager
def _deaf() -> Iterator[None]:
    """Leave the terminal's signals to the process that started the sweep, which tells everybody once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Caught, not ignored: a new process would inherit that.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _handed_on(child: subprocess.Popen, name: str | None) -> Iterator[None]:
    """Hand the signal of that name on to `child` until exit."""
    if name is None:
        yield
        return
    number = getattr(signal, name)
    before = signal.signal(number, lambda *_: child.send_signal(number))
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def stopping_gently(sweep: Path) -> Iterator[None]:
    """Until exit a signal lets running jobs write their checkpoints and starts no other; a second one ends all."""
    file = sweep / STOPPING_FILE
    file.unlink(missing_ok=True)
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before: dict[int, Any] = {}

    def tell(number: int, _frame: object) -> None:
        file.write_text(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)

    before |= {number: signal.signal(number, tell) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        file.unlink(missing_ok=True)


def pool_for(config: DictConfig, jobs: Sequence[Sequence[str]], jobs_per_device: int) -> Pool:
    """The cards of this machine, looked for only if one of `jobs` (overrides) may want one."""
    typed = OmegaConf.select(config, "policy.device") if "policy" in config else "cpu"
    words = [[word.partition("=") for word in job] for job in jobs]
    asked = [{key: value for key, _, value in job}.get("policy.device", typed) for job in words]
    return find_pool(jobs_per_device) if any(map(wants_card, asked)) else Pool()


def side_by_side(typed: int | None, pool: Pool) -> int:
    """How many jobs run at once: as typed, else one a slot, else one a core up to `MOST_JOBS`."""
    if typed is not None and typed < 1:
        raise ConfigError(f"hydra.launcher.n_jobs={typed}: type 1 or more, or null to have it chosen")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return typed or len(pool.slots) or min(cores, MOST_JOBS)


def _child() -> None:
    """Run what stdin holds, as the launcher's process would."""
    setup_globals()
    task, cfg, state = pickle.load(sys.stdin.buffer)
    Singleton.set_state(state)
    hydra: Any = HydraConfig.get()
    configure_log(hydra.job_logging, hydra.verbose)
    task(cfg)


if __name__ == "__main__":
    _child()
