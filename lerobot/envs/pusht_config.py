"""What PushT can be told. Imports no torch and no simulator."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lerobot.envs.config import IMAGE_KEY, EnvConfig, disagrees, require_picture, require_shape
from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, ENV_STATE_KEY, STATE_KEY, Feature

if TYPE_CHECKING:
    import gymnasium

OBS_TYPES = {
    "state": {"state"},
    "environment_state_agent_pos": {"environment_state", "agent_pos"},
    "pixels": {"pixels"},
    "pixels_agent_pos": {"pixels", "agent_pos"},
}
"""The library's choices of what is observed, and what each holds."""


@dataclass
class PushTConfig(EnvConfig):
    """PushT: a disc pushes a T-shaped block onto its outline (Chi et al. 2023, Diffusion Policy, arXiv 2303.04137)."""

    type: str = "pusht"
    task: Any = "PushT-v0"
    fps: int = 10
    """Steps a second; the simulator has one rate."""
    episode_length: int = 300
    obs_type: str | None = None
    """None: what the policy reads. A typed one of `OBS_TYPES` must agree with it, or the run is refused."""
    observation_width: int | None = None
    observation_height: int | None = None
    """Of `observation.image`. None: what the policy reads; the same holds."""
    visualization_width: int = 384
    visualization_height: int = 384
    """Of the videos."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fps != 10:
            raise ConfigError(f"env.fps={self.fps}: PushT steps 10 times a second, leave env.fps out")
        if self.tasks != ["PushT-v0"]:
            raise ConfigError(f"env.task={self.task}: PushT has one task, leave env.task out or type env.task=PushT-v0")
        if self.obs_type is not None and self.obs_type not in OBS_TYPES:
            known = ", ".join(OBS_TYPES)
            raise ConfigError(f"env.obs_type={self.obs_type}: type one of {known}, or leave env.obs_type out")
        for name in ("visualization_width", "visualization_height"):
            if getattr(self, name) < 96:  # the library draws a cross whose lines are 1/96 of it wide
                raise ConfigError(f"env.{name}={getattr(self, name)}: type 96 or more")

    def describe(self, task: str) -> str:
        """See `EnvConfig.describe`."""
        return "Push the T-shaped block onto the T-shaped target."

    def check(self, inputs: dict[str, Feature], outputs: dict[str, Feature], render: bool = False) -> None:
        """See `EnvConfig.check`."""
        parts = {self.part_of(name, feature) for name, feature in inputs.items()}
        if ACTION_KEY in outputs:
            require_shape("PushT", ACTION_KEY, outputs[ACTION_KEY], [2])
        if self.obs_type is not None and parts != OBS_TYPES[self.obs_type]:
            raise disagrees("obs_type", self.obs_type, inputs)
        if IMAGE_KEY in inputs:
            _, height, width = inputs[IMAGE_KEY].shape
            for name, size in (("observation_height", height), ("observation_width", width)):
                if getattr(self, name) not in (None, size):
                    raise disagrees(name, getattr(self, name), inputs)
        if find_spec("gym_pusht") is None:
            raise ConfigError("env=pusht needs the package gym-pusht: type pip install 'lerobot-runner[pusht]'")
        try:
            import lerobot.envs.pusht  # noqa: F401 - whether it can be
        except ImportError as error:  # of OpenCV, which draws: one of its builds wants libraries of a screen
            raise ConfigError(
                f"env=pusht cannot load its simulator ({error}): type pip uninstall -y opencv-python "
                "opencv-python-headless and then pip install 'opencv-python-headless<5'"
            ) from error

    def part_of(self, name: str, feature: Feature) -> str:
        """What the feature `name` is read from, in the library's words. Raises `ConfigError` where there is no such."""
        if name == IMAGE_KEY:
            require_picture(name, feature)
            return "pixels"
        if name == STATE_KEY and list(feature.shape) == [5]:
            return "state"
        if name == STATE_KEY:
            require_shape("PushT", name, feature, [2])
            return "agent_pos"
        if name == ENV_STATE_KEY:
            require_shape("PushT", name, feature, [16])
            return "environment_state"
        raise ConfigError(
            f"the policy reads {name} and PushT has {IMAGE_KEY}, {STATE_KEY} and {ENV_STATE_KEY}: "
            f"add rename_map={{<one of these>: {name}}}, or use another env"
        )

    def make(self, task: str, features: dict[str, Feature], render: bool = False) -> "gymnasium.Env":
        """See `EnvConfig.make`."""
        from lerobot.envs.pusht import PushTEnv

        return PushTEnv(self, features, render)
