"""What may change when a run goes on, and what makes it another run. Imports no torch."""

import os
import re
from pathlib import Path
from typing import Any

from lerobot.accelerator.config import AUTO
from lerobot.accelerator.parallel_config import is_rank
from lerobot.checkpoint import paths
from lerobot.config import differences, to_plain
from lerobot.errors import ConfigError
from lerobot.migrate import read_run

INIT_SCALE = "accelerator.grad_scaler.init_scale"
_MAY_CHANGE = re.compile(
    r"policy\.(device|optimizer_lr|optimizer_lr_backbone|push_to_hub|repo_id|private|tags|license)"
    r"|dataset\.root|optimizer\.(lr|fused)|tf32|wandb\..*|eval\..*|checkpoint\..*|steps"
    r"|accelerator\.(mixed_precision|grad_scaler\..*|skip_nonfinite|num_threads|cudnn_deterministic|micro_batch)"
    r"|parallelism\..*"
    r"|time_limit|log_freq|save_freq|env_eval_freq|save_checkpoint|num_workers|prefetch_factor|picture"
)
_NOT_THE_RUN = re.compile(r"output_dir|job_name|schema_version|(demos|sweep)(\..*)?|policy\.pretrained_(path|revision)")
"""What may differ between two parts of one run without a word."""


def check_resumed(config: Any) -> None:
    """Refuse a resumed run that is another run than the stored one, and take from that what is not typed but found."""
    if getattr(config, "resume", None) in (None, AUTO):
        return
    folder = Path(config.resume) / paths.PRETRAINED_FOLDER
    stored = read_run(folder / paths.TRAIN_CONFIG_FILE)
    before = paths.read_policy_config(folder)
    config.policy.input_features = config.policy.input_features or before.input_features
    config.policy.output_features = config.policy.output_features or before.output_features
    config.wandb.run_id = config.wandb.run_id or stored["wandb"].get("run_id")
    found = changes(stored, config)
    config.reset_scale = config.reset_scale or INIT_SCALE in found
    may_too = _divided_anew(Path(config.resume), config.parallelism.nproc)
    for key, (old, new) in found.items():
        if not _MAY_CHANGE.fullmatch(key) and key not in may_too:
            old, new = (value["type"] if isinstance(value, dict) and "type" in value else value for value in (old, new))
            raise ConfigError(
                f"{key}={new} cannot change when a run goes on (it was {old}): type resume={folder.parents[2]} without "
                f"it, or start a new run with policy.path={folder}"
            )
    _refuse_no_way(config, folder.parent)


def _refuse_no_way(config: Any, step_folder: Path) -> None:
    """Refuse to end a run before where it stands, and to go back where nothing is to be done."""
    step = paths.step_of(step_folder) or 0
    is_newest = all((paths.step_of(other) or 0) <= step for other in step_folder.parent.glob("*"))
    if step > config.steps or (step == config.steps and not is_newest):
        raise ConfigError(
            f"steps={config.steps} and {step_folder} stands at step {step} already: type steps=<more> to go on there"
        )


def changes(stored: dict[str, Any], config: Any) -> dict[str, tuple[Any, Any]]:
    """What differs between a stored run config and this one, but for how it is started: dotted key to (old, new)."""
    found = differences(stored, to_plain(config))
    return {key: found[key] for key in sorted(found) if not _NOT_THE_RUN.fullmatch(key)}


def _divided_anew(step_folder: Path, nproc: Any) -> tuple[str, ...]:
    """Keys that make up the samples of an update, where the run of `step_folder` goes on in other processes."""
    file = step_folder / paths.STATE_FOLDER / paths.STEP_FILE
    processes = paths.read_json(file).get("num_processes", 1) if file.is_file() else 1
    now = int(os.environ["WORLD_SIZE"]) if is_rank() else nproc or 1
    now = processes if now == AUTO else now  # nobody knows yet
    return () if now == processes else ("batch_size", "accelerator.gradient_accumulation.steps")
