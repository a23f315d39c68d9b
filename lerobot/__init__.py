"""An experiment runner for robot policies: Hydra configures, accelerate trains, wandb shows."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["compose", "run"]


def compose(command: str, overrides: list[str] | tuple[str, ...] = ()) -> Any:
    """The typed config that `lerobot-<command> <overrides>` would run: train, eval or demos. Raises `ConfigError`."""
    from lerobot.command import compose

    return compose(command, overrides)


def run(config: Any) -> Any:
    """Do in this process what the command does with `config`, from `compose`; return its run folder."""
    from lerobot.command import run

    return run(config)
