"""The processes of a run: one alone, or the ranks that a launcher started, and what they tell each other.

What the ranks say of numbers and decisions goes over a group of its own on the processor, which waits without an end:
a slow evaluation or a slow disk of one rank ends no collective of the others.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lerobot.accelerator.parallel_config import LOST, ParallelismConfig, is_rank
from lerobot.errors import ConfigError, RunError
from lerobot.signals import ended_by_signals

T = TypeVar("T")
ENDLESS = timedelta(days=30)
POLL_S = 0.5
GRACE_S = 10.0
"""How long a rank has to leave by itself after another one failed; one that waits for a card never would."""
SETTLE_S = 3.0
"""How long a rank that lost another one waits for that one's own words."""
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOST = re.compile(r"gloo|Connection (closed|reset) by peer|Broken pipe|NCCL|Timed out waiting|TCPStore|recvValue")
_FAILED = "failed"
_runs = itertools.count()


class World:
    """The processes of a run. This is a run in one: what it asks of all, it asks of itself."""

    rank = 0
    local_rank = 0
    size = 1
    on_lost: Callable[[str], object] = staticmethod(lambda _text: None)
    """Called on rank 0 before it is ended because another failed."""

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes and speaks."""
        return self.rank == 0

    def first(self, job: Callable[..., Any]) -> Callable[..., Any]:
        """`job` on rank 0; nothing on the others."""
        return job if self.is_first else lambda *_args, **_kwargs: None

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on each of them."""
        return [value]

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """As `gather` for as many numbers on each rank, in one collective."""
        return [list(numbers)]

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return flag

    def says(self, value: T) -> T:
        """The value of rank 0."""
        return value

    def wait(self) -> None:
        """Return when all ranks have come here."""

    def start_sum(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Begin to add up numbers over the ranks; what is returned waits for the sums."""
        return lambda: list(numbers)

    def after_first(self, job: Callable[[], T]) -> T:
        """`job`, done by rank 0 before the others do it, as where a file is fetched."""
        return job()

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what one rank raises ends all of them, each with that rank's words."""
        return contextlib.nullcontext()


ALONE = World()


class Ranks(World):
    """Several processes, with a process group open."""

    def __init__(self, store: "dist.Store", settings: ParallelismConfig) -> None:
        number = {name: int(os.environ[name]) for name in _RANKS[:4]}
        self.rank, self.local_rank, self.size = number["RANK"], number["LOCAL_RANK"], number["WORLD_SIZE"]
        self._store = store
        self._host: Any = None
        self._timeout_s = settings.timeout_s

    def join(self) -> None:
        """Meet the others. A signal meanwhile ends this process: what waits in the store hears nothing."""
        timeout = timedelta(seconds=self._timeout_s)
        with ended_by_signals():
            dist.init_process_group(
                _backend(), store=self._store, rank=self.rank, world_size=self.size, timeout=timeout
            )
            self._host = dist.new_group(backend="gloo", timeout=ENDLESS)

    def gather(self, value: T) -> list[T]:
        """See `World`."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._host)
        return values

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """See `World`."""
        own = torch.tensor(numbers, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(rows, own, group=self._host)
        return [row.tolist() for row in rows]

    def any(self, flag: bool) -> bool:
        """See `World`."""
        return self.start_sum([float(flag)])()[0] > 0

    def says(self, value: T) -> T:
        """See `World`."""
        values: list[Any] = [value]
        dist.broadcast_object_list(values, group=self._host)
        return values[0]

    def wait(self) -> None:
        """See `World`."""
        self.any(False)

    def start_sum(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """See `World`."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        work: Any = dist.all_reduce(sums, group=self._host, async_op=True)

        def wait() -> list[float]:
            work.wait()
            return sums.tolist()

        return wait

    def after_first(self, job: Callable[[], T]) -> T:
        """See `World`."""
        if self.is_first:
            result = job()
            self.wait()
            return result
        self.wait()
        return job()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """See `World`. One that only lost another waits for that one's words, and takes them for its own."""
        try:
            yield
        except Exception as error:
            if not _is_lost(error):
                if self.tell(error) or isinstance(error, (ConfigError, RunError)):
                    raise
                raise (self._told() or error) from error  # that one's traceback is shown already
            if (told := self._told()) is not None:
                raise told from error
            text = " ".join(str(error).split())[:200]
            slow = "imed out" in text
            lost = RunError(
                f"another process of the run hangs, it did not answer within parallelism.timeout_s={self._timeout_s:g} "
                f"({text}): type more if it was only slow"
                if slow
                else f"{LOST}: {text}"
            )
            self.tell(lost)
            raise lost from error

    def tell(self, error: BaseException) -> bool:
        """Say why this rank leaves; whether it is the first to leave."""
        kind = "refused" if isinstance(error, ConfigError) else "failed"
        own = isinstance(error, (ConfigError, RunError))
        text = " ".join(str(error).split())
        words = {"rank": self.rank, "kind": kind, "text": text if own else f"{type(error).__name__}: {text}"}
        with contextlib.suppress(RuntimeError):  # the store may be gone with its rank
            return json.loads(self._store.compare_set(_FAILED, "", json.dumps(words)))["rank"] == self.rank
        return False

    def _told(self) -> Exception | None:
        with contextlib.suppress(RuntimeError):
            self._store.wait([_FAILED], timedelta(seconds=SETTLE_S))
            return _as_error(self._store.get(_FAILED))
        return None


def _as_error(stored: bytes) -> Exception:
    words = json.loads(stored)
    kind = ConfigError if words["kind"] == "refused" else RunError
    return kind(f"process {words['rank']} {words['kind']}: {words['text']}")


def _is_lost(error: BaseException) -> bool:
    """Whether `error` says no more than that another process is not there."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and bool(_LOST.search(str(error))))


@contextlib.contextmanager
def open_world(settings: ParallelismConfig) -> Iterator[World]:
    """The world of this process, from what a launcher says in the environment; its process group ends on exit.

    Raises `ConfigError` where the number of processes is not one that `settings` are for.
    """
    if not is_rank():
        settings.shape(1)
        yield ALONE
        return
    size = int(os.environ["WORLD_SIZE"])
    settings.shape(size)
    if settings.nproc not in (None, "auto", int(os.environ.get("LOCAL_WORLD_SIZE", size))):
        raise ConfigError(
            f"parallelism.nproc={settings.nproc} starts processes and a launcher has started {size}: "
            "type parallelism.nproc=null under torchrun"
        )
    number = next(_runs)
    with ended_by_signals():
        store = shared_store()
    world = Ranks(dist.PrefixStore(f"run{number}", store), settings)
    watch = _Watch(number, world)
    try:
        world.join()
        yield world
        world.wait()  # nobody leaves while rank 0 still writes
    except BaseException as error:
        world.tell(error)
        raise
    finally:
        watch.close()
        if dist.is_initialized():
            dist.destroy_process_group()


class _Watch:
    """Ends this process where another one failed and it does not notice, as in a collective on a card."""

    def __init__(self, number: int, world: Ranks) -> None:
        self.is_over = threading.Event()
        client = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self._store = dist.PrefixStore(_prefix(), dist.PrefixStore(f"run{number}", client))
        self._world = world
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; a thread that is inside the store would break the end of this process."""
        self.is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self.is_over.wait(POLL_S):
            try:
                failed = self._store.check([_FAILED])
            except RuntimeError:  # whoever kept the store is gone
                failed = True
            if failed and not self.is_over.wait(GRACE_S):
                self._world.first(self._world.on_lost)("another process of the run failed")
                os._exit(1)


def _prefix() -> str:
    """Where the launcher's own store keeps what its workers say."""
    return f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def check_build() -> None:
    """Refuse several processes where PyTorch was built for one, as for Jetson and partly for Windows."""
    if not dist.is_available():
        raise ConfigError(
            "this build of PyTorch has no torch.distributed, so a run has one process: leave out parallelism.nproc, "
            "and start without torchrun"
        )


@functools.cache
def shared_store() -> "dist.Store":
    """What all ranks read and write before, beside and after their process groups. Raises `ConfigError`."""
    check_build()
    if missing := [name for name in _RANKS if name not in os.environ]:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is for one of several processes, without {', '.join(missing)}: "
            "`unset WORLD_SIZE`, or start them with torchrun or `accelerate launch`"
        )
    for name in (*_RANKS[:4], "MASTER_PORT"):
        if not os.environ[name].isdigit():
            raise ConfigError(f"{name}={os.environ[name]} is no number: `unset WORLD_SIZE` for one process")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
    hosts = os.environ["RANK"] == "0" and not hosted
    store = dist.TCPStore(address, port, is_master=hosts, wait_for_workers=False)
    store.set_timeout(ENDLESS)  # from here on: to find the first process takes five minutes at most
    return dist.PrefixStore(_prefix(), store)


def _backend() -> str:
    """Gloo between processors, and what the card here has between cards, opened when first used."""
    card = torch.accelerator.current_accelerator(check_available=True)
    if card is None or card.type not in ("cuda", "xpu"):
        return "gloo"
    return f"cpu:gloo,{card.type}:{dist.get_default_backend_for_device(card.type)}"
