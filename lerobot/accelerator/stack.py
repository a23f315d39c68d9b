"""The accelerator side of a run: one device, one precision, one scaler, all from the config and from nothing else."""

import gc
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradScalerKwargs
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from lerobot.accelerator.device import Device
from lerobot.accelerator.fallback import named_fallbacks
from lerobot.accelerator.grad_scaler import NonfiniteGuard, scale_tensor, was_skipped
from lerobot.accelerator.layout import Layout, choose
from lerobot.accelerator.parallel import ALONE, World
from lerobot.accelerator.parallel_config import ParallelismConfig, is_rank
from lerobot.accelerator.precision import check_precision
from lerobot.accelerator.rank_device import device_of_rank
from lerobot.accelerator.shards import gathered
from lerobot.accelerator.tf32 import tf32, tf32_state
from lerobot.config import AcceleratorConfig
from lerobot.errors import ConfigError
from lerobot.policies.base import Policy

log = logging.getLogger(__name__)

_VARIABLES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_HARMLESS = ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU")


class Update(NamedTuple):
    """What became of one update; 0-d tensors on the device."""

    grad_norm: Tensor
    """Of the unscaled gradients, before clipping."""
    skipped: Tensor | None
    """1.0 where the update left all as it was; None where nothing can be skipped."""
    scale: Tensor | None
    """The loss scale after the update; None without fp16."""


@dataclass
class Stack:
    """Device, autocast and scaler of one run."""

    accelerator: Accelerator
    device: Device
    precision: str
    tf32: bool | None
    scaler: torch.amp.GradScaler
    layout: Layout = field(default_factory=Layout)
    world: World = ALONE

    @property
    def has_scale(self) -> bool:
        """Whether the loss is scaled, so that there is a scale to log and to save."""
        return self.precision == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        """The context in which a forward pass computes in the run's precision; no context at all in float32."""
        return self.accelerator.autocast()

    def prepare(self, policy: Policy) -> nn.Module:
        """The policy on the device, as the module to call in training."""
        return self.layout.prepare(self.accelerator, policy)

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; the `last` one of an update reduces gradients over ranks."""
        return self.layout.gradients(model, last=last)

    def to_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Move a batch's tensors; from pinned memory the copy does not wait."""
        target = self.device.torch_device
        can_wait = self.device.can.non_blocking
        return {k: v.to(target, non_blocking=can_wait) if isinstance(v, Tensor) else v for k, v in batch.items()}

    @property
    def pins_memory(self) -> bool:
        """Whether batches wait in pinned memory, from which they are copied while the device computes."""
        return self.device.can.pinned_memory

    def fuses(self, asked: bool, optimizer: str = "") -> bool:
        """Whether `optimizer` may be fused as `asked`; says so where a fused one would apply what must be skipped."""
        can = self.device.can
        if asked and self.layout.shard > 1 and optimizer == "sgd":
            log.info("optimizer.fused=true is not used: PyTorch has no fused SGD for shards")
            return False
        if not asked or (can.fused and (can.fused_skips or not self.scaler.is_enabled())):
            return asked
        log.warning(
            "optimizer.fused=true is not used on %s with a loss scaler: %s",
            self.device.backend, can.lacks.get("fused") or can.lacks.get("fused_skips"),
        )  # fmt: skip
        return False

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to the parameters, scaled if the scaler is on."""
        self.scaler.scale(loss).backward()

    def update(self, optimizer: Optimizer, parameters: Iterable[Tensor], clip_norm: float) -> Update:
        """Clip to `clip_norm` (0: not), step, and say what became of it. One path for no, bf16 and fp16."""
        self.scaler.unscale_(optimizer)
        parameters = list(parameters)  # both leave out those without a gradient
        norm = gathered(get_total_norm([p.grad for p in parameters if p.grad is not None]))
        clip_grads_with_norm_(parameters, clip_norm or float("inf"), norm)
        skipped = was_skipped(self.scaler, optimizer) if self.scaler.is_enabled() else None
        self.scaler.step(optimizer)
        self.scaler.update()
        return Update(norm, skipped, scale_tensor(self.scaler) if self.has_scale else None)

    @property
    def can_run_out(self) -> bool:
        """Whether an allocation that does not fit raises: a system lends a process more than there is, then ends it."""
        return self.device.can.memory != "process"

    def forget_peak(self) -> None:
        """Free what nothing holds any more, and count the peak from now on."""
        gc.collect()
        if self.can_run_out:
            torch.get_device_module(self.device.type).empty_cache()
        if self.device.can.memory == "allocator":
            torch.accelerator.reset_peak_memory_stats(self.device.torch_device)

    def peak_memory_gb(self) -> float:
        """The most memory that the run held at once, in GiB: of the card, or of this process on the processor."""
        if self.device.can.memory == "allocator":
            return torch.accelerator.max_memory_allocated(self.device.torch_device) / 2**30
        if self.device.can.memory == "driver":
            return torch.mps.driver_allocated_memory() / 2**30
        return _process_peak_gb()

    def facts(self) -> dict[str, Any]:
        """What really runs, for `run.json`."""
        return {
            "device": str(self.device.torch_device),
            "backend": self.device.backend,
            "device_name": self.device.name,
            "mixed_precision": self.precision,
            "scaler": type(self.scaler).__name__ if self.scaler.is_enabled() else None,
            "tf32": tf32_state(self.device.type) if self.device.can.tf32 else None,
            "world_size": self.world.size,
            **self.layout.facts(),
        }


def _process_peak_gb() -> float:
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return getattr(psutil.Process().memory_info(), "peak_wset", 0) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # macOS counts bytes, Linux KiB


def _reset_process_peak() -> None:
    """Count the peak from here on, where the system can (Linux): an earlier job of a sweep may have held more."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def release_memory() -> None:
    """Give back what the allocators of cards keep for later."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


@contextmanager
def open_stack(
    config: AcceleratorConfig,
    request: str | None,
    use_tf32: bool | None,
    world: World = ALONE,
    parallelism: ParallelismConfig | None = None,
) -> Iterator[Stack]:
    """Build what `config` asks for on the device that `request` names, or refuse; put every global back on exit."""
    if is_rank() and world is ALONE:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} asks for several processes, and this works in one: start it "
            "without torchrun or `accelerate launch`"
        )
    layout = choose(parallelism or ParallelismConfig(), world, config.mixed_precision)
    device = device_of_rank(request, config.mixed_precision, world)
    check_precision(config.mixed_precision, device)
    with ExitStack() as stack:
        stack.enter_context(_threads(config.num_threads))
        stack.enter_context(_cudnn(config.cudnn_deterministic))
        stack.enter_context(_config_alone(device))
        stack.enter_context(_current(device))
        stack.enter_context(named_fallbacks(device.backend))
        accelerator = build_accelerator(config, device)
        assert accelerator.device.type == device.type, (accelerator.device, device)
        stack.enter_context(tf32(use_tf32, device.type))  # after accelerate, which may set it too
        _say_unused(config, use_tf32, device)
        scaler = _scaler(accelerator, config, device, layout)
        yield Stack(accelerator, device, config.mixed_precision, use_tf32, scaler, layout, world)


def build_accelerator(config: AcceleratorConfig, device: Device) -> Accelerator:
    """Hugging Face accelerate's object with every choice passed in; it builds the loss scaler for fp16."""
    settings = config.grad_scaler
    scaler = GradScalerKwargs(
        init_scale=settings.init_scale,
        growth_factor=settings.growth_factor,
        backoff_factor=settings.backoff_factor,
        growth_interval=settings.growth_interval,
    )
    return Accelerator(
        mixed_precision=config.mixed_precision,
        cpu=device.type == "cpu",
        gradient_accumulation_steps=1,  # micro-batches are the loop's own business
        kwargs_handlers=[scaler],
    )


def _scaler(
    accelerator: Accelerator, config: AcceleratorConfig, device: Device, layout: Layout
) -> torch.amp.GradScaler:
    if config.mixed_precision == "fp16":
        scaler = accelerator.scaler
        if scaler is None or not scaler.is_enabled():
            raise RuntimeError(
                f"precision=fp16 was asked for and accelerate built no working loss scaler on {device.backend}"
            )
        return layout.fitted(scaler)
    if config.skip_nonfinite:
        return NonfiniteGuard(device.type)
    return torch.amp.GradScaler(device.type, enabled=False)


def _say_unused(config: AcceleratorConfig, use_tf32: bool | None, device: Device) -> None:
    if config.mixed_precision != "fp16" and config.grad_scaler != type(config.grad_scaler)():
        log.warning("accelerator.grad_scaler is set and unused: only precision=fp16 scales the loss")
    if use_tf32 and not device.can.tf32 and device.type != "cpu":
        log.info("tf32=true has no effect on %s, which has no TF32", device.name or device.backend)
    if config.mixed_precision == "bf16" and device.type == "cpu":
        log.info("precision=bf16 on cpu saves memory; it gains time only where the processor has bfloat16 units")


@contextmanager
def _config_alone(device: Device) -> Iterator[None]:
    """Hide the variables that accelerate obeys before its arguments, say which, and forget its state after."""
    before = {key: value for key, value in os.environ.items() if key.startswith(_VARIABLES)}
    for key, value in before.items():
        del os.environ[key]
        if key not in _HARMLESS:
            log.warning("%s=%s is ignored: the config alone decides", key, value)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device.torch_device)
    _forget_accelerate()
    try:
        yield
    finally:
        _forget_accelerate()
        for key in [key for key in os.environ if key.startswith(_VARIABLES)]:
            del os.environ[key]
        os.environ.update(before)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _cudnn(deterministic: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def _forget_accelerate() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextmanager
def _current(device: Device) -> Iterator[None]:
    """Make the card the current one, so that what names no index lands there; free its cache on exit."""
    if device.index is None:
        if device.can.memory == "process":
            _reset_process_peak()
        yield
        return
    before = torch.accelerator.current_device_index()
    torch.accelerator.set_device_index(device.index)
    torch.accelerator.reset_peak_memory_stats(device.index)
    try:
        yield
    finally:
        torch.accelerator.set_device_index(before)
        torch.get_device_module(device.type).empty_cache()
