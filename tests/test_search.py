"""`hydra/sweeper=optuna`: short real searches, then what became of each trial."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from runs import TINY

from lerobot.command import main
from lerobot.errors import ConfigError
from lerobot.report.folders import read_folders
from lerobot.search_space import Settings, read_space
from lerobot.status import running
from lerobot.sweep.table import outcomes
from lerobot.tracking.jsonl import JsonlSink

SEARCH = {
    "metric": "train/loss",
    "direction": "minimize",
    "take": "last",
    "n_trials": 4,
    "n_jobs": 1,
    "storage": "sqlite:///study.db",
    "study_name": "search",
    "seed": 0,
    "pruning": True,
    "startup_trials": 2,
    "poll_s": 0.02,
    "params": None,
}


@pytest.fixture
def search(monkeypatch):
    """Runs `lerobot-train -m hydra/sweeper=optuna` in folder `s` with `work` as its job; returns status and study."""
    from lerobot.train import work as train

    def run(*words, work=train, **settings):
        typed = [f"hydra.sweeper.{key}={value}" for key, value in {**SEARCH, **settings}.items() if value is not None]
        place = [] if any(word.startswith("output_dir=") for word in words) else ["hydra.sweep.dir=s"]
        line = [*TINY, "steps=3", "hydra/sweeper=optuna", *place, *typed, *words]
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *line])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        file = Path("study.db")
        study = optuna.load_study(study_name="search", storage="sqlite:///study.db") if file.exists() else None
        return left.value.code, study

    return run


def job(curve):
    """A job that logs `curve(config)`, a value a step, and heeds a request to stop, as a run does."""

    def work(config):
        from lerobot.signals import stop_on_signals

        folder = Path(config.output_dir)
        sink = JsonlSink(folder / "metrics.jsonl")
        with running(folder) as final, stop_on_signals() as stop:
            for step, value in enumerate(curve(config), start=1):
                sink.log({"step": step, "train/loss": value})
                stop.heed(folder)
                if stop():
                    final.state = "stopped"
                    break
        sink.close()
        return final.state

    return work


def states(study):
    return [trial.state.name for trial in study.trials]


@pytest.mark.slow
def test_a_search_continues_with_other_points_in_other_folders(search, capfd):
    words = ["policy.optimizer_lr=tag(log,interval(1e-5,1e-2))", "precision=no,bf16"]
    status, study = search(*words, n_trials=2)
    assert (status, states(study)) == (0, ["COMPLETE"] * 2)
    first = {path: path.stat().st_mtime_ns for path in Path("s").glob("*/metrics.jsonl")}

    status, study = search(*words, n_trials=4)

    assert (status, states(study)) == (0, ["COMPLETE"] * 4)
    assert len({trial.params["policy.optimizer_lr"] for trial in study.trials}) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in first.items())
    jobs = {int(path.parent.name.partition("_")[0]): path for path in Path("s").glob("*/metrics.jsonl")}
    assert sorted(jobs) == [0, 1, 2, 3]
    for trial in study.trials:
        rows = [json.loads(line) for line in jobs[trial.number].read_text().splitlines()]
        assert trial.value == rows[-1]["train/loss"]
        assert rows[-1]["train/lr"] == trial.params["policy.optimizer_lr"]
    assert f"best of 4: job {study.best_trial.number} with train/loss=" in "".join(capfd.readouterr())


@pytest.mark.slow
def test_failures_refusals_and_nan_are_failed_trials_and_end_nothing(search):
    def curve(config):
        number = int(Path(config.output_dir).name.partition("_")[0])
        if number == 0:
            raise RuntimeError("this one breaks")
        if number == 1:
            raise ConfigError("this one is refused: type another")
        return [math.nan if number == 2 else 0.5]

    status, study = search("seed=0,1", work=job(curve), pruning=False)

    assert (status, states(study)) == (1, ["FAIL", "FAIL", "FAIL", "COMPLETE"])


def test_a_job_behind_the_median_is_stopped_and_counts_as_pruned(search):
    import time

    def curve(config):
        bad = len([path for path in Path("s").glob("[0-9]*") if path.is_dir()]) > 3
        for step in range(1, 200 if bad else 4):
            time.sleep(0.02 if bad else 0)
            yield (100.0 if bad else 1.0) / step

    status, study = search("seed=range(0,1000)", work=job(curve), n_trials=4, startup_trials=1)

    assert states(study) == ["COMPLETE", "COMPLETE", "COMPLETE", "PRUNED"]
    stopped = json.loads(next(Path("s").glob("3_*/status.json")).read_text())
    assert (stopped["state"], stopped["pruned"]) == ("stopped", True)
    assert status == 0
    assert [row.state for row in outcomes(Path("s"))] == ["done", "done", "done", "pruned"]
    assert [record.state for record in read_folders([Path("s")])] == ["done", "done", "done", "pruned"]


def test_a_real_run_heeds_a_request_to_stop_with_a_checkpoint(train, monkeypatch):
    """The road of a pruned job: as a signal's, once at a log row."""
    from lerobot.runner import Training

    real = Training.log

    def log(self, step):
        if step == 2:
            (self.run_dir / "stop").touch()
        real(self, step)

    monkeypatch.setattr(Training, "log", log)
    run = train()

    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"], (run / "stop").exists()) == ("stopped", 3, False)
    assert (run / "checkpoints" / "000003").is_dir()


@pytest.mark.slow
def test_a_job_that_a_signal_stopped_goes_on_in_its_folder_when_the_search_does(search, monkeypatch):
    """It was a failed trial, and its training lost."""
    import signal

    begun = []

    def curve(config):
        begun.append((Path(config.output_dir).name, config.resume))
        if len(begun) == 2:
            signal.raise_signal(signal.SIGTERM)
        return [1.0, 1.0]

    status, study = search("seed=range(0,1000)", work=job(curve))
    assert (status, states(study)) == (75, ["COMPLETE", "RUNNING"])
    study.ask()  # as a kill would leave it, before its job had begun

    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", "sweep.resume=s"])
    with pytest.raises(SystemExit) as left:
        main("train", job(curve))

    study = optuna.load_study(study_name="search", storage="sqlite:///study.db")
    assert (left.value.code, states(study)) == (0, ["COMPLETE"] * 4)
    assert begun[2] == (begun[1][0], "auto")
    assert [name.partition("_")[0] for name, _ in begun] == ["0", "1", "1", "2", "3"]


@pytest.mark.slow
def test_folders_of_a_search_say_what_was_chosen(search):
    """They were all called cpu_no."""
    words = ["policy.optimizer_lr=tag(log,interval(1e-5,1e-2))", "precision=no,bf16"]
    search(*words, work=job(lambda _: [1.0]), n_trials=2)

    for trial in optuna.load_study(study_name="search", storage="sqlite:///study.db").trials:
        lr, precision = trial.params["policy.optimizer_lr"], trial.params["accelerator.mixed_precision"]
        assert Path(f"s/{trial.number}_cpu_{precision}_lr{lr:.3g}").is_dir()


def test_a_search_for_what_no_job_logs_ends_after_the_first(search, capfd):
    """A typo trained all of them and left with 0."""
    status, study = search("seed=range(0,1000)", work=job(lambda _: [1.0]), metric="train/los")

    (said,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert (status, states(study)) == (2, ["FAIL"])
    assert "hydra.sweeper.metric=train/los is not logged" in said
    assert "type hydra.sweeper.metric=train/loss" in said


@pytest.mark.slow
def test_a_search_goes_on_where_output_dir_names_it(search):
    done = job(lambda _: [1.0])
    assert search("seed=range(0,9)", "output_dir=o", work=done, n_trials=1)[0] == 0
    status, study = search("seed=range(0,9)", "output_dir=o", work=done, n_trials=3)

    assert (status, states(study)) == (0, ["COMPLETE"] * 3)
    assert len(list(Path("o").glob("*/metrics.jsonl"))) == 3


def test_what_a_search_space_is_read_as():
    space = read_space(
        Settings.of({**SEARCH, "params": {"precision": "no,bf16", "seed": "range(0,3)", "steps": 7}}),
        ["a=tag(log,interval(1e-5,1e-2))", "b=int(interval(1,8))", "c=range(0,1,0.5)", "seed=5", "d=7"],
        OverridesParser.create(),
    )

    assert space.fixed == ["steps=7", "seed=5", "d=7"]
    assert space.searched == {
        "accelerator.mixed_precision": CategoricalDistribution(["no", "bf16"]),
        "a": FloatDistribution(1e-5, 1e-2, log=True),
        "b": IntDistribution(1, 8),
        "c": CategoricalDistribution(["0.0", "0.5"]),
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seed=1,2", "hydra.sweeper.direction=up"], "type maximize or minimize"),
        (["seed=1,2", "hydra.sweeper.n_trials=0"], "type a whole number of at least 1"),
        (["seed=1,2", "+hydra.sweeper.trials=3"], "trials is no setting of the search"),
        (["policy.dropout=tag(log,interval(0,1))"], "is no space"),
        (["batch_size=interval(1,8)"], "batch_size is a whole number: type batch_size=int(interval(1,8))"),
        (["batch_size=tag(log,range(16,129,16))"], "no steps: type tag(log,int(interval(16,128)))"),
        (["batch_size=range(16,16)"], "holds no value"),
        (["batch_size=range(8,16,0)"], "is no list of values"),
        (["policy.optimizer_lr=tag(lgo,interval(1e-5,1e-2))"], "has the tag lgo"),
        (["policy.optimizer_lr=interval(1e-4,inf)"], "its ends are not finite"),
        (["seed=1,2", "hydra.sweeper.storage=foo"], "storage=foo cannot be used"),
        (["seed=1,2", "hydra.sweeper.storage=sqlite:////nonexistent/x.db"], "unable to open database file"),
        (["seed=1,2", "precision=fp16"], "precision=fp16 does not work on device=cpu"),
        (["seed=1"], "nothing is searched"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_in_one_sentence(search, capfd, words, says):
    status, _ = search(*words)

    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert len(said) == 1
    assert says in said[0]


def test_a_value_that_fits_no_job_is_a_failed_trial_and_a_group_is_searched_by_its_names(search, capfd):
    """The search ended at the first one, and each way on burnt another trial; fixed words were in the folders' names."""
    status, study = search(
        "policy=act,act_small", "batch_size=4,abc", work=job(lambda _: [0.5]), n_trials=5, seed=2, pruning=False
    )

    assert status == 2
    assert sorted({*states(study)}) == ["COMPLETE", "FAIL"]
    assert {*study.best_params} == {"policy", "batch_size"}
    folders = {path.parent.name[2:]: json.loads(path.read_text())["state"] for path in Path("s").glob("*/status.json")}
    assert {name.partition("_batch")[0] for name in folders} == {"act", "act_small"}
    assert {state for name, state in folders.items() if name.endswith("abc")} == {"refused"}


def test_a_study_that_was_cut_off_is_one_sentence(search, capfd):
    assert search("seed=1,2", work=job(lambda _: [0.5]), n_trials=1)[0] == 0
    Path("study.db").write_bytes(Path("study.db").read_bytes()[:3000])
    with pytest.raises(Exception, match="malformed"):  # of the fixture, which reads it too
        search("seed=1,2", work=job(lambda _: [0.5]), n_trials=2)

    assert "error: hydra.sweeper.storage=sqlite:///study.db cannot be used" in capfd.readouterr().err


def test_the_other_direction_of_a_stored_study_is_refused(search, capfd):
    search("seed=1,2", work=job(lambda config: [1.0]), n_trials=1)
    status, _ = search("seed=1,2", work=job(lambda config: [1.0]), direction="maximize")

    assert status == 2
    assert "type hydra.sweeper.direction=minimize" in capfd.readouterr().err


def test_what_a_job_comes_to_is_its_last_or_its_best_finite_value():
    rows = [
        {"step": 1, "train/loss": 2.0},
        {"step": 2, "train/loss": 1.0},
        {"step": 3, "train/loss": 3.0},
        {"step": 4, "train/loss": None},
    ]

    assert Settings.of(SEARCH).value(rows) == 3.0
    assert Settings.of({**SEARCH, "take": "best"}).value(rows) == 1.0
    assert Settings.of({**SEARCH, "metric": "eval/success_rate"}).value(rows) is None


def test_listing_the_plugins_imports_none_of_the_heavy_ones():
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance(); "
        "print(sorted({'optuna', 'joblib', 'submitit', 'torch'} & sys.modules.keys()), "
        "'hydra_plugins.lerobot_optuna_sweeper' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert said.stdout == "[] True\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweep.dry_run=true"], "sweep.dry_run=true is of a grid"),
        (["sweep.mode=zip"], "sweep.mode=zip is of a grid"),
        (["sweep.on_error=stop"], "sweep.on_error=stop is of a grid"),
        (["hydra.sweeper.metric=eval/success_rate"], "needs a simulator: add env=metaworld"),
    ],
)
def test_what_a_search_does_not_do_is_refused_before_anything_runs(search, capfd, words, says):
    """A dry run trained."""
    settings = {"metric": None} if "metric" in words[0] else {}
    status, study = search("seed=1,2", *words, work=lambda _: pytest.fail("a job ran"), **settings)

    assert (status, study) == (2, None)
    assert says in capfd.readouterr().err
    assert not Path("s").exists()


def test_a_study_goes_on_with_the_words_that_began_it(search, capfd):
    done = job(lambda _: [0.5])
    assert search("seed=1,2,3", "batch_size=4", work=done, n_trials=2)[0] == 0
    for words in (["seed=1,2,3", "batch_size=8"], ["seed=1,2", "batch_size=4"]):
        assert search(*words, work=done, n_trials=3)[0] == 2
        assert "holds a search with other words" in capfd.readouterr().err
    assert search("seed=1,2,3", "batch_size=4", work=done, n_trials=3)[0] == 0
