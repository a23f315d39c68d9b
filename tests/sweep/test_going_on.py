"""A sweep that goes on is the one that was begun, and a line that means another one is told what differs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import TINY

from lerobot.cli import translate
from lerobot.command import main
from lerobot.status import write_status
from lerobot.sweep import run
from lerobot.sweep.halt import go_on
from lerobot.sweep.jobs import Job, Sweep, write_sweep
from lerobot.sweep.table import show, state_of
from lerobot.train import work

BASE = [word for word in TINY if not word.startswith(("device=", "steps="))]


@pytest.fixture
def grid(tmp_path):
    """A folder with `experiment=grid`, whose seeds can be changed."""
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)

    def write(seeds):
        text = f'# @package _global_\nhydra:\n  sweeper:\n    params:\n      seed: "{seeds}"\n'
        (folder / "grid.yaml").write_text(text)
        return f"hydra.searchpath=[file://{tmp_path / 'mine'}]"

    return write


@pytest.fixture
def going_on(monkeypatch, capfd):
    """Runs `lerobot-train -m sweep.resume=s <words>`; returns its status, its settings and its last line."""
    found = []
    real = run._settings

    def settings(config, words):
        found.append((real(config, words), config.hydra.runtime.choices["hydra/launcher"]))
        return found[-1][0]

    monkeypatch.setattr(run, "_settings", settings)

    def go(*words):
        capfd.readouterr()
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", "sweep.resume=s", "sweep.dry_run=true", *words])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        said = capfd.readouterr()
        return left.value.code, found[-1] if found else None, (said.err or said.out).splitlines()[-1]

    return go


@pytest.mark.slow
def test_the_words_about_a_sweep_are_recalled_too_and_may_be_typed_anew(sweep, grid, going_on):
    """The line that was printed dropped isolation, launcher and searchpath, and so did something else."""
    about = ["sweep.on_error=stop", "sweep.isolate=null", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]
    path = grid("0")
    assert sweep("experiment=grid", path, *about[:2], "device=cpu", "steps=1", "output_dir=s", base=BASE)[0] == 0
    stored = json.loads(Path("s/sweep.json").read_text())
    stored["words"] += about[2:]
    Path("s/sweep.json").write_text(json.dumps(stored))

    assert {path, *about[:2]} <= set(stored["words"])
    status, (settings, launcher), _ = going_on()
    assert (status, settings.on_error, launcher) == (0, "stop", "joblib")
    status, (settings, launcher), _ = going_on("sweep.on_error=continue", "hydra/launcher=basic")
    assert (status, settings.on_error, launcher) == (0, "continue", "basic")

    status, _, said = going_on("steps=200")
    assert status == 2
    assert "holds another sweep, steps=200 (there: 1): type" in said

    grid("0,1,2")
    status, _, said = going_on()
    assert status == 2
    assert (
        "follow from a file that has changed" in said and "means 3 jobs and there are 1, 2 of them new (seed=" in said
    )


def test_a_list_of_jobs_that_holds_no_words_is_one_error(going_on, tmp_path):
    (tmp_path / "s").mkdir()
    for words in ("null", "[1]", "{}"):
        text = f'{{"command": "train", "flags": [], "words": {words}, "jobs": []}}'
        (tmp_path / "s" / "sweep.json").write_text(text)
        status, _, said = going_on()
        assert (status, "sweep.json cannot be read" in said) == (2, True)


def test_a_job_that_was_stopped_is_that_until_its_turn_comes(sweep, monkeypatch, tmp_path):
    """A pass that was killed before its turn left it as not run, and nobody knew of its checkpoint."""
    write_sweep_of(tmp_path / "s", "stopped", "failed")
    monkeypatch.setattr(run, "_launch", lambda *_: None)
    _, jobs = sweep("sweep.resume=s", base=())

    assert [state_of(job) for job in jobs] == ["stopped", "not run"]
    go_on(SimpleNamespace(resume=None), jobs[0])
    assert state_of(jobs[0]) == "not run"


def test_a_job_whose_checkpoints_are_torn_is_told_how_to_run_it_anew(tmp_path, capfd):
    write_sweep_of(tmp_path / "s", "refused", "refused")
    (tmp_path / "s" / "0_seed0" / "checkpoints" / "000002").mkdir(parents=True)
    show(tmp_path / "s")

    assert "remove its folder to run it anew: 0_seed0\n" in capfd.readouterr().err


def write_sweep_of(folder, *states):
    """A sweep over the seed whose jobs are in these states."""
    folder.mkdir()
    words = [*BASE, "device=cpu", "steps=2"]
    listed = [[*translate(["-m", *words]).overrides(), f"seed={seed}"] for seed in range(len(states))]
    jobs = [Job(seed, f"{seed}_seed{seed}", overrides) for seed, overrides in enumerate(listed)]
    seeds = ",".join(map(str, range(len(states))))
    write_sweep(folder, Sweep("train", [], [*listed[0][:-1], f"seed={seeds}"], jobs))
    for job, state in zip(jobs, states, strict=True):
        write_status(folder / job.folder, state=state)
