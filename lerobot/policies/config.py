"""What a policy can be told, in LeRobot's field names. Imports no torch, so that a typo is answered at once."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.ranges import BELOW_ONE, COUNT, COUNT_OR_NONE, FINITE, NOT_NEGATIVE, check_ranges

if TYPE_CHECKING:
    from lerobot.policies.base import Policy, Stats


MODES = ("MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10", "IDENTITY")
"""How a feature can be normalised, in LeRobot's words."""
EPS = 1e-8
"""Added to every deviation; LeRobot's processors use and store the same."""


@dataclass
class PolicyConfig:
    """The fields that every policy shares. `config.json` holds them under the same names."""

    type: str = ""
    n_obs_steps: int = 1
    """Observed steps given to the policy, the current one included."""
    input_features: dict[str, Feature] | None = None
    """None: what the dataset has."""
    output_features: dict[str, Feature] | None = None
    normalization_mapping: dict[str, str] = field(default_factory=dict)
    """Feature type to MEAN_STD, MIN_MAX, QUANTILES, QUANTILE10 or IDENTITY; a type left out is not normalised."""
    n_action_steps: int = 1
    """Actions of a chunk that are executed before the next prediction."""
    device: str | None = "auto"
    use_amp: bool = False
    use_peft: bool = False
    push_to_hub: bool = False
    repo_id: str | None = None
    private: bool | None = None
    tags: list[str] | None = None
    license: str | None = None
    pretrained_path: str | None = None
    """Where the first weights come from: a checkpoint, a run, or a `pretrained_model` folder."""
    pretrained_revision: str | None = None

    def __post_init__(self) -> None:
        for kind, mode in self.normalization_mapping.items():
            if mode not in MODES:
                raise ConfigError(f"policy.normalization_mapping: {kind}={mode} is none of {', '.join(MODES)}")

    @property
    def observation_delta_indices(self) -> list[int] | None:
        """Steps around the current one at which observations are read; None: the current one, without a time axis."""
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        """Steps around the current one at which actions are read."""
        raise NotImplementedError

    def build(self, stats: "Stats") -> "Policy":
        """A policy with fresh weights whose normaliser holds `stats`."""
        raise NotImplementedError


@dataclass
class ACTConfig(PolicyConfig):
    """Action Chunking with Transformers (Zhao et al. 2023, arXiv 2304.13705)."""

    type: str = "act"
    chunk_size: int = 100
    """Actions predicted at once, in steps."""
    n_action_steps: int = 100
    normalization_mapping: dict[str, str] = field(
        default_factory=lambda: {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ENV": "MEAN_STD", "ACTION": "MEAN_STD"}
    )
    vision_backbone: str = "resnet18"
    pretrained_backbone_weights: str | None = None
    replace_final_stride_with_dilation: bool = False
    pre_norm: bool = False
    dim_model: int = 512
    n_heads: int = 8
    dim_feedforward: int = 3200
    feedforward_activation: str = "relu"
    n_encoder_layers: int = 4
    n_decoder_layers: int = 1
    use_vae: bool = True
    latent_dim: int = 32
    n_vae_encoder_layers: int = 4
    temporal_ensemble_coeff: float | None = None
    """Weight decay of older predictions (appendix of the paper); needs n_action_steps=1."""
    dropout: float = 0.1
    kl_weight: float = 10.0
    optimizer_lr: float = 1e-5
    optimizer_weight_decay: float = 1e-4
    optimizer_lr_backbone: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("policy", self, _ACT_RANGES)
        if self.use_vae:
            check_ranges("policy", self, {"n_vae_encoder_layers": COUNT})
        if self.temporal_ensemble_coeff is not None:
            check_ranges("policy", self, {"temporal_ensemble_coeff": FINITE})
        if self.n_action_steps > self.chunk_size:
            raise ConfigError(
                f"policy.n_action_steps={self.n_action_steps} executes more steps than "
                f"policy.chunk_size={self.chunk_size} predicts: type policy.n_action_steps={self.chunk_size} or less"
            )
        if self.temporal_ensemble_coeff is not None and self.n_action_steps != 1:
            raise ConfigError(
                "policy.temporal_ensemble_coeff predicts at every step: add policy.n_action_steps=1 "
                f"(it is {self.n_action_steps})"
            )
        if self.n_obs_steps != 1:
            raise ConfigError(f"policy.n_obs_steps={self.n_obs_steps}: ACT reads one step, type policy.n_obs_steps=1")
        if self.dim_model % self.n_heads or self.dim_model % 4:
            raise ConfigError(
                f"policy.dim_model={self.dim_model} does not divide into policy.n_heads={self.n_heads} heads and the "
                f"4 parts of a position: type a multiple of {math.lcm(self.n_heads, 4)}"
            )
        if self.feedforward_activation not in ("relu", "gelu"):
            raise ConfigError(f"policy.feedforward_activation={self.feedforward_activation}: type relu or gelu")

    @property
    def action_delta_indices(self) -> list[int]:
        """The current step and the `chunk_size - 1` after it."""
        return list(range(self.chunk_size))

    def build(self, stats: "Stats") -> "Policy":
        """See `PolicyConfig.build`."""
        from lerobot.policies.act import ACTPolicy

        return ACTPolicy(self, stats)


# Without an encoder the decoder reads the embedded inputs, which learns; without a decoder nothing reads them.
_ACT_RANGES = {
    **dict.fromkeys(("chunk_size", "n_action_steps", "n_heads", "dim_model", "dim_feedforward", "latent_dim"), COUNT),
    **{"n_encoder_layers": COUNT_OR_NONE, "n_decoder_layers": COUNT, "dropout": BELOW_ONE},
    **dict.fromkeys(("kl_weight", "optimizer_lr", "optimizer_weight_decay", "optimizer_lr_backbone"), NOT_NEGATIVE),
}

POLICY_CONFIGS: dict[str, type[Any]] = {"act": ACTConfig}
"""The `type` of a `config.json` to the class that reads it."""
