"""Several ranks for a test: forks of this warm process, joined by gloo. What they do is a function, what it returns comes back."""

import os
import pickle
import select
import signal
import socket
import time
import traceback
from contextlib import suppress

import lerobot
import lerobot.runner
from lerobot.accelerator import parallel


class LostError(Exception):
    """A rank raised, or did not come back."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(number, job):
    """Fork `number` ranks; rank to (process id, pipe)."""
    port = free_port()
    ranks = {}
    for rank in range(number):
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            _work(job, rank, number, port, writes)
        os.close(writes)
        ranks[rank] = (pid, reads)
    return ranks


def _work(job, rank, number, port, pipe):
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})
    parallel.shared_store.cache_clear()
    try:
        answer = True, job(rank)
    except BaseException as error:
        answer = False, (type(error).__name__, str(error), traceback.format_exc())
    with os.fdopen(pipe, "wb") as file:
        file.write(pickle.dumps(answer))
    os._exit(0)


def finish(ranks, timeout):
    """What each rank gave: (whether it went well, its value or what it raised); None where it gave nothing."""
    until, answers = time.monotonic() + timeout, {}
    try:
        for rank, (_, pipe) in ranks.items():
            whole = b""
            while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                if not (part := os.read(pipe, 1 << 20)):
                    break
                whole += part
            answers[rank] = pickle.loads(whole) if whole else None
    finally:
        for pid, pipe in ranks.values():
            os.close(pipe)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return answers


def on_ranks(number, job, timeout=90):
    """`job(rank)` on each of `number` ranks; the values in their order."""
    answers = finish(start(number, job), timeout)
    for rank, answer in answers.items():
        if answer is None or not answer[0]:
            raise LostError(f"rank {rank}: {answer and answer[1][2]}")
    return [answer[1] for answer in answers.values()]


def train_on(number, words, before=lambda _rank: None):
    """Train `words` in the tests' way on so many ranks; `before` is called in each. Returns the run's folder."""
    config = lerobot.compose("train", words)

    def job(rank):
        before(rank)
        return lerobot.run(config)

    if number == 1:
        before(0)
        return lerobot.run(config)
    return on_ranks(number, job)[0]
