"""Loss scaling: the scaler that accelerate builds, or one that stands in where nothing is scaled.

Every precision takes the same calls. A disabled scaler passes them through.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from lerobot.accelerator.config import GradScalerConfig


class AgreedGradScaler(torch.amp.GradScaler):
    """An overflow in one rank's shard is one on every rank: all skip the update, all keep one scale.

    PyTorch's own asks the ranks that the first gradient is spread over, and cannot mix shards with whole tensors.
    """

    def _unscale_grads_(  # the one place that both `unscale_` and fused optimizers go through
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        parts: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
            if local.numel():
                parts.setdefault((local.device, local.dtype), []).append(local)
        with torch.no_grad():
            found = found_inf.clone()
            for (device, _), grads in parts.items():
                flag = torch.zeros((), dtype=torch.float32, device=device)
                torch._amp_foreach_non_finite_check_and_unscale_(grads, flag, inv_scale.to(device, non_blocking=True))
                found = torch.maximum(found, flag.to(found.device, non_blocking=True))
            if dist.is_available() and dist.is_initialized():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return {found.device: found}


def agreed(scaler: torch.amp.GradScaler) -> AgreedGradScaler:
    """`scaler`, not used yet, as one that the ranks agree on."""
    return AgreedGradScaler(
        scaler._device,
        init_scale=scaler.get_scale(),
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
    )


class NonfiniteGuard(AgreedGradScaler):
    """Skips an update whose gradient is not finite, and scales nothing: what fp16 has, for no and bf16."""

    def __init__(self, device_type: str) -> None:
        super().__init__(device_type, init_scale=1.0, growth_interval=2**31 - 1)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Forget the overflow and keep the scale at 1."""
        super().update(1.0 if new_scale is None else new_scale)


def was_skipped(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> Tensor:
    """1.0 where the gradients held an overflow, so that the step of `optimizer` leaves all as it is; on the device.

    To be read between `unscale_` and `update`. Whether `optimizer.step` was called says nothing: fused optimizers take
    the flag inside and are always called.
    """
    flags = list(scaler._found_inf_per_device(optimizer).values())
    return flags[0] if len(flags) == 1 else torch.stack([flag.to(flags[0].device) for flag in flags]).amax()


def scale_tensor(scaler: torch.amp.GradScaler) -> Tensor:
    """The scale as a tensor that is never written to again; reading it would wait for the device."""
    scale: Any = scaler._get_scale_async()
    return scale.clone()


def state(scaler: torch.amp.GradScaler) -> dict[str, float]:
    """The five numbers of `scaler_state.json`; waits for the device."""
    return {
        key: float(value) if "factor" in key or key == "scale" else int(value)
        for key, value in scaler.state_dict().items()
    }


def put_back(scaler: torch.amp.GradScaler, stored: dict[str, Any]) -> None:
    """Set what `state_dict` gave before, also where an update broke off between `unscale_` and `update`."""
    if scaler.is_enabled():
        scaler._per_optimizer_states.clear()
        scaler.load_state_dict(stored)


def load_state(scaler: torch.amp.GradScaler, stored: dict[str, float], settings: GradScalerConfig) -> None:
    """Go on from the stored scale and count. PyTorch would take the stored factors too, whatever `settings` say now.

    It grows where the count equals the interval: one beyond a shorter interval would never come to it.
    """
    moves = {name: getattr(settings, name) for name in ("growth_factor", "backoff_factor", "growth_interval")}
    count = min(int(stored["_growth_tracker"]), settings.growth_interval - 1)
    scaler.load_state_dict({**stored, **moves, "_growth_tracker": count})
