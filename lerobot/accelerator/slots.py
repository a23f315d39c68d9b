"""Which job gets which card: a slot is a file lock, so that it holds between processes and a dead one lets go of it.

A job that holds a slot sees its card alone, through the variable that its PyTorch obeys, set before torch starts: that
is why the slot is taken outside the process that uses it. Imports torch only in the process that counts the cards.
"""

import getpass
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lerobot.errors import RunError

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""What decides on the cards that a process sees, by PyTorch build."""
POLL_S = 0.2


@dataclass(frozen=True)
class Pool:
    """The cards that jobs may have. Empty where jobs share one device that is not a card, such as a processor."""

    backend: str = "cpu"
    cards: tuple[str, ...] = ()
    """In the words of the variable: indices, or the identities that were in it."""
    jobs_per_device: int = 1

    @property
    def slots(self) -> list[tuple[str, int]]:
        """(card, place on it), first places first, so that jobs spread out."""
        return [(card, place) for place in range(self.jobs_per_device) for card in self.cards]

    def environment(self, card: str, before: Mapping[str, str]) -> dict[str, str]:
        """`before`, with `card` as the only one to be seen."""
        seen = {**before, VARIABLES[self.backend]: card}
        if self.backend == "rocm":  # it obeys NVIDIA's variable too, which counts among the cards left by its own
            seen.pop(VARIABLES["cuda"], None)
        return seen


def find_pool(jobs_per_device: int, environment: Mapping[str, str] = os.environ) -> Pool:
    """The cards that PyTorch finds in a process of its own: this one stays without torch."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, env=dict(environment))
    if done.returncode:
        raise RunError(f"the cards cannot be counted: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    backend, number = json.loads(done.stdout.splitlines()[-1])
    return pool_of(backend, number, jobs_per_device, environment)


def pool_of(backend: str, number: int, jobs_per_device: int, environment: Mapping[str, str]) -> Pool:
    """The pool of `number` cards that are seen now. What is visible already is kept: 2,3 has the cards 2 and 3."""
    named = [VARIABLES[backend]] if backend in VARIABLES else []
    named += [VARIABLES["cuda"]] if backend == "rocm" else []
    listed = next((environment[name].split(",") for name in named if environment.get(name)), [])
    cards = [word.strip() for word in listed] or [str(index) for index in range(number)]
    return Pool(backend, tuple(cards[:number]), jobs_per_device)


def wants_card(device: str | None) -> bool:
    """Whether `device=` may mean a card."""
    return device != "cpu"


@contextmanager
def slot(pool: Pool, device: str | None, folder: Path | None = None) -> Iterator[dict[str, str] | None]:
    """Hold a free card for a job on `device` until exit; yields the environment that shows it, None where none is free.

    A typed index (cuda:1) is that card, and the job sees them all, as it counts them. folder: of the locks.
    """
    if not (pool.cards and wants_card(device)):
        yield dict(os.environ)
        return
    index = re.fullmatch(r"\w+:(\d+)", device or "")
    wanted = [(card, place) for card, place in pool.slots if not index or card in pool.cards[int(index[1]) :][:1]]
    if not wanted:  # the run itself says that there is no such card
        yield dict(os.environ)
        return
    folder = folder or lock_folder()
    for card, place in wanted:
        lock = FileLock(folder / f"{pool.backend}-{re.sub(r'[^0-9A-Za-z.-]', '_', card)}.{place}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            yield dict(os.environ) if index else pool.environment(card, os.environ)
        finally:
            lock.release()
        return
    yield None


@contextmanager
def waited_slot(pool: Pool, device: str | None, give_up: Callable[[], bool]) -> Iterator[dict[str, str] | None]:
    """As `slot`, but waits for a free card; yields None only where `give_up` says so."""
    while True:
        with slot(pool, device) as environment:
            if environment is not None or give_up():
                yield environment
                return
        time.sleep(POLL_S)


def lock_folder() -> Path:
    """Where the locks of this machine are: of this user, whatever the sweep."""
    folder = Path(tempfile.gettempdir()) / f"lerobot-slots-{getpass.getuser()}"
    folder.mkdir(exist_ok=True)
    return folder


def count() -> tuple[str, int]:
    """The backend that this PyTorch build has cards of, and how many it finds."""
    from lerobot.accelerator.device import machine

    found = [device for device in machine().devices if device.backend in VARIABLES]
    return (found[0].backend, len(found)) if found else ("cpu", 0)


if __name__ == "__main__":
    print(json.dumps(count()))  # noqa: T201
