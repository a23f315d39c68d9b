"""What the accelerator side can be told. Imports no torch."""

import math
from dataclasses import dataclass, field
from typing import Any

from lerobot.errors import ConfigError
from lerobot.ranges import COUNT

PRECISIONS = ("no", "bf16", "fp16")
AUTO = "auto"


@dataclass
class GradScalerConfig:
    """Loss scaling that keeps small float16 gradients from becoming zero. Used with precision=fp16 only."""

    init_scale: float = 65536.0
    """First factor on the loss."""
    growth_factor: float = 2.0
    """Factor on the scale after `growth_interval` updates without an overflow."""
    backoff_factor: float = 0.5
    """Factor on the scale after an overflow."""
    growth_interval: int = 2000
    """Updates."""
    min_scale: float = 2.0**-10
    """The run stops where the scale falls below: no gradient is finite any more."""
    max_consecutive_skips: int = 50
    """The run stops after as many skipped updates in a row. 2**34 takes 18 to calibrate down to 2**16."""

    def __post_init__(self) -> None:
        where = "accelerator.grad_scaler"
        for name in ("init_scale", "min_scale"):
            if not (0 < getattr(self, name) < math.inf):
                raise ConfigError(f"{where}.{name}={getattr(self, name)}: type a finite number above 0")
        if not (1 < self.growth_factor < math.inf):
            raise ConfigError(f"{where}.growth_factor={self.growth_factor}: type a finite number above 1")
        if not (0 < self.backoff_factor < 1):
            raise ConfigError(f"{where}.backoff_factor={self.backoff_factor}: type a number between 0 and 1")
        for name in ("growth_interval", "max_consecutive_skips"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}.{name}={getattr(self, name)}: type a whole number of at least 1")
        if self.min_scale > self.init_scale:
            raise ConfigError(f"{where}.min_scale={self.min_scale} is above init_scale={self.init_scale}: type less")


@dataclass
class GradientAccumulationConfig:
    """How many batches of `batch_size` make one update."""

    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"accelerator.gradient_accumulation.steps={self.steps}: type 1 or more")


@dataclass
class AcceleratorConfig:
    """How the forward pass computes and how gradients become updates."""

    mixed_precision: Any = "no"
    """no, bf16 or fp16. Weights and updates stay float32."""
    grad_scaler: GradScalerConfig = field(default_factory=GradScalerConfig)
    gradient_accumulation: GradientAccumulationConfig = field(default_factory=GradientAccumulationConfig)
    micro_batch: Any = None
    """Most samples of a batch that are computed at once: a number, auto (the most that fits) or None (all). It changes
    memory and time, not the gradient."""
    num_threads: int | None = None
    """Threads of the processor; None leaves PyTorch's choice. 1 is best for small policies and jobs side by side."""
    cudnn_deterministic: bool = False
    """Only algorithms that give the same bits every time; slower. Otherwise cuDNN tries out which is fastest."""
    skip_nonfinite: bool = False
    """With no and bf16, skip an update whose gradient is not finite, as fp16 always does."""

    def __post_init__(self) -> None:
        if self.micro_batch not in (None, AUTO) and self.micro_batch not in COUNT:
            raise ConfigError(f"accelerator.micro_batch={self.micro_batch}: type 1 or more, auto, or null for all")
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(
                f"accelerator.num_threads={self.num_threads}: type 1 or more, or null for PyTorch's choice"
            )
        if self.mixed_precision in (None, False, "none", "fp32"):  # YAML reads an unquoted `no` as false
            self.mixed_precision = "no"
        if self.mixed_precision not in PRECISIONS:
            raise ConfigError(f"accelerator.mixed_precision={self.mixed_precision}: type precision=no, bf16 or fp16")
