"""PushT as a gymnasium environment whose observations are what a policy reads. Drawn in software, without GL."""

import warnings
from typing import Any

import gymnasium
import numpy as np

from lerobot.envs.pusht_config import PushTConfig
from lerobot.envs.spaces import observation_space
from lerobot.features import Feature

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pygame asks setuptools for a part that is being retired
    from gym_pusht.envs import PushTEnv as Simulation


class PushTEnv(gymnasium.Env):
    """The action is the `(x, y)` that the disc is to move to, in pixels of a picture 512 wide and high.

    `observation.state` is `(x, y)` of the disc; with five numbers, those and x, y and angle (rad) of the block.
    `observation.environment_state` is x, y of the block's eight corners. The reward is the covered share of the
    outline, 1 from 95 % on, where the episode is solved.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - gymnasium's own convention

    def __init__(self, config: PushTConfig, features: dict[str, Feature], render: bool = False) -> None:
        self.config = config
        self.features = features
        self.render_mode = "rgb_array" if render else None
        self.observation_space = observation_space(features)
        self.action_space = gymnasium.spaces.Box(0.0, 512.0, (2,), np.float32)
        self.draws = True
        """False leaves out the picture of the next observations: drawing takes six times as long as simulating."""
        self._steps = 0
        _, height, width = next((f.shape for f in features.values() if f.type == "VISUAL"), (3, 96, 96))
        self._sim = Simulation(
            observation_height=height,
            observation_width=width,
            visualization_height=config.visualization_height,
            visualization_width=config.visualization_width,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start from the state that `seed` decides alone, whatever this environment ran before."""
        super().reset(seed=seed)
        self._sim.reset(seed=seed)
        self._sim._last_action = None  # it would be drawn into the first frame
        self.draws = True
        self._steps = 0
        return self._observation(), {"is_success": False}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """See `EnvConfig.make`. As in the library, an action beyond the picture is followed there."""
        _, reward, _, _, info = self._sim.step(np.asarray(action))
        self._steps += 1
        success = bool(info["is_success"])
        truncated = self._steps >= self.config.episode_length
        return self._observation(), float(reward), success, truncated, {"is_success": success}

    def render(self) -> np.ndarray:
        """A picture `(h, w, 3)` uint8 with a cross where the disc is to move to."""
        picture = self._sim.render()
        assert picture is not None
        return picture

    def close(self) -> None:
        """Free the simulator."""
        self._sim.close()

    def _observation(self) -> dict[str, np.ndarray]:
        read = {n: f for n, f in self.features.items() if self.draws or f.type != "VISUAL"}
        return {name: self._read(self.config.part_of(name, feature)) for name, feature in read.items()}

    def _read(self, part: str) -> np.ndarray:
        if part == "pixels":
            return self._look("pixels")
        if part == "environment_state":
            return self._look("environment_state_agent_pos")[part].astype(np.float32)
        state = self._look("state").astype(np.float32)
        return state[:2] if part == "agent_pos" else state

    def _look(self, obs_type: str) -> Any:
        """What the library observes in one of its choices; its own steps stay with the one that draws nothing."""
        self._sim.obs_type = obs_type
        try:
            return self._sim.get_obs()
        finally:
            self._sim.obs_type = "state"
