"""A sweep that goes on is the one that was begun, and a line that means another one is told what differs."""

import json
from pathlib import Path

import pytest
from runs import TINY

from lerobot.command import main
from lerobot.sweep import run
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
