"""What an evaluation found. Imports no torch, so that a report can read it."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Episode:
    """One episode; a row of `eval/episodes.jsonl`."""

    episode: int
    """Counted for each task from 0."""
    task: str
    seed: int
    """What the start was drawn from."""
    success: bool
    sum_reward: float
    length: int
    """Steps taken."""


@dataclass
class EvalResult:
    """Finished episodes in order (task, then number), and the videos of some."""

    episodes: list[Episode] = field(default_factory=list)
    videos: list[Path] = field(default_factory=list)
    note: str = ""
    """Why there are fewer videos than one may expect; empty where there is nothing to say."""
    stopped: bool = False
    """Whether it ended early because it was asked to."""
    time_s: float = 0.0

    @property
    def successes(self) -> int:
        """Episodes that were solved."""
        return sum(episode.success for episode in self.episodes)

    @property
    def success_rate(self) -> float:
        """Share of episodes that were solved; NaN without episodes."""
        return self.successes / len(self.episodes) if self.episodes else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate."""
        return wilson(self.successes, len(self.episodes))

    @property
    def sum_reward(self) -> float:
        """Mean over episodes of the sum of rewards; NaN without episodes."""
        return sum(episode.sum_reward for episode in self.episodes) / len(self.episodes) if self.episodes else math.nan

    @property
    def steps_per_s(self) -> float:
        """Steps of all simulators a second, set-up and videos included."""
        return sum(episode.length for episode in self.episodes) / max(self.time_s, 1e-9)

    @property
    def by_task(self) -> dict[str, "EvalResult"]:
        """The episodes of each task."""
        tasks = dict.fromkeys(episode.task for episode in self.episodes)
        return {task: EvalResult([e for e in self.episodes if e.task == task]) for task in tasks}


def merged(parts: list[EvalResult], tasks: list[str]) -> EvalResult:
    """One result of those that ran side by side, in the order of one that ran alone."""
    order = {task: number for number, task in enumerate(tasks)}
    return EvalResult(
        sorted((e for part in parts for e in part.episodes), key=lambda e: (order[e.task], e.episode)),
        [video for part in parts for video in part.videos],
        parts[0].note,
        any(part.stopped for part in parts),
        max(part.time_s for part in parts),
    )


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson interval of a rate, at 95 % by default (Wilson 1927). Without trials it is (0, 1)."""
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    middle = rate + z * z / (2 * n)
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def write_episodes(path: Path, episodes: list[Episode]) -> None:
    """Write one strict JSON object a row. A reward that is not finite becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(episode) for episode in episodes]
    for row in rows:
        row["sum_reward"] = row["sum_reward"] if math.isfinite(row["sum_reward"]) else None
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
