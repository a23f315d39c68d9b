"""What a simulator can be told, in LeRobot's field names. Imports no torch and no simulator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lerobot.errors import ConfigError
from lerobot.features import Feature

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

IMAGE_KEY = "observation.image"
"""LeRobot's name of a picture that names no camera."""


@dataclass
class EnvConfig:
    """The fields that every simulator shares."""

    type: str = ""
    task: Any = None
    """A task name, several separated by commas, or a list."""
    fps: int = 30
    episode_length: int = 300
    """Steps after which an episode ends unsolved."""

    recorded: ClassVar[dict[str, list[str]]] = {}
    """What a recording of `expert` holds beside cameras: feature to a name for each of its numbers, `action` among
    them. Empty where there is no expert."""
    robot_type: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.episode_length < 1:
            raise ConfigError(f"env.episode_length={self.episode_length}: type a number of steps of at least 1")

    @property
    def tasks(self) -> list[str]:
        """The task names, one an entry."""
        names = self.task.split(",") if isinstance(self.task, str) else list(self.task or [])
        return [name.strip() for name in names if name.strip()]

    def describe(self, task: str) -> str:
        """The sentence that a dataset stores with an episode of `task`."""
        return task

    def check(self, inputs: dict[str, Feature], outputs: dict[str, Feature], render: bool = False) -> None:
        """Refuse what `make` could not build for a policy of these features, before anything is simulated.

        `render` asks for videos too. Raises `ConfigError`.
        """
        raise NotImplementedError

    def can_render(self) -> tuple[bool, str]:
        """Whether `env.render()` can work on this machine, and if not, why."""
        return True, ""

    def make(self, task: str, features: dict[str, Feature], render: bool = False) -> "gymnasium.Env":
        """One simulator of `task` whose observations are exactly `features`; `render` makes `env.render()` work.

        An observation is a dict of `Feature` name to array: float32 for STATE and ENV, uint8 (h, w, c) for VISUAL.
        `reset(seed=s)` starts from a state that depends on `s` alone. `step` ends an episode at its first success
        (`terminated`) or after `episode_length` steps (`truncated`), and tells `info["is_success"]`.
        """
        raise NotImplementedError

    def expert(self, task: str) -> "Callable[[Any], np.ndarray]":
        """A scripted policy of `task`: from the environment that `make` gave, where it stands, to an action."""
        raise NotImplementedError


def require_shape(simulator: str, name: str, feature: Feature, shape: list[int]) -> None:
    """Refuse a policy's `feature` that is not as large as the simulator's. Raises `ConfigError`."""
    if list(feature.shape) != shape:
        raise ConfigError(
            f"the policy's {name} has shape {list(feature.shape)} and {simulator}'s has {shape}: "
            f"use a policy trained on {simulator}, or another env"
        )


def require_picture(name: str, feature: Feature) -> None:
    """Refuse a `feature` that is no colour picture. Raises `ConfigError`."""
    if len(feature.shape) != 3 or feature.shape[0] != 3:
        raise ConfigError(f"the policy's {name} has shape {list(feature.shape)}: a camera here gives [3, h, w]")


def disagrees(key: str, value: Any, inputs: dict[str, Feature]) -> ConfigError:
    """The refusal of a typed `env.<key>` that is not what the policy reads."""
    read = ", ".join(f"{name} {list(feature.shape)}" for name, feature in inputs.items())
    return ConfigError(f"env.{key}={value} is not what the policy reads ({read}): leave env.{key} out")
