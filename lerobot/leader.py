"""How the processes that torchrun started come to one config: the first composes it, the others wait for it.

Only the first reads the command line, makes a folder and speaks. Imports torch only where there are several.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lerobot.accelerator.parallel_config import is_rank, rank_of
from lerobot.errors import ConfigError, RunError
from lerobot.signals import ended_by_signals

_CONFIG = "config"
GRACE_S = 60.0
POLL_S = 1.0


@contextmanager
def leading() -> Iterator[Callable[[Any], Any]]:
    """Inside, what is given hands a config to the other processes; on exit they leave too if none was given."""
    if not is_rank():
        yield lambda config: config
        return
    become_rank()
    from lerobot.accelerator.parallel import shared_store

    store: Any = shared_store()
    shared = False

    def share(config: Any) -> Any:
        nonlocal shared
        shared = True
        store.set(_CONFIG, pickle.dumps(config))
        return config

    try:
        yield share
    finally:
        if not shared:
            store.set(_CONFIG, pickle.dumps(None))


def follow(work: Callable[[Any], str]) -> str:
    """Work on the config of the first process, without a word but for what is wrong here; return the final state."""
    become_rank()
    from lerobot.accelerator.parallel import shared_store

    with ended_by_signals():
        config = pickle.loads(shared_store().get(_CONFIG))
    return "done" if config is None else in_silence(work, config)


def in_silence(work: Callable[[Any], str], config: Any) -> str:
    """`work`, of which the first process says what a user is to read; only errors are shown from here."""
    logging.basicConfig(level=logging.ERROR, format=f"process {rank_of()}: %(message)s", force=True)
    warnings.simplefilter("ignore")
    try:
        return work(config)
    except ConfigError:
        return "refused"
    except RunError:
        return "failed"


def become_rank() -> None:
    """What each of several processes of a machine owes to the others: to leave threads over, and not to outlive all."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else a rank that is gone fills the screen
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // local)))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Stop as on a signal when the launcher is gone, and end where that takes too long."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    print(f"error: process {rank_of()} is ended, its launcher is gone", file=sys.stderr)  # noqa: T201
    os._exit(1)
