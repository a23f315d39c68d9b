"""Convolutional features of camera images, from torchvision's ResNets."""

from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lerobot.errors import ConfigError


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and weights never change, in one kernel.

    torchvision's own computes in two passes and returns float32 under autocast, which makes every layer after it
    cast again. Small batches of near-identical frames would ruin statistics that do change.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # trained weights bring it, a frozen norm ignores it
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x: Tensor) -> Tensor:
        """`(b, c, h, w)` to the same."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


def frozen_resnet(name: str, weights: str | None, dilate: bool) -> tuple[nn.Sequential, int]:
    """A ResNet up to its last feature map, batch norms frozen, and the channels of that map.

    `weights` is a name in torchvision's weights API; `dilate` keeps the last stage at twice the resolution.
    Raises `ConfigError` for names that torchvision does not have, and for weights that are not there.
    """
    import torchvision  # seconds to import, and a policy without cameras needs none of it

    if not name.startswith("resnet") or name not in torchvision.models.list_models():
        have = [model for model in torchvision.models.list_models() if model.startswith("resnet")]
        raise ConfigError(f"policy.vision_backbone={name} is no ResNet of torchvision: type one of {', '.join(have)}")
    if dilate and name in ("resnet18", "resnet34"):
        raise ConfigError(
            f"policy.replace_final_stride_with_dilation=true needs bottleneck blocks, which {name} has not: "
            "add policy.vision_backbone=resnet50"
        )
    net = torchvision.models.get_model(
        name,
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        replace_stride_with_dilation=[False, False, dilate],
    )
    if weights is not None:
        net.load_state_dict(_pretrained(name, weights))
    stages = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    trunk = nn.Sequential(OrderedDict((stage, getattr(net, stage)) for stage in stages))
    return trunk, cast(nn.Linear, net.fc).in_features


def _pretrained(name: str, weights: str) -> dict[str, Tensor]:
    """torchvision's trained weights, downloaded into torch.hub's cache unless they are there."""
    import torchvision

    entries = torchvision.models.get_model_weights(name)
    known = [str(entry) for entry in entries]
    if weights not in known:
        raise ConfigError(
            f"policy.pretrained_backbone_weights={weights} does not belong to policy.vision_backbone={name}: "
            f"type one of {', '.join(known)}, or null"
        )
    entry = entries[weights.rpartition(".")[2]]
    try:
        return dict(entry.get_state_dict(check_hash=True))
    except OSError as error:
        file = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
        raise ConfigError(
            f"policy.pretrained_backbone_weights={weights} is not on this machine and could not be downloaded "
            f"({error}): type policy.pretrained_backbone_weights=null, or put the file at {file}"
        ) from error
