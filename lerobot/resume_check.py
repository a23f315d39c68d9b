"""Does a run that was stopped and resumed equal one that was not? Asked on this machine, of this very config."""

import copy
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lerobot.checkpoint.paths import CHECKPOINTS_FOLDER, LAST, PRETRAINED_FOLDER, WEIGHTS_FILE
from lerobot.checkpoint.tensors import read_tensors
from lerobot.checkpoint.training_state import OPTIMIZER_FILE, SCALER_FILE, STATE_FOLDER, STEP_FILE
from lerobot.claim import claimed
from lerobot.config import TrainConfig
from lerobot.errors import ConfigError, RunError
from lerobot.prepare import find_dataset
from lerobot.runner import train
from lerobot.signals import stop_on_signals
from lerobot.status import running
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

log = logging.getLogger(__name__)

_MEASURED = ("_s", "_gb")
"""Ends of metrics that are times and memory, which no two runs have in common."""


def check_resume(config: TrainConfig) -> str:
    """Train `config.resume_check` updates straight on and once more with a stop in the middle; say what differs.

    Raises `RunError` if anything does. Both runs are then kept below `config.output_dir`.
    """
    if config.resume is not None:
        raise ConfigError("resume_check starts runs of its own: leave out resume, or type --config_path=<run> instead")
    steps, run_dir = config.resume_check or 0, Path(config.output_dir or "")
    with claimed(run_dir, goes_on=False), running(run_dir, steps=steps) as final:
        with stop_on_signals() as stop:
            root = find_dataset(config, stop)
            is_stopped = stop()
        small = _without_the_rest(config, root, steps)
        stop_at = {"straight": None, "resumed": steps // 2}
        for name, after in stop_at.items():
            is_stopped = is_stopped or _train(small, run_dir / name, after) == "stopped"
        if is_stopped:
            final.state = "stopped"
            return final.state
        found = differences(run_dir / "straight", run_dir / "resumed")
        if found and _train(small, run_dir / "repeated", None) == "done":
            _refuse(found, differences(run_dir / "straight", run_dir / "repeated"), config)
        final.step = steps
    for name in stop_at:
        shutil.rmtree(run_dir / name)
    log.info(
        "resume is exact: %d updates with a stop after %d gave the bits of %d without one "
        "(weights, optimizer, loss scale, metrics)", steps, steps // 2, steps,
    )  # fmt: skip
    return final.state


def _without_the_rest(config: TrainConfig, root: Path, steps: int) -> TrainConfig:
    """`config` as a short run that trains and saves, and neither records, evaluates, charts nor draws."""
    small = copy.deepcopy(config)
    small.dataset.root = str(root)
    small.wandb = replace(config.wandb, enable=False)
    return replace(
        small, resume_check=None, demos=None, env=None, steps=steps, log_freq=2, save_freq=0, save_checkpoint=True,
        picture=False,
    )  # fmt: skip


def _train(config: TrainConfig, folder: Path, interrupt_after: int | None) -> str:
    config = copy.deepcopy(config)
    config.output_dir, config.interrupt_after = str(folder), interrupt_after
    return train(config)


def _refuse(found: list[str], by_chance: list[str], config: TrainConfig) -> None:
    said = f"resume is not exact: {'; '.join(found)}"
    if by_chance:
        said += f"; but neither is a run without a stop the same twice ({'; '.join(by_chance)})"
        if not config.accelerator.cudnn_deterministic:
            said += ", type accelerator.cudnn_deterministic=true"
    raise RunError(f"{said}; the runs are kept in {config.output_dir}")


def differences(one: Path, other: Path) -> list[str]:
    """In what the last checkpoints and the rows of two runs differ, each in words; empty where nothing does."""
    first, second = (run / CHECKPOINTS_FOLDER / LAST for run in (one, other))
    weights, state = Path(PRETRAINED_FOLDER) / WEIGHTS_FILE, Path(STATE_FOLDER)
    said = [
        _tensors("weights", read_tensors(first / weights), read_tensors(second / weights)),
        _tensors("optimizer", *(read_tensors(folder / state / OPTIMIZER_FILE) for folder in (first, second))),
        _values("loss scale", *(_json(folder / state / SCALER_FILE) for folder in (first, second))),
        _values("progress", *(_json(folder / state / STEP_FILE) for folder in (first, second))),
        _rows(*(read_metrics(run / METRICS_FILE) for run in (one, other))),
    ]
    return [sentence for sentence in said if sentence]


def _tensors(name: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    if odd := sorted(first.keys() ^ second.keys()):
        return f"{name} has {', '.join(odd[:3])} in one run only"
    apart: dict[str, float] = {}
    for key, value in first.items():
        same = (value == second[key]) | (value.isnan() & second[key].isnan())
        if not bool(same.all()):
            apart[key] = float((value.double() - second[key].double()).abs().nan_to_num(float("inf")).max())
    if not apart:
        return ""
    worst = max(apart, key=lambda key: apart[key])
    return f"{name} differs in {len(apart)} of {len(first)} tensors, most in {worst} by {apart[worst]:.3g}"


def _values(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    apart = [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
    return f"{name} differs: " + ", ".join(f"{k} {first.get(k)} and {second.get(k)}" for k in apart) if apart else ""


def _rows(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> str:
    """The first row that differs in what is not measured."""
    steps = [[row["step"] for row in rows] for rows in (first, second)]
    if steps[0] != steps[1]:
        return f"metrics differ: rows of updates {steps[0]} and {steps[1]}"
    for row, other in zip(first, second, strict=True):
        same = [{k: v for k, v in each.items() if not k.endswith(_MEASURED)} for each in (row, other)]
        if said := _values(f"metrics of update {row['step']}", same[0], same[1]):
            return said
    return ""


def _json(file: Path) -> dict[str, Any]:
    """What is in `file`; nothing where the run has none, as without a loss scale."""
    content = json.loads(file.read_text()) if file.is_file() else {}
    return {key: value for key, value in content.items() if key != "window"}
