"""One thread, one clean folder a test, no wandb variables from outside; the one seam for absent hardware."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
from pathlib import Path

import pytest
from runs import TINY


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("WANDB_", "ACCELERATE_", "HF_LEROBOT"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def train(tmp_path):
    """Trains with the tiny overrides and those given; returns the run's folder."""
    import lerobot

    def run(*overrides, base=TINY, name="run"):
        config = lerobot.compose("train", [*base, f"output_dir={tmp_path / name}", *overrides])
        return lerobot.run(config)

    return run


@pytest.fixture
def rows():
    """Reads `metrics.jsonl` of a run."""

    def read(run):
        return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]

    return read


@pytest.fixture
def spoiled_loss(monkeypatch):
    """Multiplies the loss of one call by a number that is not finite; returns the list of calls."""
    from lerobot.policies.act import ACTPolicy

    def spoil(call, factor):
        real, calls = ACTPolicy.loss, []

        def loss(self, batch, *counts):
            calls.append(1)
            value, parts = real(self, batch, *counts)
            return value * (factor if len(calls) == call else 1.0), parts

        monkeypatch.setattr(ACTPolicy, "loss", loss)
        return calls

    return spoil


@pytest.fixture
def fp16_on_cpu(monkeypatch):
    """A machine whose only device is a processor that trains in float16, and accelerate told so.

    Everything behind it is the real code: autocast in float16, loss scaling, overflow, skip. accelerate builds no scaler
    on the processor, so its two attributes are set as it sets them on a card.
    """
    import torch

    from lerobot.accelerator import device, stack

    machine = device.Machine((device.Device("cpu", name="cpu with fp16"),))
    build = stack.build_accelerator

    def build_with_scaler(config, chosen):
        accelerator = build(config, chosen)
        if config.mixed_precision == "fp16":
            s = config.grad_scaler
            accelerator.native_amp = True
            accelerator.scaler = torch.amp.GradScaler(
                "cpu",
                init_scale=s.init_scale,
                growth_factor=s.growth_factor,
                backoff_factor=s.backoff_factor,
                growth_interval=s.growth_interval,
            )
        return accelerator

    monkeypatch.setattr(device, "machine", lambda: machine)
    monkeypatch.setattr(stack, "build_accelerator", build_with_scaler)
