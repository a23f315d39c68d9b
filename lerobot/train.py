"""lerobot-train: trains a policy, evaluates it and logs it."""

from typing import TYPE_CHECKING

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
    if config.resume_check is not None:
        from lerobot.resume_check import check_resume

        return check_resume(config)
    from lerobot.checkpoint.hub import check_upload

    check_upload(config.policy, saves=config.save_checkpoint)
    from lerobot.runner import train

    return train(config)


def main() -> None:
    """See the module."""
    with leave_on_signals():
        from lerobot.command import main as run_command

        run_command("train", work)


if __name__ == "__main__":
    main()
