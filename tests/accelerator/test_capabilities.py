"""One table says what each kind of device can do; nothing else compares kinds of devices."""

import re
from pathlib import Path

import pytest

import lerobot
from lerobot.accelerator.capabilities import BACKENDS, MEMORY, TABLE, Facts, capabilities, version
from lerobot.accelerator.device import Device
from lerobot.accelerator.precision import check_precision
from lerobot.errors import ConfigError


@pytest.mark.parametrize(
    ("torch", "macos", "bf16", "fp16"),
    [
        ((2, 4), (13, 6), False, False),
        ((2, 4), (14, 0), False, False),
        ((2, 5), (14, 0), False, False),  # autocast in float16 is there, loss scaling is not
        ((2, 6), (13, 6), False, False),
        ((2, 6), (14, 0), True, False),
        ((2, 7), (14, 0), True, False),
        ((2, 8), (13, 6), False, True),
        ((2, 8), (14, 0), True, True),
        ((2, 15), (15, 1), True, True),
    ],
)
def test_apple_computes_in_half_precision_from_the_versions_that_have_it(torch, macos, bf16, fp16):
    """DEV-08."""
    can = capabilities("mps", Facts(torch=torch, macos=macos))

    assert (not can.why_not("bf16"), not can.why_not("fp16"), not can.why_not("no")) == (bf16, fp16, True)
    assert can.fp16 == (torch >= (2, 5))


def test_the_refusal_names_the_version_that_is_missing():
    """PREC-18: on MPS before 2.8."""
    old = Device("mps", can=capabilities("mps", Facts(torch=(2, 7), macos=(14, 2))))
    older_system = Device("mps", can=capabilities("mps", Facts(torch=(2, 15), macos=(13, 6))))

    with pytest.raises(ConfigError, match=r"precision=fp16 .* needs PyTorch 2\.8 .* is 2\.7: type precision=bf16"):
        check_precision("fp16", old)
    with pytest.raises(ConfigError, match=r"precision=bf16 .* needs macOS 14 .* is 13\.6: type precision=fp16"):
        check_precision("bf16", older_system)


@pytest.mark.parametrize(
    ("compute", "bf16", "tf32"), [((7, 0), "emulated", False), ((7, 5), "emulated", False), ((8, 0), "hardware", True)]
)
def test_nvidia_has_bfloat16_and_tf32_from_ampere_on(compute, bf16, tf32):
    """PREC-16: PyTorch calls bf16 supported on a T4, where it is emulated."""
    can = capabilities("cuda", Facts(compute=compute))

    assert (can.bf16, can.tf32, can.scaler) == (bf16, tf32, True)
    assert bool(can.why_not("bf16")) == (bf16 == "emulated")
    assert not can.why_not("fp16")


def test_an_intel_card_without_float64_has_no_loss_scaling():
    """PREC-18: on Arc."""
    arc = capabilities("xpu", Facts(units=frozenset({"bf16", "tf32"})))
    big = capabilities("xpu", Facts(units=frozenset({"bf16", "tf32", "fp64"})))
    old = capabilities("xpu", Facts(units=frozenset({"fp64"})))

    assert "float64" in arc.why_not("fp16")
    assert not arc.why_not("bf16")
    assert not big.why_not("fp16")
    assert old.bf16 == "emulated"


def test_a_processor_trains_in_bfloat16_with_and_without_units_and_never_in_float16():
    with_units, without = (capabilities("cpu", Facts(units=frozenset(u))) for u in (("bf16",), ()))

    assert (with_units.bf16, without.bf16) == ("hardware", "software")
    assert not without.why_not("bf16")
    assert "accelerate builds no loss scaler" in without.why_not("fp16")


@pytest.mark.parametrize(("arch", "tf32"), [("gfx942", True), ("gfx950", True), ("gfx90a", False), ("gfx1100", False)])
def test_amd_has_tf32_on_some_cards_and_both_half_precisions(arch, tf32):
    can = capabilities("rocm", Facts(arch=arch))

    assert (can.tf32, can.why_not("bf16"), can.why_not("fp16")) == (tf32, "", "")


def test_every_kind_of_device_has_every_row():
    """DEV-05, DEV-10: nothing is skipped without an error on another device than cuda."""
    assert set(TABLE) == set(MEMORY) == set(BACKENDS)
    assert len({frozenset(rows) for rows in TABLE.values()}) == 1
    newest = {"torch": (2, 15), "macos": (15, 0), "compute": (9, 0), "arch": "gfx942"}
    found = {kind: capabilities(kind, Facts(**newest, units=frozenset({"fp64", "tf32", "bf16"}))) for kind in BACKENDS}

    on_cards = ("cuda", "rocm", "xpu")
    assert {kind for kind in found if found[kind].pinned_memory and found[kind].non_blocking} == set(on_cards)
    assert {kind for kind in found if found[kind].scaler} == {*on_cards, "mps"}
    assert {kind for kind in found if found[kind].memory == "allocator"} == set(on_cards)
    assert (found["mps"].memory, found["cpu"].memory) == ("driver", "process")
    assert all(can.fused and can.fused_skips for can in found.values())


def test_fused_optimizers_on_apple_leave_an_overflow_out_only_lately():
    """PREC-04: before pytorch pull request 186360 they applied it."""
    assert not capabilities("mps", Facts(torch=(2, 12), macos=(15, 0))).fused_skips
    assert capabilities("mps", Facts(torch=(2, 15), macos=(15, 0))).fused_skips


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.15.0+cu132", (2, 15, 0)), ("2.9.0a0+git12", (2, 9, 0)), ("13.6.1", (13, 6, 1)), ("14", (14,)), ("", ())],
)
def test_a_version_is_its_leading_numbers(text, numbers):
    assert version(text) == numbers


@pytest.mark.parametrize("name", ["stack", "precision", "grad_scaler", "smoke"])
def test_what_uses_a_device_asks_the_table_and_not_for_its_kind(name):
    """DEV-05."""
    text = (Path(lerobot.__file__).parent / "accelerator" / f"{name}.py").read_text()

    assert not re.findall(r"""["'](cuda|rocm|mps|xpu)["']""", text)
