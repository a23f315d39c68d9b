"""Which job gets which card, on a machine whose cards are made up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lerobot.accelerator import slots
from lerobot.accelerator.slots import Pool, find_pool, pool_of, slot

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("backend", "before", "card", "after"),
    [
        ("cuda", {}, "0", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2,3"}, "2", {"CUDA_VISIBLE_DEVICES": "2"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-8f1, GPU-9a0"}, "GPU-8f1", {"CUDA_VISIBLE_DEVICES": "GPU-8f1"}),
        ("rocm", {}, "0", {"HIP_VISIBLE_DEVICES": "0"}),
        ("rocm", {"HIP_VISIBLE_DEVICES": "4,5"}, "4", {"HIP_VISIBLE_DEVICES": "4"}),
        ("rocm", {"CUDA_VISIBLE_DEVICES": "6,7"}, "6", {"HIP_VISIBLE_DEVICES": "6"}),
        ("xpu", {"ZE_AFFINITY_MASK": "1,0"}, "1", {"ZE_AFFINITY_MASK": "1"}),
    ],
)
def test_a_job_sees_one_of_the_cards_that_were_visible_before(backend, before, card, after):
    """HYD-15: an index pointed into another list of visible cards."""
    pool = pool_of(backend, 2, 1, before)

    assert pool.slots[0] == (card, 0)
    assert pool.environment(card, before) == after


def held(pool, device, folder):
    """What a job on `device` would see beside those that run; None if it had to wait."""
    with slot(pool, device, folder) as environment:
        return environment and environment.get("CUDA_VISIBLE_DEVICES", "all")


def test_a_card_is_never_shared_unless_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pool, shared = Pool("cuda", ("0", "1")), Pool("cuda", ("0",), jobs_per_device=2)

    with slot(pool, "cuda", tmp_path), slot(pool, "auto", tmp_path) as second:
        assert second["CUDA_VISIBLE_DEVICES"] == "1"
        assert held(pool, "cuda", tmp_path) is None
        assert held(pool, "cpu", tmp_path) == "all"
        assert held(shared, "cuda", tmp_path) == "0"
    assert held(pool, "cuda", tmp_path) == "0"


def test_a_typed_index_waits_for_its_card_and_keeps_its_meaning(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    pool = Pool("cuda", ("2", "3"))

    with slot(pool, "cuda:1", tmp_path) as environment:
        assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert held(pool, "cuda:1", tmp_path) is None
        assert held(pool, "cuda", tmp_path) == "2"
    assert held(pool, "cuda:7", tmp_path) == "2,3"  # the run itself refuses it by name


def test_a_killed_process_gives_its_card_back(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom lerobot.accelerator.slots import Pool, slot\n"
        f"with slot(Pool('cuda', ('0',)), 'cuda', Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "held\n"
        assert held(Pool("cuda", ("0",)), "cuda", tmp_path) is None
        process.send_signal(signal.SIGKILL)
    assert held(Pool("cuda", ("0",)), "cuda", tmp_path) is not None


def test_cards_are_counted_outside_of_this_process_and_their_absence_is_no_error(monkeypatch):
    said = subprocess.CompletedProcess([], 0, stdout='told\n["rocm", 2]\n', stderr="")
    monkeypatch.setattr(slots.subprocess, "run", lambda *_, **__: said)

    assert find_pool(1, {}) == Pool("rocm", ("0", "1"))
    assert pool_of("cpu", 0, 1, {}).slots == []
