"""A run ends by itself before its time is over, with a checkpoint, and the next job goes on."""

import json
import math
import time

import pytest
from runs import TINY

import lerobot
from lerobot import time_limit
from lerobot.errors import ConfigError, RunError
from lerobot.evaluation import Evaluator
from lerobot.time_limit import Deadline, seconds


class Clock:
    """Seconds that pass when they are told to."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of the deadline; the process is 5 s old."""
    clock = Clock()
    monkeypatch.setattr(time_limit, "clock", clock)
    monkeypatch.setattr(time_limit, "process_age_s", lambda: 5.0)
    return clock


@pytest.fixture
def ten_seconds_an_update(clock, monkeypatch):
    from lerobot.policies.act import ACTPolicy

    real = ACTPolicy.loss

    def loss(self, batch, *counts):
        clock.now += 10
        return real(self, batch, *counts)

    monkeypatch.setattr(ACTPolicy, "loss", loss)


def status(run):
    return json.loads((run / "status.json").read_text())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, math.inf),
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("45m", 2700),
        ("3h30m", 12600),
        ("1d", 86400),
        ("0:45:00", 2700),
        ("36:00:00", 129600),
        ("1-12:00:00", 129600),
    ],
)
def test_durations_are_read_in_every_form(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", [0, -1, True, "", "3 hours", "30m3h", "2:30", "1-2", "0:61:00", "inf", "nan", "0s"])
def test_other_durations_are_refused_with_the_forms(text):
    with pytest.raises(ConfigError, match=r"time_limit=.*: type seconds, or a duration such as 45m, 3h30m, 3:30:00 or"):
        seconds(text)


@pytest.mark.parametrize(
    "word", ["time_limit=1-12:00:00", "--time_limit=36:00:00", "time_limit=36h", "time_limit=129600"]
)
def test_they_are_typed_without_quotes_and_stay_as_typed(word):
    config = lerobot.compose("train", [*TINY, word])

    assert str(config.time_limit) == word.partition("=")[2]
    assert seconds(config.time_limit) == 129600


def test_it_leaves_time_for_an_update_and_a_checkpoint_twice_as_slow_as_any_before(clock):
    deadline = Deadline("10m")  # ends at 1595: the process is 5 s old
    deadline.took("update", 4.0)
    deadline.took("update", 1.0)
    for saved, reserve in ((None, 2 * (4 + 10) + 10), (20.0, 2 * (4 + 20) + 10)):
        if saved is not None:
            deadline.took("save", saved)
        clock.now = 1595 - reserve
        assert not deadline.has_come()
    clock.now += 0.1
    assert deadline.has_come()


def test_without_a_limit_it_never_comes(clock):
    deadline = Deadline()
    clock.now = 1e12

    assert not deadline.has_come()
    assert not deadline.puts_off_evaluation()


def test_the_process_is_older_than_its_first_import():
    assert 0 < time_limit.process_age_s() < 24 * 3600


def test_a_run_stops_before_its_time_is_over_and_the_next_job_goes_on(train, rows, ten_seconds_an_update, caplog):
    run = train("steps=20", "time_limit=0:02:00", "resume=auto")

    # After update 9 the process is 95 s old, 25 are left and 30 wanted: twice a first save, and 10.
    assert (status(run)["state"], status(run)["step"]) == ("stopped", 9)
    assert (run / "checkpoints" / "last").resolve().name == "000009"
    assert "time_limit=0:02:00: stopping, 25 s before it is over" in caplog.text
    train("steps=20", "time_limit=10m", "resume=auto")
    assert (status(run)["state"], status(run)["step"]) == ("done", 20)
    assert [row["step"] for row in rows(run)] == list(range(1, 21))


def test_the_command_leaves_with_75(ten_seconds_an_update, monkeypatch):
    from lerobot.command import main
    from lerobot.train import work

    monkeypatch.setattr("sys.argv", ["lerobot-train", *TINY, "time_limit=40", "output_dir=run"])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    assert left.value.code == 75


class Episodes(Evaluator):
    """Ten batches of episodes, each of which takes `each_s`."""

    def __init__(self, clock, each_s):
        self.clock, self.each_s, self.rolled = clock, each_s, []

    def evaluate(self, policy, step, tracker, autocast, stop):
        batches = 0
        while batches < 10 and not stop():
            batches += 1
            self.clock.now += self.each_s
        self.rolled.append((step, batches))


@pytest.fixture
def episodes(monkeypatch, clock):
    def make(each_s):
        evaluator = Episodes(clock, each_s)
        monkeypatch.setattr("lerobot.runner.make_evaluator", lambda *_: evaluator)
        return evaluator

    return make


def test_an_evaluation_that_will_not_fit_is_not_begun(train, ten_seconds_an_update, episodes, monkeypatch, caplog):
    monkeypatch.setattr("lerobot.runner.time.perf_counter", time_limit.clock)
    evaluator = episodes(each_s=10)
    run = train("steps=8", "env_eval_freq=2", "time_limit=400", "env=metaworld")

    # 20 s and 100 s, twice: 135 s are left to the third, which needs 100, 20 for a slow batch and 50 for what follows.
    assert evaluator.rolled == [(2, 10), (4, 10)]
    assert "135 s are left and the evaluation, which took 100 s before, is left to the next job" in caplog.text
    assert (status(run)["state"], status(run)["step"]) == ("stopped", 6)  # with the evaluation of 6 still to come


def test_an_evaluation_that_takes_too_long_is_interrupted_between_episodes(train, ten_seconds_an_update, episodes):
    evaluator = episodes(each_s=15)
    run = train("steps=8", "env_eval_freq=2", "save_freq=1", "time_limit=150", "env=metaworld")

    # 125 s are left, and it goes on while twice a batch (30 s) and 10 s are.
    assert evaluator.rolled == [(2, 6)]
    assert (status(run)["state"], status(run)["step"]) == ("stopped", 2)


def test_what_is_left_out_after_the_last_update_leaves_the_run_stopped(
    train, ten_seconds_an_update, episodes, monkeypatch
):
    monkeypatch.setattr("lerobot.runner.time.perf_counter", time_limit.clock)
    evaluator = episodes(each_s=10)
    run = train("steps=4", "env_eval_freq=2", "time_limit=200", "env=metaworld")

    assert evaluator.rolled == [(2, 10)]
    assert (status(run)["state"], status(run)["step"]) == ("stopped", 4)


def test_a_limit_in_which_nothing_fits_is_refused_and_not_begun_again_for_ever():
    with pytest.raises(ConfigError, match="time_limit=39s: type 40 s or more"):
        lerobot.compose("train", [*TINY, "time_limit=39s"])


def test_a_limit_shorter_than_the_evaluation_that_is_owed_ends_the_run(
    train, ten_seconds_an_update, episodes, tmp_path
):
    """Each job would make the same part of it, and none would go on."""
    episodes(each_s=15)
    words = ["steps=8", "env_eval_freq=2", "save_freq=1", "env=metaworld"]
    run = train(*words, "time_limit=150")
    assert (status(run)["state"], status(run)["step"]) == ("stopped", 2)

    with pytest.raises(RunError, match="time_limit=100 is too short for an evaluation"):
        lerobot.run(lerobot.compose("train", [f"resume={run}", "time_limit=100"]))

    assert status(run)["state"] == "failed"
    lerobot.run(lerobot.compose("train", [f"resume={run}", "time_limit=null"]))
    assert status(run)["state"] == "done"


def test_a_signal_after_the_time_limit_is_the_first_one(clock):
    """The scheduler's own comes while the last checkpoint is written, and must not end the process there."""
    import signal

    from lerobot.signals import stop_on_signals

    with stop_on_signals() as stop:
        stop.deadline = Deadline(60)
        clock.now += 59
        assert stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()


def test_the_limit_counts_from_the_command_and_not_from_the_process_that_it_started(monkeypatch):
    own = time_limit.process_age_s()
    monkeypatch.setenv(time_limit.COMMAND_BEGAN, str(time.time() - own - 1000))

    assert time_limit.process_age_s() == pytest.approx(own + 1000, abs=5)
