"""A folder is read as far as it can be read, and what cannot be is said."""

import json
import math

import pytest
from filelock import FileLock

from lerobot.errors import ConfigError
from lerobot.report.folders import read_folders
from lerobot.report.record import read_run


def test_a_run_says_what_it_did(make_run):
    folder = make_run("0_x", "steps=200", "+batch_size=4", seed=3, losses=(1.0, 0.2, 0.5), solved=[True, False, True])
    run = read_run(folder, "0_x")

    assert (run.state, run.step, run.seed, run.overrides["batch_size"]) == ("done", 300, 3, "4")
    assert (run.final_loss, run.best_loss, run.outcome) == (0.5, 0.2, (2, 3))
    assert (run.wall_s, run.samples_per_s) == (90.0, 1000.0)
    assert not run.notes


def test_rows_that_were_not_finite_are_no_numbers(make_run):
    run = read_run(make_run("0_x", losses=(1.0, None, None)), "0_x")

    assert math.isnan(run.final_loss)
    assert run.best_loss == 1.0


def test_a_run_that_was_killed_has_failed_and_one_that_is_running_has_not(make_run):
    folder = make_run("0_x", state="running")
    (folder / ".lock").touch()
    assert read_run(folder, "0_x").state == "failed"
    assert "killed" in read_run(folder, "0_x").error

    with FileLock(folder / ".lock"):
        assert read_run(folder, "0_x").state == "running"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"step": 1}\nrubbish\n{"step": 2}\n', "- a\n  b: {", "\x00"])
@pytest.mark.parametrize(
    "file", ["status.json", "run.json", "metrics.jsonl", "eval/episodes.jsonl", ".hydra/overrides.yaml"]
)
def test_a_garbled_file_costs_its_own_cells_only(make_run, file, content):
    folder = make_run("0_x", "steps=200", losses=(1.0, 0.5), solved=[True, False])
    whole = read_run(folder, "0_x")
    (folder / file).write_text(content)
    run = read_run(folder, "0_x")

    assert all(file in note for note in run.notes)
    parts = {
        "status.json": run.state == whole.state,
        "run.json": run.facts == whole.facts,
        "metrics.jsonl": run.final_loss == whole.final_loss,
        "eval/episodes.jsonl": run.episodes == whole.episodes,
        ".hydra/overrides.yaml": run.overrides == whole.overrides,
    }
    assert all(same for part, same in parts.items() if part != file)
    if file != "metrics.jsonl":  # its row of the evaluation says the same
        assert run.outcome == (1, 2)


def test_jobs_that_left_nothing_are_listed(make_run, tmp_path):
    for number, words in ((0, ["steps=1"]), (3, ["steps=2"])):
        make_run(f"{number}_x", "picture=False", "lr=0.0001", *words, seed=number % 2)
    sweep = tmp_path / "sweep"
    assert [run.state for run in read_folders([sweep])] == ["done", "missing", "missing", "done"]

    as_typed = ["picture=false", "lr=1e-4"]
    # With Hydra's record of the sweep, also what they were to do, and those after the last one.
    (sweep / "multirun.yaml").write_text(
        json.dumps({"hydra": {"overrides": {"task": [*as_typed, "steps=1,2,3", "seed=0,1"]}}})
    )
    runs = read_folders([sweep])
    assert [run.name for run in runs] == ["0_x", "1", "2", "3_x", "4", "5"]
    assert runs[5].overrides == {"picture": "False", "lr": "0.0001", "steps": "3", "seed": "1"}

    (sweep / "multirun.yaml").write_text(
        json.dumps({"hydra": {"overrides": {"task": [*as_typed, "steps=9,2,3", "seed=0,1"]}}})
    )
    assert len(read_folders([sweep])) == 4  # of another sweep: what is there is believed


def test_a_job_that_died_before_it_began_is_missing(make_run, tmp_path):
    (make_run("0_x") / "status.json").unlink()

    assert read_folders([tmp_path / "sweep"])[0].state == "missing"


def test_runs_of_several_folders_keep_their_names_apart(make_run, tmp_path):
    make_run("a/0_x")
    make_run("b/0_x")
    make_run("c")
    runs = read_folders([tmp_path / "sweep" / name for name in "abc"])

    assert len({run.name for run in runs}) == 3


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_runs_is_refused(tmp_path, name):
    (tmp_path / "empty" / "some").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{name} .*type the folder of a run"):
        read_folders([tmp_path / name])


def test_metrics_that_are_garbled_as_a_whole_are_said_so(make_run):
    """The run was listed without numbers and without a word."""
    folder = make_run("0_x")
    (folder / "metrics.jsonl").write_text("rubbish\n")

    assert read_run(folder, "0_x").notes == ["metrics.jsonl cannot be read (it holds no whole row)"]
