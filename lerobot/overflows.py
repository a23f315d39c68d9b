"""Updates that do not land: told of where they are new, and the end of a run where none lands any more."""

import logging
from typing import Any

from lerobot.accelerator.stack import Stack, Update
from lerobot.config import TrainConfig
from lerobot.diagnose import first_nonfinite_module, nonfinite_gradients
from lerobot.errors import RunError
from lerobot.policies.base import Policy
from lerobot.schedule import due
from lerobot.tracking.window import Window

log = logging.getLogger(__name__)

MOST_TOLD, TOLD_UNTIL = 3, 20
"""Skipped updates that are told of one by one, and the last update in which one is looked for."""


class Overflows:
    """Looks at each update of a run for one that was skipped."""

    def __init__(self, config: TrainConfig, stack: Stack, policy: Policy, window: Window) -> None:
        self._settings = config.accelerator.grad_scaler
        self._stack, self._policy, self._window = stack, policy, window
        self._told = 0

    def look(self, step: int, update: Update, batch: dict[str, Any]) -> None:
        """Take in what became of `step`, of which `batch` was a part. Raises `RunError` where no update lands."""
        if update.skipped is None:
            return
        if self._told < MOST_TOLD and step <= TOLD_UNTIL:
            self._tell(step, update)
        if due(step, max(1, self._settings.max_consecutive_skips // 10), last=False):
            self._stop_if_stuck(step, batch)

    def _tell(self, step: int, update: Update) -> None:
        """Say where the first skipped updates overflowed. Reads from the device, hence in the first updates only."""
        if not bool(update.skipped):
            return
        self._told += 1
        scale = "" if update.scale is None else f", the loss scale falls to {float(update.scale):g}"
        names = ", ".join(nonfinite_gradients(self._policy))
        log.info("update %d is skipped: its gradient is not finite (%s)%s; that is normal at first", step, names, scale)

    def _stop_if_stuck(self, step: int, batch: dict[str, Any]) -> None:
        """End the run where no update lands any more; reads from the device, so it is asked in a tenth of the limit."""
        settings = self._settings
        _, consecutive = self._window.totals()
        scale = self._stack.scaler.get_scale()
        until_next_look = max(1, settings.max_consecutive_skips // 10)
        if consecutive + until_next_look <= settings.max_consecutive_skips and scale >= settings.min_scale:
            return
        parameters = nonfinite_gradients(self._policy)
        with self._stack.autocast(), self._stack.layout.whole(self._policy) as policy:
            module = first_nonfinite_module(policy, lambda: policy.loss(batch))
        scaled = f" (loss scale {scale:g})" if self._stack.has_scale else ""
        instead = "type precision=bf16" if self._stack.has_scale else "lower policy.optimizer_lr"
        raise RunError(
            f"{consecutive} updates in a row were not finite up to step {step}{scaled}: "
            f"first module with such an output: {module}; "
            f"parameters with such a gradient: {', '.join(parameters) or 'none'}; "
            f"checkpoints stay as they are; look at the data, or {instead}"
        )
