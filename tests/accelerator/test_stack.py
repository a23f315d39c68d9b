"""The stack comes from the config alone, and leaves the process as it found it."""

import logging
import os
import warnings

import pytest
import torch
from accelerate.state import PartialState
from torch.utils._python_dispatch import TorchDispatchMode

from lerobot.accelerator.config import AcceleratorConfig, GradScalerConfig
from lerobot.accelerator.stack import open_stack
from lerobot.accelerator.tf32 import tf32, tf32_state
from lerobot.errors import ConfigError


class CountReads(TorchDispatchMode):
    """Counts how often a number is read from a tensor."""

    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def matmul_dtype(stack):
    with stack.autocast():
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def switches():
    b = torch.backends
    return b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision, b.cudnn.rnn.fp32_precision


def test_jobs_of_one_process_each_get_their_own_precision_in_any_order():
    """HYD-05: accelerate keeps what the first job asked for."""
    for precisions in (("no", "bf16", "no"), ("bf16", "no", "bf16")):
        for precision in precisions:
            with open_stack(AcceleratorConfig(precision), "cpu", True) as stack:
                assert matmul_dtype(stack) == {"no": torch.float32, "bf16": torch.bfloat16}[precision]
        assert not PartialState._shared_state


def test_variables_of_a_launcher_do_not_win_over_the_config(monkeypatch, caplog):
    """DIST-10: the saved config was not what ran."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")

    with caplog.at_level(logging.WARNING), open_stack(AcceleratorConfig(), "cpu", True) as stack:
        assert matmul_dtype(stack) == torch.float32
        assert stack.accelerator.gradient_accumulation_steps == 1

    assert "ACCELERATE_MIXED_PRECISION=bf16 is ignored" in caplog.text
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_several_processes_are_refused_rather_than_run_twice(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(ConfigError, match="WORLD_SIZE=2"), open_stack(AcceleratorConfig(), "cpu", True):
        pass


@pytest.mark.parametrize(("asked", "read"), [(True, "tf32"), (False, "ieee"), (None, None)])
def test_tf32_is_set_for_products_convolutions_and_rnns_and_put_back(asked, read):
    """PREC-14, PREC-15: old and new switches mixed raise; one switch leaves the others as they were."""
    before = switches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tf32(asked, "cpu"):
            assert switches() == ((read,) * 3 if read else before)
        with tf32(not asked, "cpu"):
            pass

    assert switches() == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_is_put_back_after_an_error():
    before = switches()
    try:
        with open_stack(AcceleratorConfig(), "cpu", False):
            assert switches() == ("ieee",) * 3
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass

    assert switches() == before


def test_what_float32_really_is_can_be_read():
    assert tf32_state("cpu") == "in conv and rnn"  # PyTorch's own default
    for enabled in (True, False):
        with tf32(enabled, "cpu"):
            assert tf32_state("cpu") is enabled


def test_a_forward_pass_in_another_dtype_than_asked_stops_the_run(train, monkeypatch, tmp_path):
    """PREC-01: the flag was read and nothing behind it was wired."""
    from contextlib import nullcontext

    from lerobot.accelerator.stack import Stack

    monkeypatch.setattr(Stack, "autocast", lambda self: nullcontext())
    monkeypatch.setattr(Stack, "prepare", lambda self, policy: policy)
    with pytest.raises(RuntimeError, match="precision=bf16 was asked for and the forward pass computed in float32"):
        train("precision=bf16")

    assert not (tmp_path / "run" / "checkpoints").exists()


def test_full_precision_enters_no_autocast_and_warns_of_nothing(train):
    """DEV-06: a float32 autocast warns at every entry and is dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train("steps=2", "precision=no")


def test_unused_scaler_settings_are_said(caplog):
    with (
        caplog.at_level(logging.WARNING),
        open_stack(AcceleratorConfig("bf16", GradScalerConfig(init_scale=8)), "cpu", True),
    ):
        pass

    assert "accelerator.grad_scaler is set and unused" in caplog.text


def test_parameters_below_float32_are_refused_by_name():
    """PREC-08: the scaler refuses to unscale float16 gradients, hours later."""
    from lerobot.accelerator.precision import check_master_weights

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).half())

    with pytest.raises(ConfigError, match=r"1\.weight is torch\.float16"):
        check_master_weights(model)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_an_update_with_a_fused_optimizer_reads_nothing_from_the_device(precision, fp16_on_cpu):
    from lerobot.step import train_step

    model = torch.nn.Linear(4, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, batch):
            loss = self.inner(batch["x"]).float().square().mean()
            return loss, {}

    with open_stack(AcceleratorConfig(precision), "auto", True) as stack:
        prepared = stack.prepare(Model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        train_step(prepared, [{"x": torch.ones(2, 4)}], optimizer, stack, 1.0)
        with CountReads() as counted:
            for _ in range(5):
                train_step(prepared, [{"x": torch.ones(2, 4)}], optimizer, stack, 1.0)

    assert counted.reads == 0
