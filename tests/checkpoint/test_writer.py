"""A checkpoint is whole or not there, whatever happens while it is written, and training does not wait for it."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from faults import BORNE, DONE, GONE, TOLD, in_fork, save_with

from lerobot.accelerator.config import GradScalerConfig
from lerobot.checkpoint import folders, training_state
from lerobot.checkpoint.config import CheckpointConfig
from lerobot.checkpoint.paths import find_pretrained, has_checkpoints
from lerobot.checkpoint.pretrained import load_policy
from lerobot.checkpoint.training_state import Progress, load_checkpoint, take_snapshot
from lerobot.checkpoint.writer import open_checkpoints
from lerobot.errors import ConfigError, RunError
from lerobot.tracking.sink import Sink
from lerobot.tracking.tracker import Tracker

PEER = Path(__file__).parents[1] / "data/peer_checkpoints/act_state"


class Training:
    """A policy and its optimizer whose every number is the step."""

    def __init__(self):
        self.policy = load_policy(PEER / "pretrained_model")
        self.optimizer = torch.optim.AdamW(self.policy.parameter_groups(), lr=0.0)
        for parameter in self.policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()

    @torch.no_grad()
    def at(self, step):
        for parameter in self.policy.parameters():
            parameter.fill_(step)
            self.optimizer.state[parameter]["exp_avg"].fill_(step)
        return self

    def save(self, step, checkpoints):
        checkpoints.hold()
        self.at(step)
        snapshot = take_snapshot(Progress(step), self.policy, self.optimizer, None, {}, checkpoints.copy)
        checkpoints.write(snapshot)


@pytest.fixture(scope="module")
def training():
    return Training()


@contextlib.contextmanager
def opened(run, tracker=None, resumed=None, **settings):
    config = CheckpointConfig(**settings)
    with open_checkpoints(run, config, tracker or Tracker(), pinned=False, resumed=resumed) as checkpoints:
        yield checkpoints


def save(training, run, *steps, resumed=None, **settings):
    with opened(run, resumed=resumed, **settings) as checkpoints:
        for step in steps:
            training.save(step, checkpoints)


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def newest(run, training, path=""):
    """The step that a run goes on from, after all that is in its checkpoint has been looked at."""
    folder = find_pretrained(run / path).parent
    progress, _ = load_checkpoint(folder, training.optimizer, None, GradScalerConfig())
    held = {float(value) for p in load_policy(folder).parameters() for value in p.detach().unique()}
    moments = {float(value) for entry in training.optimizer.state.values() for value in entry["exp_avg"].unique()}
    assert held == moments
    return progress.step, held.pop()


def every_fault(fault, run, job, stride):
    """Yield after each operation at which `fault` comes; what was in the run's folder is there again each time."""
    template = shutil.copytree(run, run.with_name("template"), symlinks=True)
    for at in range(1, 300, stride):
        shutil.rmtree(run)
        shutil.copytree(template, run, symlinks=True)
        status = save_with(fault, at, job, run)
        assert status in (DONE, BORNE, TOLD, GONE)
        yield status
        if status == DONE:
            assert at > 30
            return


EACH = pytest.param(1, marks=pytest.mark.slow)
"""Operation; the strides beside it are a taste."""


@pytest.fixture
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("stride", [6, EACH])
@pytest.mark.parametrize("fault", ["exit", "EIO", "ENOSPC"])
def test_whatever_happens_while_saving_the_checkpoint_before_is_there(tmp_path, training, no_fsync, fault, stride):
    """CKPT-12: half-written files were picked as the newest."""
    run = tmp_path / "run"
    save(training, run, 2)
    for status in every_fault(fault, run, lambda: save(training, run, 4, resumed=Path("2")), stride):
        step, held = newest(run, training)
        assert step == held
        assert step == 4 if status in (DONE, BORNE) else step in (2, 4)
        folders.tidy(run / "checkpoints")
        assert set(names(run)) <= {"000002", "000004", "last"}
        assert newest(run, training, "checkpoints/last") == (step, held)


@pytest.mark.parametrize("stride", [10, EACH])
@pytest.mark.parametrize("fault", ["exit", "EIO"])
def test_a_checkpoint_that_is_written_again_is_there_all_the_time(tmp_path, training, no_fsync, fault, stride):
    """CKPT-12: old data was deleted before the new was complete."""
    run = tmp_path / "run"
    save(training, run, 2, 4)

    def again():
        with opened(run, resumed=Path("2")) as checkpoints:
            training.at(5)
            checkpoints.write(
                take_snapshot(Progress(4), training.policy, training.optimizer, None, {}, checkpoints.copy)
            )

    for status in every_fault(fault, run, again, stride):
        step, held = newest(run, training)
        assert step == 4
        assert held == 5 if status in (DONE, BORNE) else held in (4, 5)
        assert newest(run, training, "checkpoints/last") == (4, held)
        folders.tidy(run / "checkpoints")
        assert names(run) == ["000002", "000004", "last"]
        assert newest(run, training) == (4, held)


def test_a_file_that_the_disk_has_no_room_for_is_told_of(tmp_path, training):
    """CKPT-12: the disk is full in the middle of the weights."""
    import resource

    def job():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        save(training, tmp_path, 4, resumed=Path("2"))

    save(training, tmp_path, 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    assert in_fork(job) == TOLD
    assert newest(tmp_path, training) == (2, 2.0)
    assert names(tmp_path) == ["000002", "last"]


def kill_while_saving(training, run, kills, rng):
    """Kill as many saving processes at random moments; each goes on from what the one before left."""
    save(training, run, 1)
    step = 1
    for _ in range(kills):
        reader, writer = os.pipe()

        class Told(Sink):
            def checkpoint(self, step, folder, writer=writer):
                os.write(writer, f"{step}\n".encode())

        pid = os.fork()
        if pid == 0:
            try:
                with opened(run, Tracker([Told()]), resumed=Path(str(step)), keep=2) as checkpoints:
                    for later in range(step, step + 1000):  # the first is written again
                        training.save(later, checkpoints)
            finally:
                os._exit(70)
        os.close(writer)
        pipe = os.fdopen(reader)
        told = [step, *(int(pipe.readline()) for _ in range(rng.randrange(4)))]
        time.sleep(rng.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        with pipe:
            told += map(int, pipe.read().split())
        step, held = newest(run, training)
        assert step == held
        assert step >= told[-1]
    return step


def test_kills_while_saving_lose_nothing(tmp_path, training):
    """CKPT-12: a taste of the slow one."""
    assert kill_while_saving(training, tmp_path, 10, random.Random(0)) > 5


@pytest.mark.slow
def test_two_hundred_kills_while_saving_lose_nothing(tmp_path, training):
    """CKPT-12: killed at any moment, a run has the last checkpoint that it told of, or a newer one, whole."""
    assert kill_while_saving(training, tmp_path, 200, random.Random(1)) > 100


def test_a_save_that_is_slow_to_write_holds_the_weights_of_its_step(tmp_path, training, monkeypatch):
    writes, go = training_state.write_checkpoint, threading.Event()

    def slow(run_dir, snapshot):
        assert go.wait(10)
        return writes(run_dir, snapshot)

    monkeypatch.setattr("lerobot.checkpoint.writer.write_checkpoint", slow)
    with opened(tmp_path) as checkpoints:
        training.save(2, checkpoints)
        checkpoints.hold()
        training.at(3)
        assert not has_checkpoints(tmp_path)
        go.set()
    assert newest(tmp_path, training) == (2, 2.0)


def test_saves_use_the_same_memory_one_at_a_time(tmp_path, training, monkeypatch):
    seen, writes = [], training_state.write_checkpoint

    def watched(run_dir, snapshot):
        seen.append(("begins", snapshot.progress.step, {v.data_ptr() for v in snapshot.weights.values()}))
        time.sleep(0.05)
        folder = writes(run_dir, snapshot)
        seen.append(("ends", snapshot.progress.step, None))
        return folder

    monkeypatch.setattr("lerobot.checkpoint.writer.write_checkpoint", watched)
    save(training, tmp_path, 1, 2, 3)
    assert [entry[:2] for entry in seen] == [(what, step) for step in (1, 2, 3) for what in ("begins", "ends")]
    assert seen[0][2] == seen[2][2] == seen[4][2]
    assert seen[0][2].isdisjoint(p.data_ptr() for p in training.policy.parameters())


def test_without_background_the_call_writes(tmp_path, training):
    with opened(tmp_path, background=False) as checkpoints:
        training.save(2, checkpoints)
        assert newest(tmp_path, training) == (2, 2.0)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoints")]


def broken(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("look", ["poll", "wait"])
def test_what_went_wrong_in_the_thread_is_raised_by_the_next_call(tmp_path, training, monkeypatch, look):
    monkeypatch.setattr("lerobot.checkpoint.writer.write_checkpoint", broken)
    with opened(tmp_path) as checkpoints:
        training.save(2, checkpoints)
        checkpoints._thread.shutdown()  # by now it has happened
        with pytest.raises(RunError, match=r"No space left on device.*resume="):
            getattr(checkpoints, look)()


def test_what_went_wrong_in_the_thread_is_raised_at_the_end(tmp_path, training, monkeypatch):
    monkeypatch.setattr("lerobot.checkpoint.writer.write_checkpoint", broken)
    with pytest.raises(RunError, match="No space left"), opened(tmp_path) as checkpoints:
        training.save(2, checkpoints)


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_thread(tmp_path, training, monkeypatch, caplog):
    monkeypatch.setattr("lerobot.checkpoint.writer.write_checkpoint", broken)

    def fail():
        with opened(tmp_path) as checkpoints:
            training.save(2, checkpoints)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "No space left" in caplog.text


def test_the_tracker_hears_of_whole_checkpoints_alone_and_in_its_own_thread(tmp_path, training):
    heard = []

    class Listener(Sink):
        def checkpoint(self, step, folder):
            heard.append((step, folder.name, threading.current_thread() is threading.main_thread()))
            assert newest(tmp_path, training, f"checkpoints/{folder.name}")[0] == step

    with opened(tmp_path, Tracker([Listener()])) as checkpoints:
        training.save(2, checkpoints)
        assert not heard
        training.save(4, checkpoints)
    assert heard == [(2, "000002", True), (4, "000004", True)]


@pytest.mark.parametrize("kind", [OSError, NotImplementedError])
def test_where_links_fail_the_pointers_are_files(tmp_path, training, monkeypatch, kind):
    def refuse(self, target):
        raise kind("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    tracker = Tracker()
    with opened(tmp_path, tracker, best="eval/success_rate") as checkpoints:
        for step, rate in ((2, 0.5), (4, 0.25)):
            tracker.log(step, {"eval/success_rate": rate})
            training.save(step, checkpoints)
    root = tmp_path / "checkpoints"
    assert (root / "last").read_text() == "000004\n"
    assert (root / "best").read_text() == "000002\n"
    for path, step in (("", 4), ("checkpoints", 4), ("checkpoints/last", 4), ("checkpoints/best/pretrained_model", 2)):
        assert newest(tmp_path, training, path) == (step, float(step))
    assert has_checkpoints(tmp_path)

    (root / "best").write_text("../../elsewhere")
    with pytest.raises(ConfigError, match="best"):
        find_pretrained(root / "best")


def test_a_copy_that_followed_the_links_is_refused_before_training(tmp_path, training):
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    with pytest.raises(ConfigError, match="last is a folder and no link"), opened(tmp_path):
        pass


def test_the_newest_and_the_best_are_kept(tmp_path, training):
    tracker = Tracker()
    with opened(tmp_path, tracker, keep=2, best="eval/success_rate") as checkpoints:
        for step, rate in ((2, 0.1), (4, 0.9), (6, 0.9), (8, 0.2), (10, float("nan"))):
            training.save(step, checkpoints)
            tracker.log(step, {"eval/success_rate": rate})
            checkpoints.note(step)
            checkpoints.settle()
    assert names(tmp_path) == ["000004", "000008", "000010", "best", "last"]
    assert newest(tmp_path, training, "checkpoints/best")[0] == 4
    assert newest(tmp_path, training)[0] == 10


def test_what_a_run_went_on_from_and_what_it_left_stay(tmp_path, training):
    save(training, tmp_path, 2, 4, 6, 8)
    save(training, tmp_path, 5, 6, 7, resumed=Path("000004"), keep=1)
    assert names(tmp_path) == ["000004", "000007", "000008", "last"]
    assert newest(tmp_path, training) == (7, 7.0)


@pytest.mark.parametrize(
    ("metric", "best_is", "step"),
    [("train/loss", "auto", 4), ("eval/l1_error", "auto", 4), ("train/loss", "highest", 2), ("eval/x", "lowest", 4)],
)
def test_losses_and_errors_are_better_lower(tmp_path, training, metric, best_is, step):
    tracker = Tracker()
    with opened(tmp_path, tracker, best=metric, best_is=best_is) as checkpoints:
        for at, value in ((2, 3.0), (4, 1.0), (6, 2.0)):
            tracker.log(at, {metric: value})
            training.save(at, checkpoints)
    assert newest(tmp_path, training, "checkpoints/best")[0] == step
