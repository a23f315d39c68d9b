"""Checkpoints that a run goes on from: written whole or not at all, in LeRobot's layout."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from lerobot.accelerator import grad_scaler
from lerobot.checkpoint.paths import CHECKPOINTS_FOLDER, LAST, PRETRAINED_FOLDER, read_json
from lerobot.checkpoint.pretrained import save_pretrained
from lerobot.config import GradScalerConfig
from lerobot.errors import ConfigError
from lerobot.policies.base import Policy
from lerobot.status import write_json

STATE_FOLDER = "training_state"
STEP_FILE = "training_step.json"
SCALER_FILE = "scaler_state.json"
OPTIMIZER_FILE = "optimizer_state.safetensors"
GROUPS_FILE = "optimizer_param_groups.json"


@dataclass
class Progress:
    """Where a run stands. Data order and randomness follow from it and the seed."""

    step: int = 0
    """Attempted updates."""
    skipped_steps: int = 0
    """How many of them did not land."""
    consecutive_skips: int = 0
    num_processes: int = 1
    batch_size: int = 0


def save_checkpoint(
    run_dir: Path,
    progress: Progress,
    policy: Policy,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler | None,
    config: dict[str, Any],
) -> Path:
    """Write `checkpoints/<step>`, then point `last` at it; a kill or a full disk leaves the one before as the newest.

    `scaler` is None where no loss is scaled.
    """
    root = run_dir / CHECKPOINTS_FOLDER
    final = root / f"{progress.step:06d}"
    temporary = root / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        save_pretrained(temporary / PRETRAINED_FOLDER, policy, train_config=config)
        _save_state(temporary / STATE_FOLDER, progress, optimizer, scaler)
        _flush(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():  # a run that goes on from an earlier checkpoint writes later ones again
        shutil.rmtree(final)
    temporary.rename(final)
    link = root / f".{LAST}.tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    os.replace(link, root / LAST)  # noqa: PTH105
    _flush(root, deep=False)
    return final


def load_checkpoint(
    step_folder: Path, optimizer: Optimizer, scaler: torch.amp.GradScaler | None, settings: GradScalerConfig
) -> tuple[Progress, str]:
    """Restore optimizer and scaler from `step_folder`; return where the run stood, and a warning or nothing.

    The scale and the count go on; how they move is up to `settings`, which may have been typed anew.
    """
    folder = step_folder / STATE_FOLDER
    if not folder.is_dir():
        raise ConfigError(
            f"{step_folder} holds a policy and no {STATE_FOLDER}: start a new run from it with "
            f"policy.path={step_folder / PRETRAINED_FOLDER}"
        )
    _load_optimizer(folder, optimizer)
    known = {name: value for name, value in read_json(folder / STEP_FILE).items() if name in asdict(Progress())}
    warning = ""
    if scaler is not None and (folder / SCALER_FILE).is_file():
        grad_scaler.load_state(scaler, read_json(folder / SCALER_FILE), settings)
    elif scaler is not None:
        warning = f"{folder / SCALER_FILE} is not there: the loss scale calibrates from its start again"
    return Progress(**known), warning


def _save_state(folder: Path, progress: Progress, optimizer: Optimizer, scaler: torch.amp.GradScaler | None) -> None:
    folder.mkdir(parents=True)
    state = optimizer.state_dict()
    tensors = {
        f"state/{index}/{name}": value.detach().cpu().contiguous()
        for index, entry in state["state"].items()
        for name, value in entry.items()
    }
    save_file(tensors, folder / OPTIMIZER_FILE)
    write_json(folder / GROUPS_FILE, state["param_groups"])
    write_json(folder / STEP_FILE, asdict(progress))
    if scaler is not None:
        write_json(folder / SCALER_FILE, grad_scaler.state(scaler))


def _load_optimizer(folder: Path, optimizer: Optimizer) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in load_file(folder / OPTIMIZER_FILE).items():
        _, index, key = name.split("/", 2)
        state.setdefault(int(index), {})[key] = value
    # The groups' settings are this run's own (they may be typed anew); the stored ones only say which state is whose.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _flush(folder: Path, *, deep: bool = True) -> None:
    """Wait until the files and folders are on the disk, so that a rename never gets ahead of them."""
    if os.name == "nt":  # Windows opens no folders
        return
    for path in [*(folder.rglob("*") if deep else ()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
