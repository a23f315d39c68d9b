"""What a run left in its folder, read as far as it can be read."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from lerobot.claim import is_held
from lerobot.envs.result import Episode, wilson
from lerobot.report.words import OVERRIDES_FILE, changed_words, read_words
from lerobot.status import PRUNED, STATUS_FILE, read_status, seconds_between
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

EPISODES_FILE = Path("eval", "episodes.jsonl")
ENDED_UNSEEN = "the process ended without a word: killed, or out of memory"

Read = TypeVar("Read")


@dataclass
class Record:
    """One run. What is missing is empty, None or NaN, and `notes` says which files could not be read."""

    name: str
    folder: Path
    state: str = "missing"
    """done, refused, failed, stopped, pruned, running; missing where a job left no status."""
    error: str = ""
    overrides: dict[str, str] = field(default_factory=dict)
    """As typed, by the first line and those that went on with it; key to value."""
    has_overrides: bool = False
    seed: int | None = None
    step: int | None = None
    steps: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    """Of the last evaluation."""
    facts: dict[str, Any] = field(default_factory=dict)
    """`run.json`."""
    status_s: float = math.nan
    notes: list[str] = field(default_factory=list)

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of each row that has `key`; a value that was not finite is NaN."""
        return [(row["step"], number(row[key])) for row in self.rows if key in row]

    def last(self, key: str) -> float:
        """The newest value of `key`; NaN without one."""
        values = self.series(key)
        return values[-1][1] if values else math.nan

    def typical(self, key: str) -> float:
        """The median over the log rows, the first left out where there are more: it holds the warming up."""
        values = [value for _, value in self.series(key) if math.isfinite(value)]
        return median(values[1:] or values) if values else math.nan

    @cached_property
    def final_loss(self) -> float:
        """Training loss of the last log row; NaN where it was not finite, or there is none."""
        return self.last("train/loss")

    @property
    def best_loss(self) -> float:
        """The least training loss of a log row."""
        return min((value for _, value in self.series("train/loss") if math.isfinite(value)), default=math.nan)

    @cached_property
    def outcome(self) -> tuple[int, int]:
        """Solved and all episodes of the last evaluation, from its row where the episodes cannot be read."""
        if self.episodes:
            return sum(episode.success for episode in self.episodes), len(self.episodes)
        rate, n = self.last("eval/success_rate"), self.last("eval/n_episodes")
        return (round(rate * n), int(n)) if math.isfinite(rate) and math.isfinite(n) else (0, 0)

    @property
    def success_rate(self) -> float:
        """NaN without an evaluation."""
        solved, n = self.outcome
        return solved / n if n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate."""
        return wilson(*self.outcome) if self.outcome[1] else (math.nan, math.nan)

    @property
    def samples_per_s(self) -> float:
        """Of a log row that is typical of the run."""
        return self.typical("train/samples_per_s")

    @property
    def peak_mem_gb(self) -> float:
        """NaN where it was not measured."""
        return max((gb for _, gb in self.series("device/peak_mem_gb") if math.isfinite(gb)), default=math.nan)

    @property
    def wall_s(self) -> float:
        """All parts of a resumed run, by the longer of two clocks."""
        return max((t for t in (self.status_s, self.last("time_s")) if math.isfinite(t)), default=math.nan)

    @property
    def is_on_cpu(self) -> bool:
        """Whether `peak_mem_gb` is that of the process, which jobs of one process share."""
        return self.facts.get("backend") == "cpu"

    def fact(self, key: str) -> str:
        """A fact of `run.json` as text; empty where it is unknown or has no meaning on the device."""
        value = self.facts.get(key)
        return "" if value is None else str(value)


def number(value: Any) -> float:
    """`value` as a number; NaN for null and for what is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan


def is_run(folder: Path) -> bool:
    """Whether `folder` holds what a run leaves, be it that it died early."""
    return (folder / STATUS_FILE).is_file() or (folder / ".hydra").is_dir()


def read_run(folder: Path, name: str, words: dict[str, str] | None = None) -> Record:
    """All that `folder` says. A file that cannot be read costs its own part, and a note says so.

    words: what its first line typed, where the file of them is not to be asked.
    """
    record = Record(name, folder)
    status = read_status(folder)
    record.state, record.error = _state(folder, status)
    record.step, record.steps = status.get("step"), status.get("steps")
    record.status_s = seconds_between(status.get("started"), status.get("ended"))
    record.has_overrides = words is not None or (folder / OVERRIDES_FILE).is_file()
    record.overrides = dict(_try(record, OVERRIDES_FILE, read_words, {}) if words is None else words)
    record.overrides |= changed_words(folder, record.overrides)
    record.rows = _try(record, Path(METRICS_FILE), _rows, [])
    record.episodes = _try(record, EPISODES_FILE, _episodes, [])
    record.facts = _try(record, Path("run.json"), _object, {})
    record.seed = _seed(record)
    if (folder / STATUS_FILE).is_file() and not status:
        record.notes.append(f"{STATUS_FILE} cannot be read")
    return record


def _try(record: Record, file: Path, read: Callable[[Path], Read], instead: Read) -> Read:
    path = record.folder / file
    if not path.is_file():
        return instead
    try:
        return read(path)
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        record.notes.append(f"{file} cannot be read ({reason[:200]})")
        return instead


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = read_metrics(path)
    if not rows and path.stat().st_size:
        raise ValueError("it holds no whole row")
    return rows


def _state(folder: Path, status: dict[str, Any]) -> tuple[str, str]:
    if "state" not in status:
        return "missing", "left no status"
    state, error = str(status["state"]), str(status.get("error") or "")
    if state == "running" and not is_held(folder):
        return "failed", error or ENDED_UNSEEN
    if status.get("pruned"):
        return PRUNED, error
    return state, error


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _episodes(path: Path) -> list[Episode]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        Episode(
            row["episode"], str(row["task"]), int(row["seed"]), bool(row["success"]), number(row["sum_reward"]),
            row["length"],
        )
        for row in rows
    ]  # fmt: skip


def _seed(record: Record) -> int | None:
    """As typed, else the default that the run was composed with."""
    typed = record.overrides.get("seed", "")
    config = record.folder / ".hydra" / "config.yaml"
    if not typed and config.is_file():
        found = re.search(r"^seed: (\d+)$", config.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        typed = found[1] if found else ""
    return int(typed) if typed.isdecimal() else None
