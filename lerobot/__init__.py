"""An experiment runner for robot policies: Hydra configures, accelerate trains, wandb shows."""

__version__ = "0.1.0"
