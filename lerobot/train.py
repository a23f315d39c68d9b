"""lerobot-train: trains a policy, evaluates it and logs it."""

from typing import TYPE_CHECKING

from lerobot.accelerator.config import AUTO
from lerobot.accelerator.parallel_config import is_rank
from lerobot.errors import ConfigError
from lerobot.signals import leave_on_signals

if TYPE_CHECKING:
    from lerobot.config import TrainConfig


def check(config: "TrainConfig") -> None:
    """Refuse what the config alone shows to be impossible."""
    if config.demos is None:
        config.dataset.check()


def work(config: "TrainConfig") -> str:
    """Run `config`; torch is imported only here, after every word of the command line has been accepted."""
    check(config)
    if is_rank() or config.parallelism.nproc not in (None, 1):
        _refuse_several(config)
    if not is_rank() and config.parallelism.nproc not in (None, 1):
        from lerobot.parallel_launch import launch, number_of_processes

        if (number := number_of_processes(config)) > 1:
            return launch(config, number)
    if config.resume_check is not None:
        from lerobot.resume_check import check_resume

        return check_resume(config)
    from lerobot.checkpoint.hub import check_upload

    check_upload(config.policy, saves=config.save_checkpoint)
    from lerobot.runner import train

    return train(config)


def _refuse_several(config: "TrainConfig") -> None:
    """What is about one process."""
    if config.resume_check is not None:
        raise ConfigError("resume_check runs in one process: leave out parallelism.nproc, and start without torchrun")
    if config.accelerator.micro_batch == AUTO:
        raise ConfigError("accelerator.micro_batch=auto finds out what fits in one process: type a number in its place")


def main() -> None:
    """See the module."""
    with leave_on_signals():
        from lerobot.command import main as run_command

        run_command("train", work)


if __name__ == "__main__":
    main()
