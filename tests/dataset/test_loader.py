"""The order of samples is a function of (seed, step, rank), and workers change nothing but the time."""

import itertools
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from lerobot.data.loader import Sampler, open_loader
from lerobot.data.reader import LeRobotDataset
from lerobot.errors import ConfigError, RunError

DATA = Path(__file__).parents[1] / "data"


def row(sampler, steps):
    return list(itertools.chain.from_iterable(sampler.indices(step) for step in steps))


@pytest.mark.parametrize("batch_size", [1, 4, 5, 23, 50])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_epoch_covers_every_sample_once_over_all_ranks(batch_size, world_size):
    n = 23
    ranks = [Sampler(n, batch_size, 7, rank, world_size) for rank in range(world_size)]
    samples = [i for step in range(60) for rank in ranks for i in rank.indices(step)]
    for first in range(0, len(samples) - n + 1, n):
        assert sorted(samples[first : first + n]) == list(range(n))


def test_every_batch_is_full_even_where_the_dataset_is_smaller():
    sampler = Sampler(3, 8, 0)
    assert [len(sampler.indices(step)) for step in range(5)] == [8] * 5
    assert sorted(row(sampler, range(3))) == sorted([0, 1, 2] * 8)


@pytest.mark.parametrize("stop", [1, 5, 6, 12, 13])  # 23 samples by 4: mid epoch, around its end, and in the next ones
@pytest.mark.parametrize("world_size", [1, 2])
def test_going_on_at_any_step_gives_the_uninterrupted_row(stop, world_size):
    """CKPT-07."""
    for rank in range(world_size):
        whole = row(Sampler(23, 4, 3, rank, world_size), range(20))
        begun = row(Sampler(23, 4, 3, rank, world_size), range(stop))
        assert begun + row(Sampler(23, 4, 3, rank, world_size), range(stop, 20)) == whole


def test_the_order_differs_by_seed_and_by_epoch_and_draws_from_no_shared_generator():
    """DIST-07."""
    sampler = Sampler(100, 100, 0)
    before = torch.random.get_rng_state()
    first = sampler.indices(0)
    torch.rand(1000)
    assert sampler.indices(0) == first
    torch.random.set_rng_state(before)
    assert first != sampler.indices(1)
    assert first != Sampler(100, 100, 1).indices(0)


@pytest.fixture(scope="module")
def cameras():
    deltas = {"action": list(range(4)), "observation.images.corner2": [-1, 0]}
    return LeRobotDataset(DATA / "metaworld_push_multifile", delta_indices=deltas, return_uint8=True)


def take(dataset, workers, start, count):
    with open_loader(dataset, Sampler(len(dataset), 16, 0), start=start, num_workers=workers) as batches:
        return list(itertools.islice(batches, count))


def test_workers_give_the_same_batches_and_leave_the_random_state_alone(cameras):
    """DATA-03, CKPT-07."""
    before = torch.random.get_rng_state()
    here, there = take(cameras, 0, 20, 13), take(cameras, 2, 20, 13)
    assert torch.equal(before, torch.random.get_rng_state())
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(value, other[key]), key
    assert not multiprocessing.active_children()


def test_workers_are_no_forks_of_this_process_and_outlive_signals_to_the_whole_group(cameras):
    with open_loader(cameras, Sampler(len(cameras), 4, 0), num_workers=2) as batches:
        for _ in range(6):
            next(batches)
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        assert all("fork" not in type(w).__name__.lower().replace("forkserver", "") for w in workers)
        for worker in workers:
            os.kill(worker.pid, signal.SIGINT)
            os.kill(worker.pid, signal.SIGTERM)
        assert all(next(batches)["action"].shape == (4, 4, 4) for _ in range(20))
    assert not multiprocessing.active_children()


class Damaged:
    def __getitems__(self, indices):
        raise ConfigError("file-000.mp4 cannot be decoded: copy it again")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_one_sentence_from_a_worker_too(workers):
    with open_loader(Damaged(), Sampler(8, 2, 0), num_workers=workers) as batches, pytest.raises(ConfigError) as error:
        next(batches)
    assert str(error.value) == "file-000.mp4 cannot be decoded: copy it again"


class Greedy:
    def __getitems__(self, indices):
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does where memory runs out


def test_a_worker_that_the_system_ended_is_one_sentence(monkeypatch):
    looks = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(looks, "__defaults__", (0.2,))  # how often a worker is looked after, 5 s
    with open_loader(Greedy(), Sampler(8, 2, 0), num_workers=1) as batches, pytest.raises(RunError) as error:
        next(batches)
    assert "(num_workers=1 and prefetch_factor=4)" in str(error.value)
    assert "type num_workers=<fewer>, prefetch_factor=<fewer>, or a smaller batch_size" in str(error.value)
