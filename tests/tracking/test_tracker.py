import subprocess
import sys
from pathlib import Path

import numpy as np

from lerobot.tracking.config import WandbConfig
from lerobot.tracking.jsonl import read_metrics
from lerobot.tracking.tracker import Tracker, open_tracker

ROOT = Path(__file__).parents[2]
OFF = WandbConfig(mode="disabled")


def opened(run_dir: Path, start_step: int = 0, wandb: WandbConfig = OFF):
    return open_tracker(run_dir, wandb, steps=20, start_step=start_step, config={}, facts={})


def test_a_row_has_step_and_time_and_plain_numbers(tmp_path):
    with opened(tmp_path) as tracker:
        tracker.log(5, {"train/loss": 0.5, "eval/success_rate": np.float32(0.25), "eval/n": np.int64(3)})

    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row.pop("time_s") >= 0
    assert row == {"step": 5, "train/loss": 0.5, "eval/success_rate": 0.25, "eval/n": 3}


def test_rows_of_skipped_updates_stand_before_the_row_that_reports_them(tmp_path, caplog):
    caplog.set_level("INFO", logger="lerobot")
    with opened(tmp_path) as tracker:
        tracker.log_skipped([(1, {"train/scale": 512.0}), (2, {"train/scale": 256.0})])
        tracker.log(10, {"train/scale": 256.0, "train/skipped_steps": 2})

    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["train/scale"]) for row in rows] == [(1, 512.0), (2, 256.0), (10, 256.0)]
    assert [record.message for record in caplog.records] == ["step:10/20 scale:256 skip:2"]


def test_a_resumed_run_has_each_step_once_and_its_time_goes_on(tmp_path):  # LOG-02
    with opened(tmp_path) as tracker:
        for step in range(1, 13):
            tracker.log(step, {"train/loss": 1.0})
    rows = read_metrics(tmp_path / "metrics.jsonl")
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace(f'"time_s": {rows[9]["time_s"]}', '"time_s": 1000.0'))

    with opened(tmp_path, start_step=10) as tracker:
        for step in range(11, 21):
            tracker.log(step, {"train/loss": 1.0})

    rows = read_metrics(path)
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[10]["time_s"] >= 1000.0
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.1.jsonl")] == [11, 12]


def test_a_full_disk_ends_no_run_and_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("lerobot.tracking.tracker.truncate_after", lambda path, step: [])  # would read /dev/full
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")

    with opened(tmp_path) as tracker:
        for step in range(1, 4):
            tracker.log(step, {"train/loss": 1.0})

    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"{tmp_path} cannot be written to (No space left on device) and rows are being lost" in said


def test_a_tracker_without_places_drops_everything(tmp_path):
    tracker = Tracker()
    tracker.advance(1)
    tracker.log(1, {"train/loss": 1.0})
    tracker.log_skipped([(1, {"train/scale": 1.0})])
    tracker.video(1, "eval/video", tmp_path / "no.mp4")
    tracker.checkpoint(1, tmp_path)

    assert tracker.run_id is None


def test_opening_one_imports_no_torch_and_no_wandb_where_it_is_disabled(tmp_path):
    program = """
import pathlib, sys
from lerobot.tracking.config import WandbConfig
from lerobot.tracking.tracker import open_tracker
with open_tracker(pathlib.Path(sys.argv[1]), WandbConfig(enable=False), steps=1, config={}, facts={}) as tracker:
    tracker.log(1, {"train/loss": 1.0})
assert not {"torch", "wandb", "hydra", "matplotlib"} & set(sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
