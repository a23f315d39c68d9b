"""Optimizers, in LeRobot's field names. Imports torch only to build one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lerobot.errors import ConfigError
from lerobot.ranges import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, check_ranges

if TYPE_CHECKING:
    import torch


@dataclass
class OptimizerConfig:
    """What every optimizer is told."""

    type: str = ""
    lr: float = 1e-3
    weight_decay: float = 0.0
    grad_clip_norm: float = 10.0
    """Largest global norm of the unscaled gradients; 0 leaves gradients alone and still reports the norm."""
    fused: bool = True
    """One kernel for all parameters: several times faster, and an overflow is seen without waiting for the device."""

    def __post_init__(self) -> None:
        check_ranges("optimizer", self, dict.fromkeys(("lr", "weight_decay", "grad_clip_norm"), NOT_NEGATIVE))

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """An optimizer over `groups`; a group's own `lr` wins over this one."""
        raise NotImplementedError


@dataclass
class AdamConfig(OptimizerConfig):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    type: str = "adam"
    betas: list[float] | None = None
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, {"eps": POSITIVE})
        if self.betas is not None and (len(self.betas) != 2 or any(beta not in BELOW_ONE for beta in self.betas)):
            raise ConfigError(
                f"optimizer.betas={self.betas}: type two numbers of at least 0 and below 1, as in [0.9,0.999]"
            )

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """See `OptimizerConfig.build`."""
        import torch

        return torch.optim.Adam(groups, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        betas = tuple(self.betas or (0.9, 0.999))
        return {
            "lr": self.lr,
            "betas": betas,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "fused": self.fused,
        }


@dataclass
class AdamWConfig(AdamConfig):
    """AdamW (Loshchilov and Hutter 2019); weight decay is decoupled from the gradient."""

    type: str = "adamw"

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """See `OptimizerConfig.build`."""
        import torch

        return torch.optim.AdamW(groups, **self._arguments())


@dataclass
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent with momentum."""

    type: str = "sgd"
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, {"momentum": BELOW_ONE, "dampening": FRACTION})
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ConfigError("optimizer.nesterov=true: add optimizer.momentum=0.9 and optimizer.dampening=0")

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """See `OptimizerConfig.build`."""
        import torch

        return torch.optim.SGD(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            dampening=self.dampening,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=self.fused,
        )
