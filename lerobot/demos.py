"""lerobot-demos: records a simulator's scripted expert as a LeRobotDataset v3.0."""

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lerobot.errors import ConfigError
from lerobot.schedule import due
from lerobot.signals import leave_on_signals, stop_on_signals

if TYPE_CHECKING:
    from lerobot.config import DemosRunConfig
    from lerobot.envs.record import Recorded

log = logging.getLogger(__name__)


def check(config: "DemosRunConfig") -> None:
    """Refuse what the config alone shows to be impossible."""
    if config.dataset.root is None:
        raise ConfigError("no folder is given: type dataset.root=<new folder>")
    if config.env is None:
        raise ConfigError("no simulator is given: type env=metaworld")


def work(config: "DemosRunConfig") -> str:
    """Record what `config` asks for; an existing folder is refused."""
    check(config)
    from lerobot.claim import claimed
    from lerobot.envs.record import Plan, record
    from lerobot.status import running

    assert config.dataset.root is not None
    root = Path(config.dataset.root).expanduser()
    plan = Plan(config.dataset.num_episodes, config.seed, config.action_noise, tuple(config.cameras), config.image_size)
    run_dir = Path(config.output_dir or "")
    with stop_on_signals() as stop, claimed(run_dir, goes_on=False), running(run_dir) as final:
        recorded = record(config.env, root, plan, should_stop=stop, on_episode=_say)
        log.info(
            "%s: %d episodes, %d frames, %d attempts that the expert did not solve are left out",
            root, recorded.episodes, recorded.frames, recorded.attempts - recorded.episodes,
        )  # fmt: skip
        words = f"dataset.root={root}", f"env={config.env.type}", f"env.task={','.join(config.env.tasks)}"
        log.info("train on it: lerobot-train %s", shlex.join(words))
        final.state = "stopped" if recorded.stopped else "done"
    return final.state


def _say(so_far: "Recorded") -> None:
    if due(so_far.episodes, 10, last=False):
        log.info("%d episodes recorded", so_far.episodes)


def main() -> None:
    """See the module."""
    with leave_on_signals():
        from lerobot.command import main as run_command

        run_command("demos", work)


if __name__ == "__main__":
    main()
