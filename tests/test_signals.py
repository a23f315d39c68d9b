"""Signals before a run, and the second one: a line and a status, never a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import TINY

ROOT = Path(__file__).parents[1]
WHILE_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Finder())
from lerobot.{command} import main
main()
"""
IN_AN_UPDATE = """
import time
from lerobot.runner import Training

real = Training.update

def update(self, step):
    real(self, step)
    print("update", flush=True)
    time.sleep(60)

Training.update = update
from lerobot.train import main
main()
"""


def started(tmp_path, program, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **streams)


@pytest.mark.parametrize(
    ("name", "command", "module", "status"),
    [
        ("SIGINT", "train", "hydra", 130),
        ("SIGINT", "train", "torch", 130),
        ("SIGINT", "eval", "omegaconf", 130),
        ("SIGTERM", "train", "accelerate", 75),
        ("SIGUSR1", "demos", "hydra", 75),
    ],
)
def test_a_signal_before_the_run_leaves_with_a_line_and_a_status(tmp_path, name, command, module, status):
    """HYD-16: while torch was imported, one killed the process or ended in somebody's traceback."""
    program = WHILE_IMPORTING.format(module=module, name=name, command=command)
    process = started(tmp_path, program, *(TINY if command == "train" else ()))
    out, said = process.communicate(timeout=60)

    assert process.returncode == status
    assert (out, said) == ("", f"error: stopped by {name}, no run was at hand\n")
    assert not list(tmp_path.glob("**/status.json"))


@pytest.mark.parametrize(("first", "second"), [("SIGUSR1", "SIGTERM")])
def test_a_second_signal_ends_the_process_at_once(tmp_path, first, second):
    """HYD-16: whatever it is doing, also where the update at hand does not end."""
    process = started(tmp_path, IN_AN_UPDATE, *TINY, "output_dir=run")
    assert process.stdout is not None and process.stdout.readline() == "update\n"
    process.send_signal(getattr(signal, first))
    assert process.stderr is not None
    for line in process.stderr:
        if "again to end at once" in line:
            break
    assert process.poll() is None
    process.send_signal(getattr(signal, second))
    _, said = process.communicate(timeout=10)

    assert process.returncode == -getattr(signal, second)
    assert "Traceback" not in said
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_the_handlers_of_the_caller_come_back():
    from lerobot.signals import leave_on_signals, stop_on_signals

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with leave_on_signals(), stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop()

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
