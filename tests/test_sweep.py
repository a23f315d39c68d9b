"""A sweep runs every combination that can work, and says what became of the others."""

import json

import pytest
from runs import TINY

from lerobot.command import main
from lerobot.train import work


def sweep(monkeypatch, *words):
    """Run `lerobot-train -m` in this process; returns its status and its jobs' folders."""
    from pathlib import Path

    from lerobot import sweep as ended

    base = [word for word in TINY if not word.startswith("device=")]
    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *base, "steps=2", *words])
    monkeypatch.setattr(ended.Ending, "folder", None)
    with pytest.raises(SystemExit) as left:
        main("train", work)
    folder = Path(ended.Ending.folder)
    return left.value.code, ended.job_folders(folder)


def facts(job):
    return json.loads((job / "run.json").read_text())


def test_each_job_has_its_own_precision_and_an_impossible_one_stops_no_other(monkeypatch, capfd):
    status, jobs = sweep(monkeypatch, "precision=no,fp16,bf16", "device=cpu")

    states = [json.loads((job / "status.json").read_text())["state"] for job in jobs]
    assert (status, states) == (2, ["done", "refused", "done"])
    assert [job.name for job in jobs] == ["0_cpu_no", "1_cpu_fp16", "2_cpu_bf16"]
    assert [facts(jobs[i])["forward_dtype"] for i in (0, 2)] == ["float32", "bfloat16"]
    shown = capfd.readouterr().err
    assert shown.count("refused") >= 2
    assert "type precision=bf16" in " ".join(shown.split())


def test_a_failing_job_is_reported_in_its_own_log_and_the_rest_runs(monkeypatch):
    """HYD-02: the job's own log was empty and one error of many was shown."""
    from lerobot.policies.act import ACTPolicy

    real = ACTPolicy.loss

    def loss(self, batch):
        if self.config.dropout == 0.2:
            raise RuntimeError("the second job breaks")
        return real(self, batch)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    status, jobs = sweep(monkeypatch, "policy.dropout=0.1,0.2,0.3", "device=cpu")

    assert status == 1
    states = [json.loads((job / "status.json").read_text())["state"] for job in jobs]
    assert states == ["done", "failed", "done"]
    log = (jobs[1] / "train.log").read_text()
    assert "Traceback" in log
    assert "the second job breaks" in log


def test_a_job_repeats_the_same_run_made_alone(monkeypatch, train, rows):
    _, jobs = sweep(monkeypatch, "seed=1,2", "device=cpu")
    alone = train("steps=2", "seed=2")

    assert rows(jobs[1])[-1]["train/loss"] == rows(alone)[-1]["train/loss"]
