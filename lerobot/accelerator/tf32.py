"""The one place that touches TF32, and only through the switches that PyTorch has had since 2.9."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def _switches(device_type: str) -> list[object]:
    """Matrix products, convolutions and recurrent layers; cuDNN's own level too, else a later read there raises."""
    b = torch.backends
    if device_type == "xpu":
        return [b.mkldnn.matmul, b.mkldnn, b.mkldnn.conv, b.mkldnn.rnn]  # type: ignore[attr-defined]
    return [b.cuda.matmul, b.cudnn, b.cudnn.conv, b.cudnn.rnn]  # type: ignore[attr-defined]


@contextmanager
def tf32(enabled: bool | None, device_type: str) -> Iterator[None]:
    """Allow or forbid TF32 in float32 products until exit; None leaves PyTorch's defaults."""
    if enabled is None:
        yield
        return
    switches = _switches(device_type)
    before = [switch.fp32_precision for switch in switches]  # type: ignore[attr-defined]
    for switch in switches:
        switch.fp32_precision = "tf32" if enabled else "ieee"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value  # type: ignore[attr-defined]


def tf32_state(device_type: str) -> bool | str:
    """Whether float32 products really are TF32 now: True, False, or what is where PyTorch's defaults differ."""
    parts = dict(zip(("matmul", "library", "conv", "rnn"), _switches(device_type), strict=True))
    on = {name: parts[name].fp32_precision == "tf32" for name in ("matmul", "conv", "rnn")}  # type: ignore[attr-defined]
    if len(set(on.values())) == 1:
        return on["conv"]
    return "in " + " and ".join(name for name, is_on in on.items() if is_on)
