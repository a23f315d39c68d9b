"""Which precisions a device really computes in, and what a forward pass really computed in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lerobot.accelerator.device import Device
from lerobot.accelerator.smoke import DTYPES
from lerobot.errors import ConfigError


def check_precision(precision: str, device: Device) -> None:
    """Refuse what the device would emulate, or would quietly compute in float32."""
    why = device.can.why_not(precision)
    if not why:
        return
    instead = [f"precision={word}" for word in ("bf16", "fp16", "no") if not device.can.why_not(word)]
    found = "is only emulated on" if precision == "bf16" and device.can.bf16 == "emulated" else "does not work on"
    name = f"{device.backend} ({device.name})" if device.name and device.type != "cpu" else device.backend
    raise ConfigError(f"precision={precision} {found} {name}, {why}: type {' or '.join(instead)}")


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


def check_moments(optimizer: Optimizer) -> None:
    """Refuse moments below float32, in which small updates are lost. There are none before the first update."""
    for entry in optimizer.state.values():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
                raise RuntimeError(f"the optimizer keeps {name} in {value.dtype} and not in float32")


def check_master_weights(module: nn.Module) -> None:
    """Refuse trainable parameters below float32: their updates would be lost, and the scaler cannot unscale them."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            raise ConfigError(f"the parameter {name} is {parameter.dtype}: keep trainable parameters in float32")
