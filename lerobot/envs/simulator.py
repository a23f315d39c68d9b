"""One environment of an evaluation, as a worker of a lane. Imports neither torch nor a simulator."""

from typing import Any

import numpy as np

from lerobot.envs.config import EnvConfig
from lerobot.features import Feature

Observation = dict[str, np.ndarray]


class Simulator:
    """An environment that is made when it is first needed, and kept."""

    def __init__(self, config: EnvConfig, features: dict[str, Feature]) -> None:
        self.config = config
        self.features = features
        self._made: tuple[str, bool] | None = None
        self._env: Any = None

    def open(self, task: str, render: bool) -> None:
        """Have an environment of `task`; with `render` it can be drawn."""
        if self._made in ((task, render), (task, True)):
            return
        self.close()
        self._env = self.config.make(task, self.features, render)
        self._made = task, render

    def reset(self, seed: int) -> Observation:
        """The first observation of the episode that starts from `seed`."""
        return self._env.reset(seed=seed)[0]

    def step(self, action: np.ndarray, looks: bool) -> tuple[Observation, float, bool, bool]:
        """The next observation, the reward, whether the episode has ended and whether it is solved.

        Where the policy `looks` at something else (the chunk that it predicted), an environment need draw no picture.
        """
        self._env.unwrapped.draws = looks
        observation, reward, terminated, truncated, info = self._env.step(action)
        return observation, float(reward), bool(terminated or truncated), bool(info["is_success"])

    def render(self) -> np.ndarray:
        """A picture `(h, w, 3)` uint8 of where it stands."""
        return self._env.render()

    def close(self) -> None:
        """Free the environment."""
        if self._env is not None:
            self._env.close()
            self._env = self._made = None
