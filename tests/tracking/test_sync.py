"""What a login node uploads of a tree of offline runs, and in which order."""

import os
import stat
import sys

import pytest

from lerobot.status import write_status
from lerobot.tracking import sync

FAKE = """#!{python}
import sys
from pathlib import Path
Path("{log}").open("a").write(" ".join(sys.argv[1:]) + "\\n")
for word in sys.argv[2:]:
    for file in Path(word).glob("run-*.wandb"):
        if "{fails}" not in word:
            file.with_suffix(".wandb.synced").touch()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A `wandb` that writes down what it is told and marks what it sent, as the real one does (0.31)."""

    def install(fails="never"):
        tool = tmp_path / "bin" / "wandb"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(FAKE.format(python=sys.executable, log=tmp_path / "told", fails=fails))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")

    install()
    return install


def segment(run, time, run_id):
    folder = run / "wandb" / f"offline-run-{time}-{run_id}"
    folder.mkdir(parents=True)
    (folder / f"run-{run_id}.wandb").write_bytes(bytes(100))
    return folder


def sent(tmp_path):
    told = tmp_path / "told"
    return told.read_text().splitlines() if told.exists() else []


def left(*argv):
    with pytest.raises(SystemExit) as ended:
        sync.main([str(word) for word in argv])
    return ended.value.code


def test_the_segments_of_a_resumed_run_are_sent_in_order_and_once(tmp_path, wandb):
    """LOG-02: wandb appends what it is sent, so a segment that goes twice is there twice."""
    sweep = tmp_path / "outputs" / "multirun" / "today"
    second = segment(sweep / "0_cpu_no", "20261130_120000", "aaaa")
    first = segment(sweep / "0_cpu_no", "20261130_110000", "aaaa")
    other = segment(sweep / "1_cpu_no", "20261130_113000", "bbbb")
    (sweep / "0_cpu_no" / "wandb" / "latest-run").symlink_to(second)

    assert left(tmp_path / "outputs") == 0
    assert sent(tmp_path) == [f"sync {first} {other} {second}"]
    assert left(tmp_path / "outputs") == 0
    third = segment(sweep / "0_cpu_no", "20261130_130000", "aaaa")
    assert left(tmp_path / "outputs") == 0
    assert sent(tmp_path)[1:] == [f"sync {third}"]


def test_a_run_that_goes_on_is_left_alone_unless_asked(tmp_path, wandb):
    """What it writes after the upload would never be sent."""
    run = tmp_path / "run"
    there = segment(run, "20261130_110000", "aaaa")
    write_status(run, state="running")

    assert left(run) == 0
    assert sent(tmp_path) == []
    assert left(run, "--running", "--dry-run") == 0
    assert sent(tmp_path) == []
    assert left(run, "--running") == 0
    assert sent(tmp_path) == [f"sync {there}"]


def test_what_could_not_be_sent_is_a_failure_though_wandb_calls_it_none(tmp_path, wandb):
    wandb(fails="bbbb")
    segment(tmp_path / "run", "20261130_110000", "aaaa")
    segment(tmp_path / "other", "20261130_110000", "bbbb")

    assert left(tmp_path) == 1


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert left(tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_segment_without_a_row_is_left_out_with_a_word(tmp_path, wandb, caplog):
    """wandb sends nothing of it, and the tree was never done."""
    caplog.set_level("INFO")
    killed = segment(tmp_path / "run", "20261130_110000", "aaaa")
    (killed / "run-aaaa.wandb").write_bytes(bytes(7))
    goes_on = segment(tmp_path / "run", "20261130_120000", "aaaa")

    assert left(tmp_path) == 0
    assert sent(tmp_path) == [f"sync {goes_on}"]
    assert "1 hold no row" in caplog.text


def test_a_line_without_folders_is_one_sentence(capsys):
    assert left() == 2
    assert capsys.readouterr().err.startswith("error: ") and "usage" not in capsys.readouterr().err
