"""Divides the batches of an update into micro-batches that fit into memory, and finds out which do."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lerobot.accelerator import grad_scaler
from lerobot.accelerator.config import AUTO
from lerobot.accelerator.memory import is_out_of_memory
from lerobot.accelerator.stack import Stack
from lerobot.config import TrainConfig
from lerobot.envs.scope import preserved_rng
from lerobot.policies.base import Batch, Counts, Policy
from lerobot.step import train_step

log = logging.getLogger(__name__)

PROBES = 2
"""Updates that must pass: the first allocates the optimizer's state, the second runs beside it."""


class MicroBatches:
    """Batches in, micro-batches of at most `size` samples out, with what their losses count together.

    With `accelerator.micro_batch=auto` the first call tries `size` out on the batches it is given, and leaves
    everything as it was: the run is the one in which the number that was found had been typed.
    """

    def __init__(
        self, config: TrainConfig, policy: Policy, model: nn.Module, optimizer: Optimizer, stack: Stack
    ) -> None:
        asked = config.accelerator.micro_batch
        self.size = min(asked, config.batch_size) if isinstance(asked, int) else config.batch_size
        self._config, self._policy, self._model, self._optimizer, self._stack = config, policy, model, optimizer, stack
        self._must_find = asked == AUTO and stack.can_run_out
        if asked == AUTO and not stack.can_run_out:
            log.info(
                "accelerator.micro_batch=auto has nothing to find on %s, where the system ends a process that takes "
                "too much: batches stay whole", stack.device.word,
            )  # fmt: skip

    def __call__(self, batches: Sequence[Batch], counts: Counts | None = None) -> tuple[list[Batch], Counts | None]:
        """The micro-batches of one update; None with a single one, which is all that its losses are over.

        `counts` are given where other ranks have batches of the update too.
        """
        if self._must_find:
            self._find(batches)
        parts = [part for batch in batches for part in divide(batch, self.size)]
        if counts is None and len(parts) > 1:
            counts = total_counts(self._policy, parts)
        return parts, counts

    def _find(self, batches: Sequence[Batch]) -> None:
        self._must_find = False
        before = _Before(self._policy, self._optimizer, self._stack.scaler)
        with preserved_rng(self._stack.device.torch_device):
            while not self._fits(batches, before):
                self._stack.forget_peak()  # out of the handler, which kept what the failed update held
                self.size = -(-self.size // 2)
        self._stack.forget_peak()
        log.info(
            "accelerator.micro_batch=auto: %s, batch_size=%d",
            "whole batches fit" if self.size == self._config.batch_size else f"{self.size} samples at once fit",
            self._config.batch_size,
        )

    def _fits(self, batches: Sequence[Batch], before: "_Before") -> bool:
        clip_norm = self._config.optimizer.grad_clip_norm
        try:
            for _ in range(PROBES):
                parts, counts = self(batches)
                train_step(self._model, parts, self._optimizer, self._stack, clip_norm, counts)
        except (RuntimeError, MemoryError) as error:
            if self.size == 1 or not is_out_of_memory(error):
                raise
            return False
        finally:
            before.put_back()
        return True


def divide(batch: Batch, size: int) -> list[Batch]:
    """`batch` in pieces of `size` samples, the last with what is left; they share its memory."""
    pieces = {key: value.split(size) for key, value in batch.items()}
    return [dict(zip(pieces, values, strict=True)) for values in zip(*pieces.values(), strict=True)]


def total_counts(policy: Policy, parts: Sequence[Batch]) -> Counts:
    """What the losses of `parts` count together; reads nothing from the device."""
    each = [policy.counts(part) for part in parts]
    return {key: torch.stack([counts[key] for counts in each]).sum() for key in each[0]}


class _Before:
    """Weights, optimizer and scaler of this moment, to the bit, however an update on them ends.

    The copies are in the machine's memory: the device's is what may be short.
    """

    def __init__(self, policy: Policy, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        self._state = {parameter: dict(entry) for parameter, entry in optimizer.state.items()}
        held = [value for entry in self._state.values() for value in entry.values() if isinstance(value, Tensor)]
        tensors = [*policy.parameters(), *policy.buffers(), *held]
        self._values = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors]
        self._scale = scaler.state_dict()

    @torch.no_grad()
    def put_back(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()
        self._optimizer.state.update({parameter: dict(entry) for parameter, entry in self._state.items()})
        for tensor, value in self._values:
            tensor.copy_(value)
        grad_scaler.put_back(self._scaler, self._scale)
