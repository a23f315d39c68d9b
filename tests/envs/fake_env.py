"""A simulator without physics, in a module without torch: processes that import it start fast."""

import os
from dataclasses import dataclass

import gymnasium
import numpy as np

from lerobot.envs.config import EnvConfig
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.features import ENV_STATE_KEY, STATE_KEY


@dataclass
class FakeConfig(EnvConfig):
    """Starts anywhere in [-1, 1]^4. Each action is added to the state; solved where the first number is above 2."""

    type: str = "fake"
    task: str = "fake"
    fps: int = 40
    episode_length: int = 12
    drawable: bool = True
    dies_at: int = -1
    """Step at which its process is gone."""
    fails_at: int = -1
    """Step at which it raises."""

    def check(self, inputs, outputs, render=False):
        pass

    def can_render(self):
        return self.drawable, "no paint"

    def make(self, task, features, render=False):
        return FakeEnv(self, render)


class FakeEnv(gymnasium.Env):
    def __init__(self, config, render):
        self.config = config
        self.render_mode = "rgb_array" if render else None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 4)
        self.start = self.state.copy()
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        if self.steps == self.config.dies_at:
            os._exit(3)
        if self.steps == self.config.fails_at:
            raise ArithmeticError("the spring is gone")
        assert self.state[0] <= 2, "stepped after its end"
        self.state = self.state + action
        self.steps += 1
        solved = bool(self.state[0] > 2)
        # The sum of rewards tells where the episode started.
        reward = float(self.start[1]) if self.steps == 1 else 0.0
        return self.observation(), reward, solved, self.steps >= self.config.episode_length, {"is_success": solved}

    def observation(self):
        return {STATE_KEY: self.state.astype(np.float32)}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((32, 32, 3), self.steps, np.uint8)


class Raw(gymnasium.ObservationWrapper):
    """Adds the simulator's own observation, which scripted experts read."""

    def observation(self, observation):
        return {**observation, "observation.raw": self.unwrapped.raw}


@dataclass
class RawMetaWorldConfig(MetaWorldConfig):
    def make(self, task, features, render=False):
        return Raw(super().make(task, features, render))


STATES = (STATE_KEY, ENV_STATE_KEY)
