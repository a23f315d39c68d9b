"""A stand-alone evaluation: loads a checkpoint, rolls it out, and says what ran."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lerobot.accelerator.precision import check_observed, observed_dtypes
from lerobot.accelerator.stack import open_stack
from lerobot.checkpoint.pretrained import load_policy
from lerobot.claim import claimed
from lerobot.config import EvalRunConfig, to_plain
from lerobot.disk import spared
from lerobot.evaluation import report, roll
from lerobot.facts import versions
from lerobot.memory import Held, explained
from lerobot.signals import stop_on_signals
from lerobot.status import running, write_json
from lerobot.tracking.tracker import open_tracker

log = logging.getLogger(__name__)


def evaluate_checkpoint(config: EvalRunConfig, run_dir: Path) -> str:
    """Roll `config.policy` out in `config.env`; return the final state of `status.json`."""
    with stop_on_signals() as stop, claimed(run_dir, goes_on=False), running(run_dir) as final, ExitStack() as opened:
        stack = opened.enter_context(open_stack(config.accelerator, config.policy.device, config.tf32))
        held = Held(config, run_dir)
        opened.enter_context(explained(stack, held, evaluating=True))
        path = config.policy.pretrained_path
        policy = load_policy(path, stack.device.torch_device, config=config.policy)
        held.policy = policy
        policy.rename_map = config.rename_map or policy.rename_map
        facts = {
            **stack.facts(),
            **versions(),
            "checkpoint": str(path),
            "checkpoint_revision": config.policy.pretrained_revision,
            "parameter_dtype": str(next(policy.parameters()).dtype).removeprefix("torch."),
            "weights": "raw",
            "n_action_steps": getattr(policy.config, "n_action_steps", None),
        }
        _write_facts(run_dir, facts)
        tracker = opened.enter_context(
            open_tracker(run_dir, config.wandb, steps=0, config=to_plain(config), facts=facts)
        )
        commit = f" at {config.policy.pretrained_revision}" if config.policy.pretrained_revision else ""
        log.info("evaluating %s%s on %s in precision %s", path, commit, stack.device.torch_device, stack.precision)
        with observed_dtypes(policy) as seen:
            result = roll(policy, config, run_dir / "eval", stack.autocast, stop)
        _write_facts(run_dir, {**facts, "forward_dtype": check_observed(stack.precision, seen)})
        report(result, 0, run_dir / "eval", tracker)
        final.state = "stopped" if result.stopped else "done"
    return final.state


def _write_facts(run_dir: Path, facts: dict[str, Any]) -> None:
    with spared(run_dir):
        write_json(run_dir / "run.json", facts)
