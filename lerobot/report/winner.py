"""Which policy of a sweep is the best, and how it is judged anew on starts that it was not chosen by."""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.utils import get_class

from lerobot.checkpoint.paths import TRAIN_CONFIG_FILE, find_pretrained, read_json
from lerobot.cli import grammar
from lerobot.errors import ConfigError
from lerobot.report.folders import WINNER_FOLDER
from lerobot.report.groups import Group, mean
from lerobot.report.record import Record

LEAST_EPISODES = 100
FRESH_BLOCK = 10_000
"""Fresh seeds start at the next multiple of this beyond every seed that an episode of the sweep started from."""
DEMONSTRATIONS = range(100_000, 200_000)
"""Where recordings start from by default; a policy knows these starts."""


@dataclass(frozen=True)
class Winner:
    """The run to take, and the words for `lerobot-eval` that judge it on fresh starts."""

    group: Group
    run: Record
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """The line to type."""
        return f"lerobot-eval {shlex.join(self.words)}"


def choose_winner(groups: Sequence[Group], folder: Path, n_episodes: int | None = None) -> Winner | None:
    """The group with the highest success rate (then the lowest loss), its first seed; None where nothing was evaluated.

    The first seed rather than the best one: a seed is nothing to select by. With one group there is nothing to choose.
    n_episodes: by default as many as the group had, 100 at least. folder: of the sweep; the words evaluate into
    its folder `winner`, which `write_report` then shows.
    """
    judged = [group for group in groups if group.outcome[1]]
    if len(judged) < 2:
        return None
    for group in sorted(judged, key=lambda group: (-group.success_rate, _or_infinite(mean(group.losses)))):
        run = group.finished[0]
        if simulator := _env_words(run.folder):
            n = n_episodes or max(LEAST_EPISODES, group.outcome[1])
            chosen = (f"seed={fresh_seed(groups, n)}", f"eval.n_episodes={n}", f"output_dir={folder / WINNER_FOLDER}")
            return Winner(group, run, (f"policy.path={run.folder}", *simulator, *chosen))
    return None


def judges(evaluation: Record, winner: Winner) -> bool:
    """Whether `evaluation` is of the checkpoint to take; by names, as a sweep may have been moved."""
    return Path(evaluation.fact("checkpoint")).parts[-4:] == find_pretrained(winner.run.folder).parts[-4:]


def fresh_seed(groups: Sequence[Group], n: int) -> int:
    """A seed from which `n` episodes start as none did that the groups were judged by, nor a demonstration."""
    used = max((row.seed for group in groups for run in group.runs for row in run.episodes), default=0)
    seed = (used // FRESH_BLOCK + 1) * FRESH_BLOCK
    clashes = seed < DEMONSTRATIONS.stop and seed + n > DEMONSTRATIONS.start
    return DEMONSTRATIONS.stop if clashes else seed


def _or_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _env_words(folder: Path) -> list[str]:
    """The simulator of the run, as typed; empty where it had none, or saved nothing that could act in it."""
    try:
        env: dict[str, Any] = read_json(find_pretrained(folder) / TRAIN_CONFIG_FILE).get("env") or {}
        defaults = dataclasses.asdict(get_class(env["_target_"])())
    except (ConfigError, ImportError, KeyError, TypeError):  # no checkpoint, no simulator, or one that is not installed
        return []
    changed = {key: env[key] for key, value in defaults.items() if env.get(key, value) != value}
    typed = [f"env.{key}={value if isinstance(value, str) else grammar(value)}" for key, value in changed.items()]
    return [f"env={defaults['type']}", *typed]
