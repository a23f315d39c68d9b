"""A sweep ends with its best policy judged anew, once."""

import os
import signal

import pytest

from lerobot import eval_runner
from lerobot.command import main
from lerobot.report.findings import find
from lerobot.report.folders import read_folders
from lerobot.status import write_status
from lerobot.train import work


@pytest.mark.slow
def test_a_judging_that_was_cut_short_is_done_anew_and_one_that_ended_is_kept(sweep, status, monkeypatch, capfd):
    """Each later pass said that the best was not judged, also where it was, and a stopped one left with 0."""
    from lerobot.report import winner

    monkeypatch.setattr(winner, "LEAST_EPISODES", 3)
    short = ["env=metaworld", "env.task=push-v3", "env.episode_length=3", "eval.n_episodes=1", "eval.videos=0"]
    code, jobs = sweep(*short, "policy.kl_weight=1,2", "device=cpu", "output_dir=s")
    place = jobs[0].parent / "winner"
    assert (code, status(place)["state"]) == (0, "done")

    began = status(place)["started"]
    capfd.readouterr()
    assert sweep("sweep.resume=s", base=())[0] == 0
    assert status(place)["started"] == began and "not judged" not in capfd.readouterr().err

    write_status(place, state="running")  # its process is gone
    real = eval_runner.roll

    def stopped(*words):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(eval_runner, "roll", stopped)
        assert sweep("sweep.resume=s", base=())[0] == 75
    said = capfd.readouterr().err
    assert "judge the best anew: lerobot-train -m sweep.resume=s" in said and "nan" not in said
    assert sweep("sweep.resume=s", base=())[0] == 0
    assert status(place)["state"] == "done" and "from fresh starts, its policy" in capfd.readouterr().err

    monkeypatch.setattr("sys.argv", ["lerobot-train", f"resume={jobs[0]}", "steps=3"])
    with pytest.raises(SystemExit):
        main("train", work)
    assert "another policy than the newest of the best run" in find(read_folders([place.parent]), [place.parent]).fresh
