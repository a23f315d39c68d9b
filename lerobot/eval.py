"""lerobot-eval: rolls a checkpoint out in a simulator."""

from pathlib import Path
from typing import TYPE_CHECKING

from lerobot.errors import ConfigError
from lerobot.signals import leave_on_signals

if TYPE_CHECKING:
    from lerobot.config import EvalRunConfig


def check(config: "EvalRunConfig") -> None:
    """Refuse what the config alone shows to be impossible."""
    if config.policy.pretrained_path is None:
        raise ConfigError("no policy is given: type policy.path=<a run, a checkpoint or a Hub repo>")
    if config.policy.push_to_hub:
        raise ConfigError("lerobot-eval uploads nothing: leave policy.push_to_hub out, and type it when training")
    if config.env is None:
        raise ConfigError("no simulator is given: type env=metaworld")


def work(config: "EvalRunConfig") -> str:
    """Evaluate `config.policy` and write what a training run writes, with one `eval/*` row."""
    check(config)
    from lerobot.eval_runner import evaluate_checkpoint

    return evaluate_checkpoint(config, Path(config.output_dir or ""))


def main() -> None:
    """See the module."""
    with leave_on_signals():
        from lerobot.command import main as run_command

        run_command("eval", work)


if __name__ == "__main__":
    main()
