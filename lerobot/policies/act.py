"""Action Chunking with Transformers: Zhao et al. 2023, arXiv 2304.13705, section IV and appendix."""

import logging
import math
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, ENV_STATE_KEY, STATE_KEY, Feature
from lerobot.policies.base import Batch, Counts, Policy, Stats
from lerobot.policies.config import ACTConfig
from lerobot.policies.transformer import Decoder, Encoder, LayerSize, grid_sinusoids, sinusoids
from lerobot.policies.vision import frozen_resnet

log = logging.getLogger(__name__)

STATE_MODULES = {STATE_KEY: "encoder_robot_state_input_proj", ENV_STATE_KEY: "encoder_env_state_input_proj"}


class ACTPolicy(Policy):
    """Predicts a chunk of actions at once; trained as a conditional variational autoencoder."""

    config: ACTConfig
    shard_units = ("EncoderLayer", "DecoderLayer", "BasicBlock", "Bottleneck")

    def __init__(self, config: ACTConfig, stats: Stats) -> None:
        super().__init__(config, stats)
        self.model = ACT(config)
        self._ensemble = TemporalEnsemble(config.temporal_ensemble_coeff, config.chunk_size)

    def loss(self, batch: Batch, counts: Counts | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """L1 distance in the normalised range, plus `kl_weight` times the divergence of the latent in training.

        The first is a mean over all unpadded numbers of the batch, the second over its samples.
        """
        counts = self.counts(batch) if counts is None else counts
        is_real = ~batch["action_is_pad"]
        action = self.normalizer.normalize(ACTION_KEY, batch[ACTION_KEY].reshape(*is_real.shape, -1))
        shown = (action, is_real) if self.training and self.config.use_vae else None
        predicted, latent = self.model(self.normalized_inputs(batch), shown)
        distance = (predicted - action).abs() * is_real[..., None]
        l1 = distance.sum() / (counts["unpadded"] * action.shape[-1]).clamp(min=1)
        parts = {"l1_loss": l1.detach()}
        if latent is None:
            return l1, parts
        mean, log_variance = latent
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / (2 * counts["samples"])
        parts["kld_loss"] = divergence.detach()
        return l1 + self.config.kl_weight * divergence, parts

    def counts(self, batch: Batch) -> Counts:
        """Samples, and their unpadded steps."""
        return {**super().counts(batch), "unpadded": (~batch["action_is_pad"]).sum()}

    @torch.no_grad()
    def predict_action_chunk(self, observation: Batch) -> Tensor:
        """See `Policy`. The latent is the prior's mean, so equal observations give equal actions."""
        predicted, _ = self.model(self.normalized_inputs(observation))
        return self.normalizer.unnormalize(ACTION_KEY, predicted)

    def select_action(self, observation: Batch) -> Tensor:
        """See `Policy`. With `temporal_ensemble_coeff` it predicts at every step and averages over predictions."""
        if self.config.temporal_ensemble_coeff is None:
            return super().select_action(observation)
        return self._ensemble.add(self.predict_action_chunk(observation))

    def reset(self) -> None:
        """See `Policy`."""
        super().reset()
        self._ensemble.reset()

    def parameter_groups(self) -> list[dict]:
        """The rest, then the backbone at `optimizer_lr_backbone`: LeRobot's order, two groups also if one is empty."""
        groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups[name.startswith("model.backbone.")].append(parameter)
        return [{"params": groups[False]}, {"params": groups[True], "lr": self.config.optimizer_lr_backbone}]


class TemporalEnsemble:
    """The mean of all predictions made for a step, the i-th oldest weighted by `exp(-coeff * i)` (algorithm 2)."""

    def __init__(self, coeff: float | None, chunk_size: int) -> None:
        self.coeff = coeff or 0.0
        self.chunk_size = chunk_size
        self.reset()

    def reset(self) -> None:
        """Forget the predictions of the last episode."""
        self._sum: Tensor | None = None
        self._num_chunks = 0

    def add(self, chunk: Tensor) -> Tensor:
        """Take in the chunk `(b, k, a)` predicted at this step and give this step's action `(b, a)`."""
        # Step j of a chunk has been predicted by as many earlier chunks as were long enough to reach it.
        ages = [min(self._num_chunks, self.chunk_size - 1 - j) for j in range(self.chunk_size)]
        weights = torch.tensor([math.exp(-self.coeff * age) for age in ages], device=chunk.device)
        total = chunk * weights[:, None]
        if self._sum is not None:
            total[:, :-1] += self._sum
        self._sum = total[:, 1:]
        self._num_chunks += 1
        return total[:, 0] / sum(math.exp(-self.coeff * age) for age in range(ages[0] + 1))


class ACT(nn.Module):
    """The network of ACT, in the normalised range. Module names, and the order of parameters, are LeRobot's."""

    vae_encoder_pos_enc: Tensor
    image_positions: Tensor

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        inputs, outputs = config.input_features or {}, config.output_features or {}
        self.latent_dim = config.latent_dim
        self.states = [key for key in (STATE_KEY, ENV_STATE_KEY) if key in inputs]
        self.cameras = [key for key, feature in inputs.items() if feature.type == "VISUAL"]
        _check_inputs(inputs, [*self.states, *self.cameras])
        dim = config.dim_model
        size = LayerSize(
            dim, config.n_heads, config.dim_feedforward, config.dropout, config.feedforward_activation, config.pre_norm
        )
        if config.use_vae:
            self._add_action_encoder(config, size)
        if self.cameras:
            dilate = config.replace_final_stride_with_dilation
            self.backbone, channels = frozen_resnet(config.vision_backbone, config.pretrained_backbone_weights, dilate)
        self.encoder = Encoder(size, config.n_encoder_layers)
        self.decoder = Decoder(size, config.n_decoder_layers)
        for key in self.states:
            self.add_module(STATE_MODULES[key], nn.Linear(inputs[key].shape[0], dim))
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, dim)
        if self.cameras:
            self.encoder_img_feat_input_proj = nn.Conv2d(channels, dim, kernel_size=1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + len(self.states), dim)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, dim)
        self.action_head = nn.Linear(dim, outputs[ACTION_KEY].shape[0])
        shapes = [inputs[key].shape for key in self.cameras]
        self.register_buffer("image_positions", _image_positions(shapes, config), persistent=False)
        for parameter in chain(self.encoder.parameters(), self.decoder.parameters()):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def _add_action_encoder(self, config: ACTConfig, size: LayerSize) -> None:
        """The part that is only used in training: it tells from the true actions which of many ways was taken."""
        inputs, outputs = config.input_features or {}, config.output_features or {}
        self.vae_encoder = Encoder(size, config.n_vae_encoder_layers)
        self.vae_encoder_cls_embed = nn.Embedding(1, size.dim)
        num_tokens = 1 + config.chunk_size
        if STATE_KEY in inputs:
            self.vae_encoder_robot_state_input_proj = nn.Linear(inputs[STATE_KEY].shape[0], size.dim)
            num_tokens += 1
        self.vae_encoder_action_input_proj = nn.Linear(outputs[ACTION_KEY].shape[0], size.dim)
        self.vae_encoder_latent_output_proj = nn.Linear(size.dim, 2 * config.latent_dim)
        self.register_buffer("vae_encoder_pos_enc", sinusoids(torch.arange(num_tokens), size.dim)[None])

    def encode_actions(self, inputs: Batch, action: Tensor, is_real: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance `(b, latent_dim)`, float32, of the latent behind `action (b, k, a)`.

        `is_real (b, k)` is False at padding.
        """
        tokens = [self.vae_encoder_cls_embed.weight.expand(len(action), 1, -1)]
        if STATE_KEY in inputs:
            tokens.append(self.vae_encoder_robot_state_input_proj(inputs[STATE_KEY])[:, None])
        mask = F.pad(is_real, (len(tokens), 0), value=True)
        tokens.append(self.vae_encoder_action_input_proj(action))
        encoded = self.vae_encoder(torch.cat(tokens, dim=1), self.vae_encoder_pos_enc, mask)
        mean, log_variance = self.vae_encoder_latent_output_proj(encoded[:, 0]).float().chunk(2, dim=-1)
        return mean, log_variance

    def forward(
        self, inputs: Batch, shown: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The predicted actions `(b, k, a)`, float32, and the latent's distribution.

        With `shown` (`action` and `is_real`, see `encode_actions`) the latent is drawn from what they tell;
        without, it is the prior's mean and its distribution None.
        """
        first = next(iter(inputs.values()))
        latent, distribution = first.new_zeros(len(first), self.latent_dim), None
        if shown is not None:
            distribution = mean, log_variance = self.encode_actions(inputs, *shown)
            latent = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        tokens = [self.encoder_latent_input_proj(latent)[:, None]]
        tokens += [getattr(self, STATE_MODULES[key])(inputs[key])[:, None] for key in self.states]
        tokens += self._image_tokens([inputs[key] for key in self.cameras])
        positions = torch.cat([self.encoder_1d_feature_pos_embed.weight, self.image_positions])
        memory = self.encoder(torch.cat(tokens, dim=1), positions)
        queries = self.decoder_pos_embed.weight
        blank = queries.new_zeros(len(first), *queries.shape)
        return self.action_head(self.decoder(blank, queries, memory, positions)).float(), distribution

    def _image_tokens(self, images: list[Tensor]) -> list[Tensor]:
        """Images `(b, c, h, w)` to tokens `(b, n, d)`, one for each cell of the feature map, row by row."""
        one_pass = len(images) > 1 and len({image.shape for image in images}) == 1
        batches = [torch.cat(images)] if one_pass else images
        tokens = [self.encoder_img_feat_input_proj(self.backbone(x)).flatten(2).transpose(1, 2) for x in batches]
        return list(tokens[0].chunk(len(images))) if one_pass else tokens


def _check_inputs(inputs: dict[str, Feature], read: list[str]) -> None:
    if not read:
        raise ConfigError(
            f"ACT reads {STATE_KEY}, {ENV_STATE_KEY} or cameras, and is offered {sorted(inputs)}: "
            "use a dataset that has one of them, or type rename_map={<its name>: <the one ACT reads>}"
        )
    if unread := sorted(inputs.keys() - set(read)):
        log.warning("ACT reads %s, %s and cameras: %s have no effect", STATE_KEY, ENV_STATE_KEY, unread)
    for key in read:
        if inputs[key].type == "VISUAL" and (len(inputs[key].shape) != 3 or inputs[key].shape[0] != 3):
            raise ConfigError(
                f"ACT sees images of shape [3, height, width] and '{key}' has shape {inputs[key].shape}: "
                "leave it out of policy.input_features"
            )


def _image_positions(shapes: list[list[int]], config: ACTConfig) -> Tensor:
    """Positions `(n, d)` of the feature map's cells of all cameras, in the order of their tokens."""
    stride = 16 if config.replace_final_stride_with_dilation else 32
    cells = [(math.ceil(height / stride), math.ceil(width / stride)) for _, height, width in shapes]
    grids = [grid_sinusoids(*cell, config.dim_model) for cell in cells]
    return torch.cat([torch.empty(0, config.dim_model), *grids])
