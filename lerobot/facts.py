"""Which code a run ran: versions of what computes, and the state of the repository it was started in."""

import importlib.metadata
import platform
import subprocess
from typing import Any

import torch

PACKAGES = (
    *("lerobot-runner", "torchvision", "accelerate", "hydra-core", "wandb", "numpy"),
    *("metaworld", "mujoco", "gym-pusht", "pymunk"),
)


def versions() -> dict[str, Any]:
    """For `run.json`: python, packages, platform and git."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **found},
        "platform": platform.platform(),
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Commit of the working folder and whether files differ from it; None outside a repository."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        changed = subprocess.run(
            ["git", "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "changed": bool(changed.stdout.strip())}
