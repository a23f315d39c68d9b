"""What MetaWorld can be told. Imports no torch and no simulator."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from lerobot.envs import gl, metaworld_tasks
from lerobot.envs.config import IMAGE_KEY, EnvConfig, disagrees, require_picture, require_shape
from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, CAMERA_PREFIX, ENV_STATE_KEY, STATE_KEY, Feature

if TYPE_CHECKING:
    import gymnasium
    import numpy as np


@dataclass
class MetaWorldConfig(EnvConfig):
    """MetaWorld v3: fifty tasks of a Sawyer arm over a table (Yu et al. 2019, arXiv 1910.10897)."""

    type: str = "metaworld"
    task: Any = "push-v3"
    """A task, several, or a difficulty: easy, medium, hard, very_hard."""
    fps: int = 80
    """Steps a second; the simulator has one rate."""
    episode_length: int = 400
    obs_type: str | None = None
    """None: what the policy reads. state, pixels or pixels_agent_pos must agree with it, or the run is refused."""
    camera_name: str = "corner2"
    """Camera of the videos, and of a policy whose picture names no camera (`observation.image`)."""

    recorded: ClassVar[dict[str, list[str]]] = {
        STATE_KEY: ["x", "y", "z", "gripper"],
        ENV_STATE_KEY: ["obj_x", "obj_y", "obj_z", "goal_x", "goal_y", "goal_z"],
        ACTION_KEY: ["dx", "dy", "dz", "grip"],
    }
    robot_type: ClassVar[str] = "sawyer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fps != 80:
            raise ConfigError(f"env.fps={self.fps}: MetaWorld steps 80 times a second, leave env.fps out")
        if self.obs_type not in (None, "state", "pixels", "pixels_agent_pos"):
            raise ConfigError(
                f"env.obs_type={self.obs_type}: type state, pixels or pixels_agent_pos, or leave env.obs_type out"
            )
        _one_of("env.camera_name", self.camera_name, metaworld_tasks.CAMERAS)
        if not self.tasks:
            raise ConfigError("env.task names no task: type env.task=push-v3")
        for task in self.tasks:
            _one_of("env.task", task, metaworld_tasks.TASKS)

    @property
    def tasks(self) -> list[str]:
        """The task names, one an entry: difficulties spelled out, LeRobot's prefix `metaworld-` removed."""
        names = [name.removeprefix("metaworld-") for name in super().tasks]
        return [task for name in names for task in metaworld_tasks.GROUPS.get(name, [name])]

    def describe(self, task: str) -> str:
        """See `EnvConfig.describe`."""
        return metaworld_tasks.TASKS[task]

    def check(self, inputs: dict[str, Feature], outputs: dict[str, Feature], render: bool = False) -> None:
        """See `EnvConfig.check`."""
        for name, feature in inputs.items():
            self._check_input(name, feature)
        if ACTION_KEY in outputs:
            require_shape("MetaWorld", ACTION_KEY, outputs[ACTION_KEY], [4])
        self._check_obs_type(inputs)
        for package in ("metaworld", "mujoco"):
            if find_spec(package) is None:
                raise ConfigError(
                    f"env=metaworld needs the package {package}: type pip install 'lerobot-runner[metaworld]'"
                )
        drawn = [name for name, feature in inputs.items() if feature.type == "VISUAL"]
        if drawn or render:
            gl.require(f"the camera {drawn[0]}" if drawn else "eval.videos=1 or more")

    def can_render(self) -> tuple[bool, str]:
        """See `EnvConfig.can_render`."""
        return gl.can_render()

    def camera_of(self, name: str) -> str:
        """The MuJoCo camera that the feature `name` is drawn from."""
        return name.removeprefix(CAMERA_PREFIX) if name.startswith(CAMERA_PREFIX) else self.camera_name

    def make(self, task: str, features: dict[str, Feature], render: bool = False) -> "gymnasium.Env":
        """See `EnvConfig.make`."""
        with gl.importing():
            from lerobot.envs.metaworld import MetaWorldEnv

        return MetaWorldEnv(self, task, features, render)

    def expert(self, task: str) -> "Callable[[Any], np.ndarray]":
        """See `EnvConfig.expert`."""
        with gl.importing():
            from lerobot.envs.metaworld import expert

        act = expert(task)
        return lambda env: act(env.raw)

    def _check_input(self, name: str, feature: Feature) -> None:
        sizes = {STATE_KEY: [4], ENV_STATE_KEY: [6]}
        if name in sizes:
            require_shape("MetaWorld", name, feature, sizes[name])
        elif name == IMAGE_KEY or name.startswith(CAMERA_PREFIX):
            require_picture(name, feature)
            if self.camera_of(name) not in metaworld_tasks.CAMERAS:
                raise ConfigError(
                    f"{name}: MetaWorld's cameras are {', '.join(metaworld_tasks.CAMERAS)}, use one of them "
                    f"(a policy that calls corner2 so takes rename_map={{{CAMERA_PREFIX}corner2: {name}}})"
                )
        else:
            raise ConfigError(
                f"the policy reads {name} and MetaWorld has {STATE_KEY}, {ENV_STATE_KEY} and {CAMERA_PREFIX}<camera>: "
                f"add rename_map={{<one of these>: {name}}}, or use another env"
            )

    def _check_obs_type(self, inputs: dict[str, Feature]) -> None:
        kinds = {feature.type for feature in inputs.values()}
        agrees = {
            None: True,
            "state": "VISUAL" not in kinds,
            "pixels": kinds == {"VISUAL"},
            "pixels_agent_pos": kinds == {"STATE", "VISUAL"},
        }
        if not agrees[self.obs_type]:
            raise disagrees("obs_type", self.obs_type, inputs)


def _one_of(key: str, word: str, known: Iterable[str]) -> None:
    """Refuse a `word` that is not `known`, with the nearest one that is."""
    known = list(known)
    if word not in known:
        near = difflib.get_close_matches(word, known, n=1, cutoff=0)[0]
        raise ConfigError(f"{key}={word}: not one of the {len(known)} that MetaWorld has, type {key}={near}")
