"""The device asked for is the device used, or it is refused with what is there."""

import json
import logging
import os
from types import SimpleNamespace

import pytest
import torch

from lerobot.accelerator import device as devices
from lerobot.accelerator.capabilities import Facts, capabilities
from lerobot.accelerator.device import Device, Machine, resolve
from lerobot.accelerator.hardware import Card
from lerobot.accelerator.precision import check_precision
from lerobot.errors import ConfigError


def device(backend, index, name, memory_gb=16.0, *, integrated=False, **facts):
    facts = Facts(torch=(2, 15), **facts)
    return Device(backend, index, name, memory_gb, capabilities(backend, facts), integrated)


CPU = device("cpu", None, "Xeon", units=frozenset())
A100 = [device("cuda", i, "NVIDIA A100", 80.0, compute=(8, 0)) for i in range(2)]
T4 = device("cuda", 0, "Tesla T4", compute=(7, 5))
V100 = device("cuda", 0, "Tesla V100", compute=(7, 0))
MI300 = device("rocm", 0, "AMD Instinct MI300X", 192.0, arch="gfx942")
ARC = device("xpu", 0, "Intel Arc A770", units=frozenset({"bf16", "tf32"}))
MAC = device("mps", None, "Apple M3", macos=(14, 5))
OLD_MAC = device("mps", None, "Apple M1", macos=(13, 6))
APU = device("rocm", 0, "AMD Radeon 780M", arch="gfx1103", integrated=True)
RX = device("rocm", 1, "AMD Radeon RX 7900", arch="gfx1100")

NVIDIA_CARD = Card("cuda", "NVIDIA A100", "nvidia 580.65")


@pytest.mark.parametrize(
    ("found", "request_", "used"),
    [
        ([CPU], "auto", "cpu"),
        ([CPU], None, "cpu"),
        ([*A100, CPU], "auto", "cuda:0"),
        ([*A100, CPU], "cuda", "cuda:0"),
        ([*A100, CPU], "cuda:1", "cuda:1"),
        ([*A100, CPU], "cpu", "cpu"),
        ([MI300, CPU], "rocm", "cuda:0"),
        ([MI300, CPU], "cuda", "cuda:0"),
        ([MAC, CPU], "auto", "mps"),
        ([MAC, CPU], "mps", "mps"),
        ([ARC, CPU], "xpu:0", "xpu:0"),
        ([APU, RX, CPU], "auto", "cuda:1"),
        ([APU, CPU], "auto", "cuda:0"),
    ],
)
def test_a_present_device_is_used_with_its_index(found, request_, used):
    """DEV-02, DEV-03, DEV-09, DEV-11; a card of its own comes before integrated graphics."""
    assert resolve(request_, Machine(tuple(found))).torch_device == torch.device(used)


@pytest.mark.parametrize(
    ("found", "build", "cards", "request_", "says"),
    [
        ([CPU], "cpu", (), "cuda", "--torch-backend=auto"),
        ([CPU], "cuda", (), "cuda", "nvidia-smi"),
        ([CPU], "cuda", (NVIDIA_CARD,), "cuda", "sees no card: look at its driver with `nvidia-smi`"),
        ([CPU], "cuda", (Card("cuda", "A100", "", "there is no /dev/nvidia0"),), "cuda", "there is no /dev/nvidia0"),
        ([CPU], "cuda", (), "rocm", "--torch-backend=auto"),
        ([CPU], "cpu", (), "xpu", "--torch-backend=auto"),
        ([CPU], "cpu", (), "mps", "Apple silicon"),
        ([*A100, CPU], "cuda", (NVIDIA_CARD,), "rocm", "cuda:0 (NVIDIA A100)"),
        ([*A100, CPU], "cuda", (NVIDIA_CARD,), "cuda:2", "there are 2"),
        ([CPU], "cpu", (), "tpu", "not one of"),
        ([CPU], "cpu", (), "gpu:0", "not one of"),
    ],
)
def test_an_absent_device_is_refused_with_what_is_there(found, build, cards, request_, says):
    """DEV-04."""
    with pytest.raises(ConfigError) as error:
        resolve(request_, Machine(tuple(found), "2.15.0+x1", build, "13.2", cards))

    assert says in str(error.value)
    assert f"device={request_}" in str(error.value)
    if "is absent" in str(error.value):
        assert f"PyTorch 2.15.0+x1, built for {build} 13.2, finds " in str(error.value)


def test_a_hidden_card_is_refused_with_the_variable_that_hides_it():
    hidden = Machine((CPU,), build="cuda", cards=(NVIDIA_CARD,), environment={"CUDA_VISIBLE_DEVICES": "-1"})

    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=-1 hides every card: unset it"):
        resolve("cuda", hidden)


@pytest.mark.parametrize(
    ("found", "precision", "instead"),
    [
        (CPU, "fp16", "bf16"),
        (T4, "bf16", "fp16"),
        (V100, "bf16", "fp16"),
        (ARC, "fp16", "bf16"),
        (OLD_MAC, "bf16", "fp16"),
    ],
)
def test_a_precision_that_would_be_emulated_or_dropped_is_refused(found, precision, instead):
    """PREC-02, PREC-16, PREC-18."""
    with pytest.raises(ConfigError, match=f"precision={precision} .*: type precision={instead} or precision=no"):
        check_precision(precision, found)


@pytest.mark.parametrize(
    ("found", "precision"),
    [(CPU, "bf16"), (T4, "fp16"), (A100[0], "bf16"), (MI300, "fp16"), (MI300, "bf16"), (ARC, "bf16"), (MAC, "fp16")],
)
def test_a_precision_that_works_is_let_through(found, precision):
    check_precision(precision, found)
    check_precision("no", found)


def broken(*words):
    return lambda found, precision: f"float32 of {found.word} is wrong" if found.word in words else ""


def test_auto_passes_over_a_card_that_does_not_compute_and_says_so_in_one_line(caplog):
    machine = Machine((RX, APU, CPU), build="rocm", problem_of=broken("rocm:0"))

    with caplog.at_level(logging.WARNING):
        assert resolve("auto", machine).word == "rocm:1"
        assert not caplog.records  # the card of its own was asked first
        assert resolve("auto", Machine((APU, CPU), build="rocm", problem_of=broken("rocm:0"))) is CPU

    (record,) = caplog.records
    assert "device=auto passes over rocm:0 (AMD Radeon 780M)" in record.getMessage()
    assert "float32 of rocm:0 is wrong" in record.getMessage()


def test_auto_takes_the_card_that_computes_in_the_precision_of_the_run():
    """The first A100 is right in float32 and wrong in bf16."""
    machine = Machine((*A100, CPU), problem_of=lambda d, p: "bfloat16: wrong" if (d.index, p) == (0, "bf16") else "")

    assert resolve("auto", machine, "bf16").index == 1
    assert resolve("auto", machine, "no").index == 0


def test_a_typed_device_that_does_not_compute_is_refused_with_the_reason():
    machine = Machine((*A100, CPU), problem_of=broken("cuda:1"))

    assert resolve("cuda:0", machine).index == 0
    with pytest.raises(
        ConfigError, match=r"device=cuda:1 \(NVIDIA A100\) does not compute, float32 of cuda:1 is wrong"
    ):
        resolve("cuda:1", machine)


def test_auto_on_a_processor_computes_nothing_and_says_nothing(caplog):
    machine = Machine((CPU,), problem_of=lambda *_: pytest.fail("something was computed"))

    with caplog.at_level(logging.INFO):
        assert resolve("auto", machine) is CPU
    assert not caplog.records


def test_auto_that_cannot_use_a_card_says_why(caplog):
    with caplog.at_level(logging.WARNING):
        assert resolve("auto", Machine((CPU,), build="cpu", cards=(NVIDIA_CARD,))) is CPU

    assert "no support for any card and the machine has NVIDIA A100" in caplog.text
    assert "--torch-backend=auto" in caplog.text


class FakeCuda:
    """torch.cuda with one card."""

    def __init__(self, **facts):
        told = {"name": "card", "total_memory": 64 * 2**30, "major": 9, "minor": 0, "gcnArchName": "", **facts}
        self.told = SimpleNamespace(**told)

    def install(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: self.told)


def test_a_rocm_build_is_reported_as_rocm(monkeypatch):
    """DEV-09."""
    FakeCuda(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-").install(monkeypatch)
    monkeypatch.setattr(torch.version, "hip", "7.0.2")
    machine = devices.machine()

    assert (machine.build, machine.build_version) == ("rocm", "7.0.2")
    found = machine.devices[0]
    assert (found.word, found.type, found.arch, found.memory_gb) == ("rocm:0", "cuda", "gfx942", 64)
    assert (found.can.tf32, found.can.bf16) == (True, "hardware")
    assert machine.of("cuda") == machine.of("rocm") == [found]


@pytest.mark.parametrize(("major", "minor", "bf16"), [(7, 5, "emulated"), (9, 0, "hardware")])
def test_an_nvidia_card_tells_its_generation(monkeypatch, major, minor, bf16):
    """PREC-16."""
    FakeCuda(name="card", major=major, minor=minor).install(monkeypatch)
    monkeypatch.setattr(torch.version, "hip", None)
    found = devices.machine().devices[0]

    assert (found.word, found.arch, found.can.bf16) == ("cuda:0", f"sm_{major}{minor}", bf16)


def test_an_intel_card_tells_what_it_has(monkeypatch):
    told = SimpleNamespace(
        name="Intel Arc A770",
        total_memory=2**34,
        has_fp64=False,
        has_bfloat16_conversions=True,
        is_integrated_gpu=False,
        driver_version="1.6",
    )
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: told)
    found = devices.machine().devices[0]

    assert (found.word, found.memory_gb, found.driver) == ("xpu:0", 16, "1.6")
    assert "float64" in found.can.why_not("fp16")


def test_a_mac_tells_its_system(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**34)
    monkeypatch.setattr("platform.mac_ver", lambda: ("13.6.1", ("", "", ""), "arm64"))
    found = devices.machine().devices[0]

    assert (found.word, found.index, found.memory_gb) == ("mps", None, 16)
    assert "macOS 14" in found.can.why_not("bf16")


def test_what_pytorch_warns_of_while_it_looks_is_kept_and_not_printed(monkeypatch, recwarn):
    import warnings

    def is_available():
        warnings.warn(
            "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)", stacklevel=1
        )
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)

    assert "too old (found version 12040)" in devices.machine().said
    assert not recwarn.list


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_a_run_on_an_absent_card_is_refused_and_leaves_its_reason(train, tmp_path):
    """DEV-04."""
    with pytest.raises(ConfigError, match="device=cuda is absent"):
        train("device=cuda")

    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "refused"
    assert "device=cuda is absent" in status["error"]
    assert torch.__version__ in status["error"]


def test_the_device_of_a_run_is_that_of_its_policy_and_its_batches(train, monkeypatch):
    """DEV-02."""
    from lerobot.policies.act import ACTPolicy

    real, seen = ACTPolicy.loss, set()

    def loss(self, batch):
        seen.update(value.device for value in batch.values())
        seen.update(parameter.device for parameter in self.parameters())
        return real(self, batch)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    train("steps=1")

    assert seen == {torch.device("cpu")}


@pytest.mark.parametrize("stored", ["cuda:0", "xpu:1", "mps"])
def test_a_device_in_a_checkpoint_decides_nothing(train, stored):
    """DEV-01."""
    from lerobot.checkpoint import load_policy

    folder = train("steps=1", "save_freq=1") / "checkpoints" / "last" / "pretrained_model"
    for name in ("config.json", "policy_preprocessor.json"):
        text = (folder / name).read_text()
        assert '"cpu"' in text
        (folder / name).write_text(text.replace('"cpu"', f'"{stored}"'))

    assert load_policy(folder, device="cpu").device == torch.device("cpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_auto_says_what_it_chose(train):
    run = train("device=auto", "steps=1")

    assert json.loads((run / "run.json").read_text())["device"] == "cpu"


def test_accelerate_leaves_the_fallback_to_the_processor_as_the_user_has_it(monkeypatch):
    """It exports PYTORCH_ENABLE_MPS_FALLBACK where it chooses a device itself: never, since it is given one."""
    from lerobot.accelerator.stack import open_stack
    from lerobot.config import AcceleratorConfig

    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    monkeypatch.setattr("accelerate.state.is_mps_available", lambda *_, **__: True)
    with open_stack(AcceleratorConfig(), "cpu", None) as stack:
        assert stack.accelerator.device.type == "cpu"
        assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ


@pytest.mark.parametrize("asked", [None, "1"])
def test_what_falls_back_to_the_processor_is_named_once_each(monkeypatch, caplog, asked):
    import warnings

    from lerobot.accelerator.fallback import named_fallbacks

    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    if asked:
        monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", asked)
    said = "The operator 'aten::{}' is not currently supported on the MPS backend and will fall back to run on the CPU."
    before = warnings.showwarning
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("always")
        with named_fallbacks("mps"):
            assert torch.is_warn_always_enabled()  # else PyTorch would name the first operation only
            for name in ("linalg_qr.out", "col2im", "linalg_qr.out"):
                warnings.warn(said.format(name), stacklevel=1)

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" ")[0] for line in lines if "Apple's GPU lacks it" in line] == [
        "aten::linalg_qr.out",
        "aten::col2im",
    ]
    assert any("PYTORCH_ENABLE_MPS_FALLBACK=1" in line for line in lines) == bool(asked)
    assert not torch.is_warn_always_enabled()
    assert warnings.showwarning is before


@pytest.mark.parametrize(
    ("found", "precision", "fused"),
    [(A100[0], "fp16", True), (MAC, "fp16", True), (OLD_MAC, "no", True), (CPU, "no", True)],
)
def test_an_optimizer_is_fused_where_an_overflow_is_left_out(found, precision, fused):
    assert stack_of(found, precision).fuses(True) == fused
    assert not stack_of(found, precision).fuses(False)


def test_an_optimizer_that_would_apply_an_overflow_is_not_fused_and_that_is_said(caplog):
    """PREC-04."""
    mac = Device("mps", None, "Apple M3", 16.0, capabilities("mps", Facts(torch=(2, 12), macos=(15, 0))))

    with caplog.at_level(logging.WARNING):
        assert stack_of(mac, "no").fuses(True)
        assert not stack_of(mac, "fp16").fuses(True)
    assert "optimizer.fused=true is not used on mps with a loss scaler" in caplog.text


def stack_of(found, precision):
    from lerobot.accelerator.stack import Stack

    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    return Stack(None, found, precision, None, scaler)


@pytest.mark.parametrize(("found", "pins"), [(A100[0], True), (MI300, True), (ARC, True), (MAC, False), (CPU, False)])
def test_batches_are_pinned_where_the_table_says_so(found, pins):
    """DEV-05."""
    assert stack_of(found, "no").pins_memory is pins


@pytest.mark.parametrize(
    ("found", "source"), [(A100[0], "allocator"), (MI300, "allocator"), (ARC, "allocator"), (MAC, "driver")]
)
def test_the_memory_metric_comes_from_each_device(monkeypatch, found, source):
    """DEV-10."""
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: 2 * 2**30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 * 2**30)

    assert stack_of(found, "no").peak_memory_gb() == {"allocator": 2, "driver": 3}[source]
    assert 0.01 < stack_of(CPU, "no").peak_memory_gb() < 100
