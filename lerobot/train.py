"""lerobot-train: trains a policy, evaluates it and logs it."""

from lerobot.command import main as run_command
from lerobot.config import TrainConfig


def check(config: TrainConfig) -> None:
    """Refuse what the config alone shows to be impossible."""
    if config.demos is None:
        config.dataset.check()


def work(config: TrainConfig) -> str:
    """Run `config`; torch is imported only here, after every word of the command line has been accepted."""
    check(config)
    from lerobot.runner import train

    return train(config)


def main() -> None:
    """See the module."""
    run_command("train", work)


if __name__ == "__main__":
    main()
