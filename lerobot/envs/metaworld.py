"""MetaWorld v3 as a gymnasium environment whose observations are what a policy reads."""
# mujoco's names come from compiled modules that have no stubs.
# pyright: reportAttributeAccessIssue=false

import copy
import functools
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np
from metaworld.env_dict import ENV_CLS_MAP
from metaworld.policies import ENV_POLICY_MAP
from metaworld.sawyer_xyz_env import SawyerXYZEnv
from metaworld.types import Task

from lerobot.envs.camera import Camera
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.envs.spaces import observation_space
from lerobot.features import ENV_STATE_KEY, STATE_KEY, Feature

VIDEO_SIZE = (240, 240)
"""Height and width of `render()`, in pixels: software rendering draws about 80 of them a second."""


class MetaWorldEnv(gymnasium.Env):
    """One task. The action is `(dx, dy, dz, grip)` in [-1, 1]; what lies outside is clipped.

    `observation.state` is hand x, y, z in m and the gripper's opening (0 closed, 1 open).
    `observation.environment_state` is the x, y, z in m of the first object and of the goal.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 - gymnasium's own convention

    def __init__(self, config: MetaWorldConfig, task: str, features: dict[str, Feature], render: bool = False) -> None:
        self.config = config
        self.features = features
        self.render_mode = "rgb_array" if render else None
        self.observation_space = observation_space(features)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.raw = np.zeros(39)
        """The simulator's own observation, which the scripted experts read."""
        self.draws = True
        """False leaves out the pictures of the next observations: drawing takes ten times as long as simulating."""
        self._steps = 0
        self._sim = _simulation(task)
        self._sim.max_path_length = sys.maxsize  # beyond its own limit it would raise; ours is `episode_length`
        sizes = [(f.shape[1], f.shape[2]) for f in features.values() if f.type == "VISUAL"] + [VIDEO_SIZE] * render
        self._camera = Camera(self._sim.model, self._sim.data, sizes) if sizes else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start from the state that `seed` decides alone, whatever this environment ran before."""
        super().reset(seed=seed)
        if seed is not None:
            self._sim.seed(seed)  # its `reset` ignores the seed
        self.raw, _ = self._sim.reset()
        self.draws = True
        self._steps = 0
        return self._observation(), {"is_success": False}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """See `EnvConfig.make`. Stepping on after a success is allowed: demonstrations do."""
        self.raw, reward, _, _, info = self._sim.step(np.clip(action, -1.0, 1.0))
        self._steps += 1
        success = bool(info["success"])
        truncated = self._steps >= self.config.episode_length
        return self._observation(), float(reward), success, truncated, {"is_success": success}

    def render(self) -> np.ndarray:
        """A picture `(h, w, 3)` uint8 from `config.camera_name`."""
        return self._draw(self.config.camera_name, *VIDEO_SIZE)

    def close(self) -> None:
        """Free the GL context, if there is one."""
        if self._camera:
            self._camera.close()

    def _observation(self) -> dict[str, np.ndarray]:
        read = {n: f for n, f in self.features.items() if self.draws or f.type != "VISUAL"}
        return {name: self._read(name, feature) for name, feature in read.items()}

    def _read(self, name: str, feature: Feature) -> np.ndarray:
        if name == STATE_KEY:
            return self.raw[:4].astype(np.float32)
        if name == ENV_STATE_KEY:
            return np.concatenate([self.raw[4:7], self.raw[36:39]]).astype(np.float32)
        return self._draw(self.config.camera_of(name), feature.shape[1], feature.shape[2])

    def _draw(self, camera: str, height: int, width: int) -> np.ndarray:
        assert self._camera, "made without a camera feature and without render=True"
        frame = self._camera.draw(camera, height, width)
        # This camera hangs upside down in the scene; LeRobot's pictures of it are turned.
        return np.ascontiguousarray(frame[::-1, ::-1]) if camera == "corner2" else frame


def expert(task: str) -> Callable[[np.ndarray], np.ndarray]:
    """MetaWorld's scripted policy of `task`: from `MetaWorldEnv.raw` to an action in [-1, 1]."""
    policy = ENV_POLICY_MAP[task]()

    def act(raw: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says at every other step that it will be clipped
            return np.clip(policy.get_action(raw), -1.0, 1.0).astype(np.float32)

    return act


def _simulation(task: str) -> SawyerXYZEnv:
    """The library's environment with a visible goal, whose seed decides where everything starts.

    Made without the library's benchmark objects, which build other environments too and take 0.7 s.
    """
    benchmark = ENV_CLS_MAP[task]

    class Simulation(benchmark):
        def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
            model = copy.copy(_model(self.fullpath))
            return model, mujoco.MjData(model)

    simulation = Simulation()
    # It refuses to step before it has a task; the task's own start position is never used.
    start = {"env_cls": benchmark, "rand_vec": None, "partially_observable": False}
    simulation.set_task(Task(env_name=task, data=pickle.dumps(start)))
    simulation._freeze_rand_vec = False
    simulation.seeded_rand_vec = True
    return simulation


@functools.lru_cache(maxsize=4)
def _model(path: str) -> mujoco.MjModel:
    """The compiled scene, to be copied: an environment moves things in its own (0.15 s, a copy takes 0.02 s)."""
    model = mujoco.MjModel.from_xml_path(path)
    model.cam("corner2").pos = [0.75, 0.075, 0.7]  # nearer, where LeRobot has it
    # Ten times faster to draw in software, and what the datasets' pictures look like.
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0
    model.mat_reflectance[:] = 0
    return model
