"""Checkpoints that a run goes on from: written whole or not at all, in LeRobot's layout."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lerobot.accelerator import grad_scaler
from lerobot.accelerator.config import GradScalerConfig
from lerobot.accelerator.shards import gathered, like
from lerobot.checkpoint.folders import point, put, temporary, tidy
from lerobot.checkpoint.paths import (
    CHECKPOINTS_FOLDER,
    LAST,
    OPTIMIZER_FILE,
    PRETRAINED_FOLDER,
    STATE_FOLDER,
    STEP_FILE,
    read_json,
)
from lerobot.checkpoint.pretrained import save_pretrained
from lerobot.checkpoint.rng import file_name as rng_file_name
from lerobot.checkpoint.rng import rng_state
from lerobot.checkpoint.tensors import read_tensors, write_tensors
from lerobot.errors import ConfigError, RunError
from lerobot.policies.base import Policy
from lerobot.ranges import COUNT_OR_NONE, POSITIVE, Range
from lerobot.status import write_json

SCALER_FILE = "scaler_state.json"
GROUPS_FILE = "optimizer_param_groups.json"
SCHEDULER_FILE = "scheduler_state.json"

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
    """Of one process."""
    samples: int | None = None
    """Used by all processes together; None in checkpoints that do not tell."""
    window: Any = None
    """What no row of metrics holds yet: `Window.state` of each process, or of the one that there is."""

    def window_of(self, rank: int, world_size: int) -> dict[str, Any] | None:
        """The window of one process; None where the processes were others."""
        windows = [self.window] if isinstance(self.window, dict) else self.window
        return windows[rank] if isinstance(windows, list) and len(windows) == world_size else None


@dataclass
class Snapshot:
    """What a checkpoint holds, as of one moment."""

    progress: Progress
    policy: Policy
    """For its settings and statistics, which training leaves alone."""
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    groups: list[dict[str, Any]]
    scaler: dict[str, float] | None
    """None where no loss is scaled."""
    rng: Sequence[dict[str, Tensor]]
    """Of each process."""
    config: dict[str, Any]


def take_snapshot(
    progress: Progress,
    policy: Policy,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler | None,
    config: dict[str, Any],
    copy: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict,
) -> Snapshot:
    """Everything that `write_checkpoint` needs. Training may go on meanwhile if `copy` copies parameters and moments.

    Of several ranks each has to ask, and what is copied on the first is whole.
    Raises `RunError` for weights that nothing can be done with.
    """
    _refuse_nonfinite(policy, progress.step)
    weights, state = policy.state_dict(), optimizer.state_dict()
    moments = {f"state/{i}/{name}": value for i, entry in state["state"].items() for name, value in entry.items()}
    # Buffers are small and change in a forward pass too.
    buffers = {name: weights[name].detach().cpu().clone() for name in weights.keys() - dict(policy.named_parameters())}
    changing = {name: value for name, value in weights.items() if name not in buffers}
    copied = {**copy({**changing, **moments}), **buffers}  # names of modules have no slash
    return Snapshot(
        progress,
        policy,
        {name: copied[name] for name in weights if name in copied},
        {name: copied[name] for name in moments if name in copied},
        [dict(group) for group in state["param_groups"]],
        None if scaler is None else grad_scaler.state(scaler),
        [rng_state(policy.device)],
        config,
    )


def write_checkpoint(run_dir: Path, snapshot: Snapshot) -> Path:
    """Write `checkpoints/<step>`, then point `last` at it; a kill or a full disk leaves the one before as the newest.

    Raises `OSError`.
    """
    root = run_dir / CHECKPOINTS_FOLDER
    final = root / f"{snapshot.progress.step:06d}"
    folder = temporary(final)
    tidy(root)
    try:
        save_pretrained(
            folder / PRETRAINED_FOLDER, snapshot.policy, train_config=snapshot.config, weights=snapshot.weights
        )
        _write_state(folder / STATE_FOLDER, snapshot)
        put(folder, final)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    point(root / LAST, final)
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
    _check_numbers(file, known, dict.fromkeys(("step", *(known.keys() - {"window", "samples"})), COUNT_OR_NONE))
    return Progress(**known)


def _check_numbers(file: Path, stored: Mapping[str, Any], ranges: Mapping[str, Range]) -> None:
    """Refuse what `file` holds unless each name of `ranges` is there and inside its range."""
    for name, allowed in ranges.items():
        if stored.get(name) not in allowed:
            raise ConfigError(f"{file} has {name}={stored.get(name)} and not {allowed}: {_ANOTHER}")


def _refuse_nonfinite(policy: Policy, step: int) -> None:
    """Never write weights that nothing can be done with: the checkpoint before stays the newest."""
    weights = dict(policy.named_parameters())
    if bool(gathered(torch.nn.utils.get_total_norm(weights.values())).isfinite()):  # one number from the device
        return
    bad = [name for name, value in weights.items() if not bool(gathered(value).isfinite().all())]
    if bad:  # and not a norm that overflowed
        raise RunError(
            f"the weights are not finite at step {step} ({', '.join(bad[:3])}), nothing is saved: "
            "lower policy.optimizer_lr, or add accelerator.skip_nonfinite=true"
        )


def _write_state(folder: Path, snapshot: Snapshot) -> None:
    folder.mkdir(parents=True)
    write_tensors(folder / OPTIMIZER_FILE, snapshot.optimizer)
    write_json(folder / GROUPS_FILE, snapshot.groups)
    write_json(folder / STEP_FILE, asdict(snapshot.progress))
    write_json(folder / SCHEDULER_FILE, _scheduler_state(snapshot))
    for rank, generators in enumerate(snapshot.rng):
        write_tensors(folder / rng_file_name(rank), generators)
    if snapshot.scaler is not None:
        write_json(folder / SCALER_FILE, snapshot.scaler)


def _scheduler_state(snapshot: Snapshot) -> dict[str, Any]:
    """What torch's `LambdaLR` keeps, for LeRobot to go on with; here the rate is a function of the step."""
    step, groups = snapshot.progress.step, snapshot.groups
    return {
        "base_lrs": [group.get("initial_lr", group["lr"]) for group in groups],
        "last_epoch": step,
        "_step_count": step + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [group["lr"] for group in groups],
        "lr_lambdas": [None] * len(groups),
    }


def _load_optimizer(folder: Path, optimizer: Optimizer) -> None:
    state: dict[int, dict[str, Any]] = {}
    stored = read_tensors(folder / OPTIMIZER_FILE)
    _check_optimizer(folder / OPTIMIZER_FILE, optimizer, stored)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in stored.items():
        _, index, key = name.split("/", 2)
        state.setdefault(int(index), {})[key] = like(parameters[int(index)], value)
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
