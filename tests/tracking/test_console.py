import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lerobot.tracking.console import line

ROOT = Path(__file__).parents[2]
ROW = {"step": 200, "time_s": 9.0, "train/loss": 0.1234, "train/grad_norm": 1.5, "train/step_s": 0.5}
RUN = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.getLogger().addHandler(logging.FileHandler(sys.argv[1]))
from lerobot.tracking.console import open_console
with open_console(4, 0) as console:
    for step in range(1, 5):
        console.advance(step)
        console.log({"step": step, "train/loss": 0.5, "train/scale": 1024.0, "train/skipped_steps": 3})
logging.getLogger("lerobot").info("after")
assert not {"torch", "wandb"} & set(sys.modules)
"""
LINES = [f"step:{step}/4 loss:0.500 scale:1024 skip:3" for step in range(1, 5)] + ["after"]


def run_in_terminal(log: Path, **streams) -> tuple[str, str]:
    """What a terminal shows of RUN, and what went to stdout if that is a pipe."""
    pty = pytest.importorskip("pty")
    terminal, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(log)]
    streams = {"stdin": side, "stdout": side, "stderr": side, **streams}
    process = subprocess.Popen(command, env=environment, **streams)
    os.close(side)
    shown = b""
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(terminal)
    piped = process.communicate()[0] or b""
    assert process.returncode == 0
    return shown.decode(), piped.decode()


def test_a_line_is_short_and_says_how_long_it_takes():
    # (2500 - 200) steps of half a second are 1150 s
    assert line(ROW, 2500) == "step:200/2500 loss:0.123 grdn:1.500 step_s:0.500 left:0:19:10"


def test_a_line_leaves_out_what_has_no_value_and_shows_nan():
    row = {"step": 2, "train/loss": float("nan"), "train/grad_norm": None, "train/nonfinite_steps": 3}

    assert line(row, 2) == "step:2/2 loss:nan nonfinite:3"


def test_a_row_without_a_total_or_without_anything_to_show():
    assert line({"step": 0, "eval/success_rate": 0.5}, 0) == "success:0.50"
    assert line({"step": 5, "eval/linear_success_rate": 0.5}, 10) == ""


def test_a_terminal_gets_a_bar_that_cuts_no_line(tmp_path):
    shown, _ = run_in_terminal(tmp_path / "train.log")

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    screen = [row.split("\r")[-1].rstrip() for row in text.replace("\r\n", "\n").split("\n")]
    assert [row for row in screen if row in LINES] == LINES
    assert re.search(r"4/4 ━+ 0:00:00 loss:0.500 scale:1024 skip:3", text)
    assert (tmp_path / "train.log").read_text().splitlines() == LINES


def test_with_stdout_in_a_pipe_the_bar_stays_on_the_terminal(tmp_path):
    shown, piped = run_in_terminal(tmp_path / "train.log", stdout=subprocess.PIPE)

    assert "━" in shown
    assert piped.splitlines() == LINES


def test_without_a_terminal_there_are_plain_lines_only(tmp_path):
    # FORCE_COLOR makes rich believe in a terminal
    environment = {**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(tmp_path / "train.log")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == LINES
    assert done.stderr == ""
    assert (tmp_path / "train.log").read_text().splitlines() == LINES
