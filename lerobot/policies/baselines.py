"""What a learned policy has to beat: two controllers fitted in closed form from the same demonstrations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, policy_features
from lerobot.policies.base import Batch, Policy, Stats
from lerobot.policies.config import PolicyConfig

FRAMES_AT_ONCE = 4096


class Demonstrations(Protocol):
    """What a baseline is fitted from: a LeRobotDataset read without action windows, best opened without its cameras."""

    @property
    def meta(self) -> Any:
        """With `features` and `stats`."""
        ...

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> Batch: ...


@dataclass
class BaselineConfig(PolicyConfig):
    """A baseline has nothing to set."""

    @property
    def action_delta_indices(self) -> list[int]:
        """The current step."""
        return [0]


class ReplayPolicy(Policy):
    """Replays the mean demonstration, whatever it observes: what a task gives away without looking.

    Action t is the mean over the demonstrations that have a frame t. After the longest one the last action is held:
    for positions that is standing still, and where actions are velocities it measured no worse than stopping.
    """

    actions: Tensor

    def __init__(self, config: BaselineConfig, actions: Tensor) -> None:
        super().__init__(config, {})
        self.register_buffer("actions", actions)
        self._step = 0

    @classmethod
    def fit(cls, dataset: Demonstrations) -> Self:
        """The mean demonstration of `dataset`."""
        frames = [(batch["frame_index"], _two_dims(batch[ACTION_KEY])) for batch in _batches(dataset)]
        frame, action = (torch.cat(parts) for parts in zip(*frames, strict=True))
        count = torch.bincount(frame)[:, None]
        total = torch.zeros(len(count), action.shape[1], dtype=torch.float64).index_add(0, frame, action.double())
        return cls(_config(dataset, {}), (total / count).float())

    def predict_action_chunk(self, observation: Batch) -> Tensor:
        """See `Policy`: as many actions as the longest demonstration has, from the current step."""
        steps = (self._step + torch.arange(len(self.actions), device=self.device)).clamp(max=len(self.actions) - 1)
        return self.actions[steps].expand(len(next(iter(observation.values()))), -1, -1)

    def select_action(self, observation: Batch) -> Tensor:
        """See `Policy`."""
        action = self.predict_action_chunk(observation)[:, 0]
        self._step += 1
        return action

    def reset(self) -> None:
        """See `Policy`: back to the first frame."""
        super().reset()
        self._step = 0


class LinearPolicy(Policy):
    """The affine map of the current low-dimensional observation, normalised, that is nearest to the demonstrations.

    Nearest in least squares over all frames; dimensions that say nothing get weight 0 (minimum norm).
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, config: BaselineConfig, stats: Stats, weight: Tensor, bias: Tensor) -> None:
        super().__init__(config, stats)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    @classmethod
    def fit(cls, dataset: Demonstrations) -> Self:
        """The least-squares fit to all frames of `dataset`."""
        config = _config(dataset, {"STATE": "MEAN_STD", "ENV": "MEAN_STD"})
        inputs = config.input_features or {}
        if any(feature.type == "VISUAL" for feature in inputs.values()):
            raise ConfigError(
                "a linear baseline reads states, and the dataset has only cameras: leave this baseline out"
            )
        size = sum(feature.shape[0] for feature in inputs.values())
        policy = cls(config, dataset.meta.stats, torch.zeros(0), torch.zeros(0))
        rows = [(policy._row(batch), _two_dims(batch[ACTION_KEY])) for batch in _batches(dataset)]
        seen, action = (torch.cat(parts).double().numpy() for parts in zip(*rows, strict=True))
        solution = np.linalg.lstsq(np.c_[seen, np.ones(len(seen))], action, rcond=None)[0]
        policy.weight, policy.bias = (torch.from_numpy(part).float() for part in (solution[:size].T, solution[size]))
        return policy

    @torch.no_grad()
    def predict_action_chunk(self, observation: Batch) -> Tensor:
        """See `Policy`: a chunk of one."""
        return torch.nn.functional.linear(self._row(observation), self.weight, self.bias)[:, None].float()

    def _row(self, batch: Batch) -> Tensor:
        """All low-dimensional observations in one row `(b, s)`, normalised."""
        return torch.cat(list(self.normalized_inputs(batch).values()), dim=1)


def _config(dataset: Demonstrations, modes: dict[str, str]) -> BaselineConfig:
    """Reads the states alone, so that a simulator has nothing to draw; cameras only where there is nothing else."""
    inputs, outputs = policy_features(dataset.meta.features)
    states = {key: feature for key, feature in inputs.items() if feature.type != "VISUAL"}
    return BaselineConfig(input_features=states or inputs, output_features=outputs, normalization_mapping=modes)


def _batches(dataset: Demonstrations) -> Iterator[Batch]:
    for start in range(0, len(dataset), FRAMES_AT_ONCE):
        yield dataset.__getitems__(range(start, min(start + FRAMES_AT_ONCE, len(dataset))))


def _two_dims(action: Tensor) -> Tensor:
    """Actions `(b, a)`; those of one number come as `(b,)`."""
    assert action.dim() <= 2, "a baseline is fitted from a dataset without action windows"
    return action.reshape(len(action), -1)
