"""What every policy is to the loop, the rollout and the checkpoint."""

from collections import deque
from itertools import chain

import torch
from torch import Tensor, nn

from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY
from lerobot.policies.config import PolicyConfig
from lerobot.policies.normalize import Normalizer, Stats, exact_constants

__all__ = ["Batch", "Counts", "Policy", "Stats"]

Batch = dict[str, Tensor]
"""LeRobot's keys to tensors with a leading batch axis, in robot units."""

Counts = dict[str, Tensor]
"""How many of each thing the means in a policy's loss are over: 0-d tensors on the device, the policy names them."""


class Policy(nn.Module):
    """A controller that learns from batches and acts on observations, both in robot units.

    A subclass gives `loss` and `predict_action_chunk`; acting from a queue of predicted actions is the same for all.
    """

    shard_units: tuple[str, ...] = ()
    """Classes of modules that hold most parameters: sharded, one of them is gathered at a time."""
    has_unused_parameters = False
    """Whether a loss may leave trainable parameters without a gradient."""

    def __init__(self, config: PolicyConfig, stats: Stats) -> None:
        super().__init__()
        self.config = config
        self.inputs = dict(config.input_features or {})
        self.outputs = dict(config.output_features or {})
        if ACTION_KEY not in self.outputs:
            raise ConfigError(
                f"a policy writes '{ACTION_KEY}', its output_features are {sorted(self.outputs)}: "
                f"name the dataset's action feature '{ACTION_KEY}'"
            )
        features = {**self.inputs, **self.outputs}
        self.normalizer = Normalizer(features, config.normalization_mapping, exact_constants(stats))
        self.rename_map: dict[str, str] = {}
        """Names in what comes in, to the policy's own. A checkpoint stores it."""
        self._queue: deque[Tensor] = deque()

    @property
    def device(self) -> torch.device:
        """Where the policy computes; a policy without tensors computes anywhere, and says cpu."""
        return next(chain(self.parameters(), self.buffers()), torch.empty(0)).device

    def loss(self, batch: Batch, counts: Counts | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The 0-d float32 loss of a batch, and its detached 0-d parts. Nothing is read back from the device.

        Where `batch` is a part of a larger one, `counts` are those of the whole: each mean is then the part's sum over
        the whole's count, so that losses and gradients of all parts add up to the whole's.
        """
        raise NotImplementedError

    def counts(self, batch: Batch) -> Counts:
        """What the means in `loss` are over; those of the parts of a batch add up to its own."""
        first = next(iter(batch.values()))
        return {"samples": torch.full((), len(first), device=first.device)}

    def forward(self, batch: Batch, *counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """`loss`, under the name that wrappers such as DDP call."""
        return self.loss(batch, *counts)

    def predict_action_chunk(self, observation: Batch) -> Tensor:
        """The next actions `(b, k, a)` in robot units, float32, the current step's first."""
        raise NotImplementedError

    def select_action(self, observation: Batch) -> Tensor:
        """The action `(b, a)` of this step in robot units, float32.

        It predicts a chunk, executes `config.n_action_steps` of it, and only then looks at an observation again.
        """
        if not self._queue:
            chunk = self.predict_action_chunk(observation)
            self._queue.extend(chunk[:, : self.config.n_action_steps].unbind(1))
        return self._queue.popleft()

    @property
    def looks(self) -> bool:
        """Whether the next `select_action` reads its observation, so that cameras need not be drawn where it does not.

        A policy that reads past observations too must see every one: it returns True.
        """
        return not self._queue

    def reset(self) -> None:
        """Forget what was predicted: a new episode starts."""
        self._queue.clear()

    def parameter_groups(self) -> list[dict]:
        """Groups for the optimizer; one with an `lr` of its own keeps it, the others take the optimizer's."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def normalized_inputs(self, batch: Batch) -> Batch:
        """The policy's inputs and nothing else: renamed, checked, on its device, normalised."""
        if self.rename_map:
            batch = {self.rename_map.get(key, key): value for key, value in batch.items()}
        device, inputs = self.device, {}
        for key, feature in self.inputs.items():
            value = _checked(batch, key, feature.shape).to(device, non_blocking=True)
            inputs[key] = self.normalizer.normalize(key, value)
        return inputs


def _checked(batch: Batch, key: str, shape: list[int]) -> Tensor:
    if key not in batch:
        has = ", ".join(sorted(name for name in batch if name.startswith("observation"))) or "nothing"
        raise ConfigError(
            f"the policy reads '{key}' and the observation has {has}: "
            f"type rename_map={{<name there>: {key}}}, or use a dataset or env that has it"
        )
    value = batch[key]
    if list(shape) == [1] and value.dim() == 1:
        value = value[:, None]  # a dataset gives features of one number as scalars
    if list(value.shape[1:]) != list(shape):
        raise ConfigError(
            f"'{key}' has shape {list(value.shape)} and the policy reads (batch, {', '.join(map(str, shape))}): "
            "use the dataset or env that the policy was made for"
        )
    return value
