"""One update: the same lines for no, bf16 and fp16."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lerobot.accelerator.stack import Stack, Update


def train_step(
    model: nn.Module,
    batches: Sequence[dict[str, Any]],
    optimizer: Optimizer,
    stack: Stack,
    clip_norm: float,
    counts: dict[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], Update]:
    """Apply one update from the gradient of all `batches` as one; return its losses and what became of it.

    `counts` is what the losses of all of them are means over (`Policy.counts`), None where there is one batch; of
    several ranks each is given its share of all, since gradients and metrics are averaged over the ranks. So
    micro-batches change peak memory and nothing else. All returned tensors are 0-d and still on the device: reading one
    waits for it, so they are read only when they are logged.
    """
    assert counts is not None or len(batches) == 1
    whole = () if counts is None else (counts,)
    optimizer.zero_grad(set_to_none=True)
    losses: list[dict[str, Tensor]] = []
    for number, batch in enumerate(batches, start=1):
        with stack.gradients(model, last=number == len(batches)):
            with stack.autocast():
                loss, parts = model(batch, *whole)
            stack.backward(loss)
        losses.append({"loss": loss.detach(), **parts})
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    update = stack.update(optimizer, parameters, clip_norm)
    metrics = {f"train/{key}": torch.stack([part[key] for part in losses]).sum() for key in losses[0]}
    return {**metrics, "train/grad_norm": update.grad_norm}, update
