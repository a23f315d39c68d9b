"""Batches in an order that (seed, step, rank) alone decides, from this process or from workers."""

import itertools
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lerobot.errors import ConfigError, RunError

Batch = dict[str, Tensor]

_WORKER_GONE = re.compile(r"DataLoader worker \(pid.*\) (exited unexpectedly|is killed by signal: (Killed|Bus error))")
GRACE_S = 60
"""How long a worker outlives a termination signal."""


class BatchedDataset(Protocol):
    """What a loader reads from."""

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once."""
        ...


class Sampler:
    """Which samples make up each micro-batch of one rank.

    The samples of all ranks form one endless row: epoch after epoch, each a fresh permutation of all of them.
    Micro-batch `step` takes the next `world_size * batch_size` of the row, `batch_size` for each rank. So every batch
    is full, one may span two epochs, and nothing has to be replayed or stored to go on at any step. `skipped` samples
    of the row come before micro-batch 0: of an earlier part of the run, however many ranks it had.
    """

    def __init__(
        self, num_samples: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1, skipped: int = 0
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.skipped = skipped
        self._epochs: dict[int, np.ndarray] = {}

    def indices(self, step: int) -> list[int]:
        """The samples of micro-batch `step`, counted from 0."""
        first = self.skipped + (step * self.world_size + self.rank) * self.batch_size
        epochs, places = np.divmod(np.arange(first, first + self.batch_size), self.num_samples)
        order = {epoch: self._order(epoch) for epoch in range(epochs[0], epochs[-1] + 1)}
        self._epochs = order
        return [int(order[epoch][place]) for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)]

    def _order(self, epoch: int) -> np.ndarray:
        """The permutation of one epoch, from a generator of its own; those of the last step are kept."""
        if epoch in self._epochs:
            return self._epochs[epoch]
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_samples)


@contextmanager
def open_loader(
    dataset: BatchedDataset,
    sampler: Sampler,
    *,
    start: int = 0,
    num_workers: int = 0,
    prefetch_factor: int = 4,
    pin_memory: bool = False,
) -> Iterator[Iterator[Batch]]:
    """An endless iterator over the batches of micro-batch `start` and on; leaving it ends the workers.

    Each worker prepares `prefetch_factor` batches ahead. The batches are the same for any number of workers. `dataset`
    is pickled to each, which never is a fork of this process: decoders and locks do not survive one.
    """
    if num_workers == 0:
        yield _batches_here(dataset, sampler, start, pin_memory)
        return
    loader = DataLoader(
        _Batches(dataset),
        sampler=_Steps(sampler, start),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        multiprocessing_context=_context(),
        worker_init_fn=_set_up_worker,
        generator=torch.Generator(),  # else it would draw from the one that dropout uses
    )
    batches: Any = iter(loader)
    try:
        yield _unwrapped(batches, f"num_workers={num_workers} and prefetch_factor={prefetch_factor}")
    finally:
        batches._shutdown_workers()


def _batches_here(dataset: BatchedDataset, sampler: Sampler, start: int, pin_memory: bool) -> Iterator[Batch]:
    for step in itertools.count(start):
        batch = dataset.__getitems__(sampler.indices(step))
        yield {key: value.pin_memory() for key, value in batch.items()} if pin_memory else batch


def _unwrapped(batches: Iterator[Batch | ConfigError], settings: str) -> Iterator[Batch]:
    """The batches; what was refused in a worker is raised here, and a worker that is gone is told of."""
    try:
        for batch in batches:
            if isinstance(batch, ConfigError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not _WORKER_GONE.search(str(error)):
            raise
        raise RunError(
            f"a process that loads data was ended from outside, as the system does where memory runs out ({settings}): "
            "type num_workers=<fewer>, prefetch_factor=<fewer>, or a smaller batch_size; in a container, give it more "
            "shared memory too (docker run --shm-size=8g)"
        ) from error


class _Steps:
    """The index lists of a sampler from `start` on, without end."""

    def __init__(self, sampler: Sampler, start: int) -> None:
        self.sampler = sampler
        self.start = start

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.sampler.indices, itertools.count(self.start))


class _Batches(Dataset):
    """A dataset whose items are whole batches."""

    def __init__(self, dataset: BatchedDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, indices: list[int]) -> Batch | ConfigError:
        try:
            return self.dataset.__getitems__(indices)
        except ConfigError as error:  # raised in a worker, it would arrive wrapped in a traceback
            return error


def _as_it_is(batch: Any) -> Any:
    return batch


def _context() -> Any:
    """Workers start from a clean process that has imported torch once, or, on Windows, each from nothing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "lerobot.data.reader"])
    return context


def _set_up_worker(_worker: int) -> None:
    """One thread each; and a signal sent to the whole process group leaves the workers to the main process.

    That one ends them when it has saved what it wants to save. Should it never come to it, they end by themselves,
    and also when it is killed.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_S))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # torch watches the parent's process id, which in a fork server's child is the server's.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
