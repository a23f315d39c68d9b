"""Runs sweeps in this process."""

import json
from pathlib import Path

import pytest
from runs import TINY

from lerobot.command import main
from lerobot.sweep.table import Ending, job_folders
from lerobot.train import work

BASE = [word for word in TINY if not word.startswith(("device=", "steps="))]


@pytest.fixture
def sweep(monkeypatch):
    """Runs `lerobot-train -m`; returns its status and its jobs' folders."""

    def run(*words, base=(*BASE, "steps=2")):
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *base, *words])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        return left.value.code, job_folders(Path(Ending.folder)) if Ending.folder else []

    return run


@pytest.fixture
def on_update(monkeypatch):
    """Calls `act(policy, number)` before the loss of each update, counted over the jobs of the sweep from 1."""
    from lerobot.policies.act import ACTPolicy

    real, calls = ACTPolicy.loss, []

    def use(act):
        def loss(self, batch):
            calls.append(1)
            act(self, len(calls))
            return real(self, batch)

        monkeypatch.setattr(ACTPolicy, "loss", loss)

    return use


@pytest.fixture
def status():
    """Reads a job's `status.json`."""
    return lambda job: json.loads((job / "status.json").read_text())
