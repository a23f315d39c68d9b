"""Checkpoints in LeRobot's layout, in and out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot.policies.base import Policy


def load_policy(path: str, device: str = "cpu") -> "Policy":
    """The policy of a run, checkpoint, `pretrained_model` folder or Hub repo, in eval mode on `device` (or `auto`).

    A repo is `<user>/<name>` or `<user>/<name>@<revision>`. The policy takes observations in robot units and returns
    actions in robot units: `predict_action_chunk(observation)` gives `(b, k, a)`, `select_action(observation)` gives
    `(b, a)`, `reset()` starts a new episode. Raises `ConfigError`.
    """
    from lerobot.accelerator.device import machine, resolve
    from lerobot.checkpoint import pretrained

    return pretrained.load_policy(path, resolve(device, machine()).torch_device)
