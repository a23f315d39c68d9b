"""A card that runs out of memory for real."""

import json

import pytest
import torch
from runs import weights

from lerobot.accelerator.stack import Stack

ROOM = 2 * 2**30


@pytest.fixture
def little_room(card, monkeypatch):
    """2 GiB of the card for this process; on the stand-in, a loss that refuses more than 100 samples."""
    if not card.is_real:
        from lerobot.policies.act import ACTPolicy

        real = ACTPolicy.loss

        def loss(self, batch, *counts):
            if len(batch["action"]) > 100:
                raise torch.OutOfMemoryError("out of memory")
            return real(self, batch, *counts)

        monkeypatch.setattr(ACTPolicy, "loss", loss)
        monkeypatch.setattr(Stack, "can_run_out", True)
        monkeypatch.setattr(Stack, "forget_peak", lambda self: None)
        yield
        return
    module = torch.get_device_module(card.device.type)
    if card.device.type != "cuda":
        pytest.skip(f"{card.name} cannot be told to give a process less")
    module.empty_cache()
    module.set_per_process_memory_fraction(ROOM / module.get_device_properties(card.device).total_memory, card.device)
    yield
    module.set_per_process_memory_fraction(1.0, card.device)


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_auto_finds_a_micro_batch_that_trains_as_if_it_had_been_typed(train_there, card, little_room, rows, precision):
    batch = card.size(4096, 128)
    sizes = ["policy.dim_model=512", "policy.dim_feedforward=2048", "policy.n_heads=8", "policy.chunk_size=50"]
    words = [*(sizes if card.is_real else []), f"precision={precision}", f"batch_size={batch}", "steps=2"]
    words += ["accelerator.cudnn_deterministic=true", "policy.dropout=0.1"]
    found = train_there(*words, "accelerator.micro_batch=auto", name="found")
    size = json.loads((found / "run.json").read_text())["micro_batch"]
    typed = train_there(*words, f"accelerator.micro_batch={size}", name="typed")

    assert size < batch
    assert rows(found)[-1]["device/peak_mem_gb"] * 2**30 < ROOM or not card.is_real
    for name, weight in weights(typed).items():
        torch.testing.assert_close(weights(found)[name], weight, rtol=1e-4, atol=1e-5)
