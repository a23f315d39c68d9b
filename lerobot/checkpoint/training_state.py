"""Checkpoints that a run goes on from: written whole or not at all, in LeRobot's layout."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from lerobot.accelerator import grad_scaler
from lerobot.accelerator.config import GradScalerConfig
from lerobot.checkpoint.paths import CHECKPOINTS_FOLDER, LAST, PRETRAINED_FOLDER, read_json
from lerobot.checkpoint.pretrained import save_pretrained
from lerobot.checkpoint.tensors import read_tensors
from lerobot.errors import ConfigError
from lerobot.policies.base import Policy
from lerobot.ranges import COUNT_OR_NONE, POSITIVE, Range
from lerobot.status import write_json

STATE_FOLDER = "training_state"
STEP_FILE = "training_step.json"
SCALER_FILE = "scaler_state.json"
OPTIMIZER_FILE = "optimizer_state.safetensors"
GROUPS_FILE = "optimizer_param_groups.json"


_ANOTHER = "go on from another checkpoint of the run, resume=<run>/checkpoints/<step>"
_KEPT = {
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
}
"""What an optimizer remembers of each parameter; SGD does where it has momentum."""


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
    window: dict[str, Any] | None = None
    """What no row of metrics holds yet: see `Window.state`."""


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
    _sweep(root)
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
    progress = _read_progress(folder / STEP_FILE)
    if step_folder.name.isdigit() and int(step_folder.name) != progress.step:
        raise ConfigError(f"{folder / STEP_FILE} says step {progress.step}: {_ANOTHER}")
    warning = ""
    if scaler is not None and (folder / SCALER_FILE).is_file():
        stored = read_json(folder / SCALER_FILE)
        _check_numbers(folder / SCALER_FILE, stored, {"scale": POSITIVE, "_growth_tracker": COUNT_OR_NONE})
        grad_scaler.load_state(scaler, stored, settings)
    elif scaler is not None:
        warning = f"{folder / SCALER_FILE} is not there: the loss scale calibrates from its start again"
    return progress, warning


def _read_progress(file: Path) -> Progress:
    """Nothing can stand for the step; the rest is as it was at the start where LeRobot has written the file."""
    known = {name: value for name, value in read_json(file).items() if name in asdict(Progress())}
    _check_numbers(file, known, dict.fromkeys(("step", *(known.keys() - {"window"})), COUNT_OR_NONE))
    return Progress(**known)


def _check_numbers(file: Path, stored: Mapping[str, Any], ranges: Mapping[str, Range]) -> None:
    """Refuse what `file` holds unless each name of `ranges` is there and inside its range."""
    for name, allowed in ranges.items():
        if stored.get(name) not in allowed:
            raise ConfigError(f"{file} has {name}={stored.get(name)} and not {allowed}: {_ANOTHER}")


def _sweep(root: Path) -> None:
    """Remove what killed saves left half written; nothing else is saved in this run meanwhile."""
    for left in root.glob(".*.tmp"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()


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
    stored = read_tensors(folder / OPTIMIZER_FILE)
    _check_optimizer(folder / OPTIMIZER_FILE, optimizer, stored)
    for name, value in stored.items():
        _, index, key = name.split("/", 2)
        state.setdefault(int(index), {})[key] = value
    # The groups' settings are this run's own (they may be typed anew); the stored ones only say which state is whose.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_optimizer(file: Path, optimizer: Optimizer, stored: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not of these parameters. No tensor at all is a run in which no update landed yet."""
    kept = _KEPT.get(type(optimizer))
    if kept is None or not stored:
        return
    if isinstance(optimizer, torch.optim.SGD) and not optimizer.defaults["momentum"]:
        kept = ()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = {
        f"state/{i}/{name}": torch.Size() if name == "step" else parameter.shape
        for i, parameter in enumerate(parameters)
        for name in kept
    }
    odd = sorted(expected.keys() ^ stored.keys())
    odd += sorted(name for name in expected.keys() & stored.keys() if stored[name].shape != expected[name])
    if odd:
        raise ConfigError(
            f"{file} does not fit this policy and its {type(optimizer).__name__} in {len(odd)} tensors "
            f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''}): {_ANOTHER}"
        )


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
