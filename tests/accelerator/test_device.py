"""The device asked for is the device used, or it is refused with what is there."""

import json

import pytest
import torch

from lerobot.accelerator import device as devices
from lerobot.accelerator.device import Device, Machine, resolve
from lerobot.accelerator.precision import check_precision
from lerobot.errors import ConfigError

CPU = Device("cpu", fp16=False)
A100 = [Device("cuda", i, "NVIDIA A100", 80.0, tf32=True) for i in range(2)]
T4 = Device("cuda", 0, "Tesla T4", 16.0, bf16=False)
MI300 = Device("rocm", 0, "AMD Instinct MI300X", 192.0, tf32=True)
ARC = Device("xpu", 0, "Intel Arc A770", 16.0, fp16=False, fp64=False)
MAC = Device("mps", None, "Apple M3", 18.0, fp64=False)


@pytest.mark.parametrize(
    ("found", "request_", "used"),
    [
        ([CPU], "auto", "cpu"),
        ([*A100, CPU], "auto", "cuda:0"),
        ([*A100, CPU], "cuda", "cuda:0"),
        ([*A100, CPU], "cuda:1", "cuda:1"),
        ([*A100, CPU], "cpu", "cpu"),
        ([MI300, CPU], "rocm", "cuda:0"),
        ([MI300, CPU], "cuda", "cuda:0"),
        ([MAC, CPU], "auto", "mps"),
        ([MAC, CPU], "mps", "mps"),
        ([ARC, CPU], "xpu:0", "xpu:0"),
    ],
)
def test_a_present_device_is_used_with_its_index(found, request_, used):
    assert resolve(request_, Machine(tuple(found))).torch_device == torch.device(used)


@pytest.mark.parametrize(
    ("found", "version", "request_", "says"),
    [
        ([CPU], "2.15.0+cpu", "cuda", "--torch-backend=auto"),
        ([CPU], "2.15.0+cu132", "cuda", "nvidia-smi"),
        ([CPU], "2.15.0+cu132", "rocm", "--torch-backend=auto"),
        ([CPU], "2.15.0+cpu", "xpu", "--torch-backend=auto"),
        ([CPU], "2.15.0", "mps", "Apple silicon"),
        ([*A100, CPU], "2.15.0+cu132", "rocm", "cuda:0 (NVIDIA A100)"),
        ([*A100, CPU], "2.15.0+cu132", "cuda:2", "there are 2"),
        ([CPU], "2.15.0", "tpu", "not one of"),
        ([CPU], "2.15.0", "gpu:0", "not one of"),
    ],
)
def test_an_absent_device_is_refused_with_what_is_there(found, version, request_, says):
    with pytest.raises(ConfigError) as error:
        resolve(request_, Machine(tuple(found), version))

    assert says in str(error.value)
    assert f"device={request_}" in str(error.value)


@pytest.mark.parametrize(
    ("device", "precision", "instead"),
    [(CPU, "fp16", "bf16"), (T4, "bf16", "fp16"), (ARC, "fp16", "bf16"), (Device("mps", bf16=False), "bf16", "fp16")],
)
def test_a_precision_that_would_be_emulated_or_dropped_is_refused(device, precision, instead):
    with pytest.raises(ConfigError, match=f"precision={precision}.*type precision={instead}"):
        check_precision(precision, device)


@pytest.mark.parametrize(
    ("device", "precision"), [(CPU, "bf16"), (T4, "fp16"), (A100[0], "bf16"), (MI300, "fp16"), (ARC, "bf16")]
)
def test_a_precision_that_works_is_let_through(device, precision):
    check_precision(precision, device)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has an accelerator")
def test_a_run_on_an_absent_card_is_refused_and_leaves_its_reason(train, tmp_path):
    with pytest.raises(ConfigError, match="device=cuda is absent"):
        train("device=cuda")

    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "refused"
    assert "device=cuda is absent" in status["error"]


def test_the_device_of_a_run_is_that_of_its_policy_and_its_batches(train, monkeypatch):
    from lerobot.policies.act import ACTPolicy

    real, seen = ACTPolicy.loss, set()

    def loss(self, batch):
        seen.update(value.device for value in batch.values())
        seen.update(parameter.device for parameter in self.parameters())
        return real(self, batch)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    train("steps=1")

    assert seen == {torch.device("cpu")}


def test_auto_says_what_it_chose(train):
    run = train("device=auto", "steps=1")

    assert json.loads((run / "run.json").read_text())["device"] == str(devices.machine().devices[0].torch_device)
