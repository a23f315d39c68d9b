"""Which precisions a device really computes in, and what a forward pass really computed in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lerobot.accelerator.device import Device
from lerobot.errors import ConfigError

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(precision: str, device: Device) -> None:
    """Refuse what the device would emulate, or would quietly compute in float32."""
    if precision == "fp16" and not device.fp16:
        why = (
            "accelerate builds no loss scaler there"
            if device.type == "cpu"
            else "it has no float64, which loss scaling needs"
        )
        raise ConfigError(
            f"precision=fp16 does not work on {device.backend}: {why}; type precision=bf16 or precision=no"
        )
    if precision == "bf16" and not device.bf16:
        instead = "fp16" if device.fp16 else "no"
        raise ConfigError(
            f"precision=bf16 is only emulated on {device.name or device.backend}: type precision={instead}"
        )


@contextmanager
def observed_dtypes(module: nn.Module) -> Iterator[set[torch.dtype]]:
    """Collect the dtypes in which linear and convolution layers put out, as a hook sees them."""
    seen: set[torch.dtype] = set()
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    handles = [layer.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype)) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def check_observed(precision: str, seen: set[torch.dtype]) -> str:
    """The name of the dtype that the forward pass computed in; anything but the one asked for stops the run."""
    asked = DTYPES[precision]
    if seen - {asked}:
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in seen))
        raise RuntimeError(f"precision={precision} was asked for and the forward pass computed in {found}")
    return str(asked).removeprefix("torch.") if seen else "unknown: it has no linear layer and no convolution"


def check_master_weights(module: nn.Module) -> None:
    """Refuse trainable parameters below float32: their updates would be lost, and the scaler cannot unscale them."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            raise ConfigError(f"the parameter {name} is {parameter.dtype}: keep trainable parameters in float32")
