"""A device that only says it computes is found out."""

import sys

import pytest
import torch

from lerobot.accelerator import smoke

CPU = torch.device("cpu")
PRECISIONS = ["no", "bf16", "fp16"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_processor_computes_in_each_precision(precision):
    result = smoke.check(CPU, precision)

    assert result.problem == ""
    assert 0 < result.ms < 5000


def test_the_difference_stays_well_below_what_is_allowed():
    """So that a card with other rounding passes, and one that is wrong by a tenth does not."""
    for precision in PRECISIONS:
        for found, expected in zip(smoke._compute(CPU, precision), smoke._reference(), strict=True):
            assert (found - expected).norm() < 0.2 * smoke.TOLERANCE[precision] * expected.norm()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "spoil", [lambda t: t * 1.1, torch.zeros_like, lambda t: t / 0], ids=["off", "zeros", "infinite"]
)
@pytest.mark.parametrize("which", range(4))
def test_a_wrong_output_or_gradient_is_found(precision, spoil, which):
    found = [tensor.clone() for tensor in smoke._reference()]
    found[which] = spoil(found[which])

    assert "differs from the processor's by" in smoke._difference(found, precision)


def test_a_device_that_raises_has_the_first_line_as_its_problem(monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with ...")

    monkeypatch.setattr(smoke, "_compute", fail)
    result = smoke.check(CPU, "no")

    assert result.problem == "CUDA error: no kernel image is available for execution on the device"
    assert result.ms is None


def test_a_backend_that_drops_autocast_is_found(monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())

    assert smoke.check(CPU, "bf16").problem == "it computed in float32"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_an_absent_backend_does_not_compute_and_a_processor_is_not_asked(monkeypatch):
    assert smoke.problem(torch.device("xpu", 0), "no").startswith("float32: ")
    monkeypatch.setattr(smoke, "check", lambda *_: pytest.fail("something was computed"))
    assert smoke.problem(CPU, "bf16") == ""


def test_a_process_of_its_own_gives_the_same_verdicts():
    results = smoke.check_apart(CPU, ["no", "bf16"])

    assert [(result.precision, result.problem) for result in results] == [("no", ""), ("bf16", "")]
    assert all(result.ms > 0 for result in results)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the driver ended the process (SIGSEGV)"),
        ("raise SystemExit(3)", "the driver ended the process (status 3)"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_driver_that_kills_or_hangs_keeps_what_was_computed_before(tmp_path, monkeypatch, code, says):
    line = '{"precision": "no", "ms": 1.5, "problem": ""}'
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nprint('{line}', flush=True)\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(smoke, "TIMEOUT_S", 1.0)

    assert smoke.check_apart(CPU, ["no", "fp16"]) == [smoke.Result("no", 1.5), smoke.Result("fp16", problem=says)]
