"""What a policy reads and writes, in the words of LeRobot's `config.json`."""

from dataclasses import dataclass, field

STATE_KEY = "observation.state"
ENV_STATE_KEY = "observation.environment_state"
ACTION_KEY = "action"
CAMERA_PREFIX = "observation.images."


@dataclass
class Feature:
    """One tensor that a policy reads or writes, without its batch axis."""

    type: str = "STATE"
    """STATE, ENV, VISUAL or ACTION."""
    shape: list[int] = field(default_factory=list)
    """Images are (c, h, w)."""


def policy_features(dataset_features: dict[str, dict]) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Split the `features` of a dataset's `info.json` into what a policy reads and what it writes.

    Rewards, indices and time stamps are neither. A dataset stores images as (h, w, c), a policy reads (c, h, w).
    """
    inputs: dict[str, Feature] = {}
    outputs: dict[str, Feature] = {}
    for key, info in dataset_features.items():
        shape = [int(n) for n in info["shape"]]
        if info["dtype"] in ("image", "video"):
            channels_last = (info.get("names") or ["height", "width", "channels"])[-1] in ("channels", "channel")
            inputs[key] = Feature("VISUAL", [shape[2], shape[0], shape[1]] if channels_last else shape)
        elif key == ENV_STATE_KEY:
            inputs[key] = Feature("ENV", shape)
        elif key.startswith("observation"):
            inputs[key] = Feature("STATE", shape)
        elif key == ACTION_KEY:
            outputs[key] = Feature("ACTION", shape)
    return inputs, outputs
