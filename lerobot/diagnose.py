"""Where numbers stop being finite: the first module with such an output, the parameters with such a gradient."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from lerobot.accelerator.shards import gathered


def first_nonfinite_module(policy: nn.Module, forward: Callable[[], Any]) -> str:
    """The innermost module whose output is the first that is not finite while `forward` runs; "none" if all are.

    Reads every output from the device: for a run that stops anyway.
    """
    found: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensors = output if isinstance(output, (tuple, list)) else [output]
            if not found and not all(bool(t.isfinite().all()) for t in tensors if isinstance(t, Tensor)):
                found.append(name)

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in policy.named_modules() if name]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "none"


def nonfinite_gradients(policy: nn.Module, most: int = 3) -> list[str]:
    """Names of the first parameters whose gradient is not finite. All ranks have to ask."""
    grads = ((name, gathered(p.grad)) for name, p in policy.named_parameters() if p.grad is not None)
    bad = (name for name, grad in grads if not bool(grad.isfinite().all()))
    return list(islice(bad, most))
