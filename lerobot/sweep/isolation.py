"""What keeps one job from the next: a clean process state, or a process of its own."""

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lerobot.signals import stop_on_signals
from lerobot.status import now, read_status, write_status
from lerobot.sweep.table import NOT_RUN

log = logging.getLogger(__name__)


@contextmanager
def fresh() -> Iterator[None]:
    """Begin with the memory of the job before released; put the environment variables back on exit."""
    gc.collect()  # a run's objects refer to each other
    if "torch" in sys.modules:
        from lerobot.accelerator.stack import release_memory

        release_memory()
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def run_in_process(command: str, config: Any, logging_config: dict[str, Any]) -> str:
    """Run `config` in a process of its own and return its final state; a process that dies costs this job alone.

    Signals are handed on, so that the job writes its checkpoint; the second one ends it at once.
    """
    folder = Path(config.output_dir)
    child = subprocess.Popen(
        [sys.executable, "-m", "lerobot.sweep.job"],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},  # noqa: PTH109
        start_new_session=True,  # the terminal's ctrl-C would reach it twice
    )
    assert child.stdin is not None
    with stop_on_signals(child.send_signal) as stop:
        try:
            pickle.dump((command, config, logging_config), child.stdin)
            child.stdin.flush()  # and left open: its end tells the job that this process is gone
        except BrokenPipeError:
            log.debug("the process of %s ended before it began", folder.name)
        code = child.wait()
    state = read_status(folder).get("state")
    if code < 0 and stop() and state in (None, NOT_RUN):  # before it could begin
        write_status(folder, state=NOT_RUN)
    elif state in (None, NOT_RUN, "running"):
        write_status(folder, state="failed", error=_in_words(code), ended=now())
        log.error("%s: %s", folder.name, _in_words(code))
    return read_status(folder)["state"]


def _in_words(code: int) -> str:
    if code >= 0:
        return f"its process left with status {code}"
    name = signal.Signals(-code).name
    memory = " (as the system does when memory is full)" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{memory}"
