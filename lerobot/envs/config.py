"""What a simulator can be told, in LeRobot's field names. Imports no torch and no simulator."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lerobot.envs import gl, metaworld_tasks
from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, CAMERA_PREFIX, ENV_STATE_KEY, STATE_KEY, Feature

if TYPE_CHECKING:
    import gymnasium


@dataclass
class EnvConfig:
    """The fields that every simulator shares."""

    type: str = ""
    task: Any = None
    """A task name, several separated by commas, or a list."""
    fps: int = 30
    episode_length: int = 300
    """Steps after which an episode ends unsolved."""

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
        """Refuse what `make` could not build for a policy of these features, before anything heavy is loaded.

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
        action = outputs.get(ACTION_KEY)
        if action is not None and list(action.shape) != [4]:
            raise ConfigError(
                f"the policy's action has shape {list(action.shape)} and MetaWorld's has [4]: "
                "use a policy trained on MetaWorld, or another env"
            )
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
        from lerobot.envs.metaworld import MetaWorldEnv

        return MetaWorldEnv(self, task, features, render)

    def _check_input(self, name: str, feature: Feature) -> None:
        sizes = {STATE_KEY: [4], ENV_STATE_KEY: [6]}
        if name in sizes:
            if list(feature.shape) != sizes[name]:
                raise ConfigError(
                    f"the policy's {name} has shape {list(feature.shape)} and MetaWorld's has {sizes[name]}: "
                    "use a policy trained on MetaWorld, or another env"
                )
        elif name == "observation.image" or name.startswith(CAMERA_PREFIX):
            if len(feature.shape) != 3 or feature.shape[0] != 3:
                raise ConfigError(f"the policy's {name} has shape {list(feature.shape)}: a camera here gives [3, h, w]")
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
        if agrees[self.obs_type]:
            return
        raise ConfigError(
            f"env.obs_type={self.obs_type} is not what the policy reads ({', '.join(inputs)}): leave env.obs_type out"
        )


def _one_of(key: str, word: str, known: Iterable[str]) -> None:
    """Refuse a `word` that is not `known`, with the nearest one that is."""
    known = list(known)
    if word not in known:
        near = difflib.get_close_matches(word, known, n=1, cutoff=0)[0]
        raise ConfigError(f"{key}={word}: not one of the {len(known)} that MetaWorld has, type {key}={near}")
