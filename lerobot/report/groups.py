"""Runs that differ in their seed alone are one group: its name, its mean, its spread."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from lerobot.envs.result import wilson
from lerobot.report.record import Record
from lerobot.report.words import alike, composed

SHORT = {"accelerator.mixed_precision": "precision", "policy.device": "device"}
"""Keys that are typed by another name than Hydra stores."""
NO_EXPERIMENT = ("output_dir", "job_name", "resume", "interrupt_after", "picture", "wandb", "sweep")
"""Keys that name a run or show it, and do not change it; with what is below them."""
NOT_TYPED = "default"
SEED = "seed"
EXPERIMENT = "experiment"


@dataclass(frozen=True)
class Group:
    """Runs of one setting."""

    label: str
    """What differs from the other groups, as typed."""
    settings: tuple[tuple[str, str], ...]
    """Key and value of what differs between groups."""
    runs: tuple[Record, ...]

    @property
    def finished(self) -> list[Record]:
        """Those whose numbers count: a run that was cut short is compared with nothing."""
        return [run for run in self.runs if run.state == "done"]

    @property
    def losses(self) -> list[float]:
        """The final loss of each finished run that has one, in the order of the seeds."""
        return [run.final_loss for run in self.finished if math.isfinite(run.final_loss)]

    @property
    def outcome(self) -> tuple[int, int]:
        """Solved and all episodes of the finished runs."""
        return sum(run.outcome[0] for run in self.finished), sum(run.outcome[1] for run in self.finished)

    @property
    def success_rate(self) -> float:
        """Of the pooled episodes; NaN without any."""
        solved, n = self.outcome
        return solved / n if n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the pooled success rate, episodes taken as independent."""
        return wilson(*self.outcome) if self.outcome[1] else (math.nan, math.nan)

    def setting(self, key: str) -> str:
        """The value of a key that differs; empty where it does not."""
        return dict(self.settings).get(key, "")


def differing(records: Sequence[Record]) -> list[str]:
    """The keys in whose typed value the runs differ, in the order of typing."""
    known = [record for record in records if record.has_overrides]
    typed = dict.fromkeys(key for record in known for key in record.overrides if not _only_names(key))
    keys = [key for key in typed if len({_value(record, key) for record in known}) > 1]
    if EXPERIMENT in keys and _changes_nothing(known, keys):
        keys.remove(EXPERIMENT)
    return keys


def _changes_nothing(records: Sequence[Record], keys: Sequence[str]) -> bool:
    """Whether what was composed differs in `keys` alone: an experiment may only list what others type."""
    configs = [composed(record.folder) for record in records if record.state == "done"]
    seen = {
        str(sorted((key, str(value)) for key, value in config.items() if key not in keys and not _only_names(key)))
        for config in configs
    }
    return all(configs) and len(seen) == 1


def make_groups(records: Sequence[Record]) -> list[Group]:
    """The groups in the order of their first runs.

    Runs with the same words and the same seed are not pooled: something differs that was not typed (the code, the
    machine), and whoever compares them wants to see it. One that failed and was repeated counts nowhere.
    """
    keys = [key for key in differing(records) if key != SEED]
    buckets: dict[tuple[tuple[str, str], ...], list[Record]] = defaultdict(list)
    for record in records:
        buckets[_settings(record, keys)].append(record)
    groups = []
    for settings, runs in buckets.items():
        done = [run.seed for run in runs if run.state == "done"]
        if len(set(done)) < len(done):
            groups += [
                Group(f"{_label(settings)} {run.name}".strip(), (*settings, ("run", run.name)), (run,)) for run in runs
            ]
        else:
            runs.sort(key=lambda run: -1 if run.seed is None else run.seed)
            groups.append(Group(_label(settings) or _whole(runs), settings, tuple(runs)))
    return groups


def shown_overrides(record: Record, keys: Sequence[str]) -> str:
    """What differs, as typed."""
    return " ".join(f"{SHORT.get(key, key)}={record.overrides[key]}" for key in keys if key in record.overrides)


def mean(values: Iterable[float]) -> float:
    """Of the finite ones; NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


def deviation(values: Sequence[float]) -> float:
    """Over seeds; NaN for fewer than two."""
    return stdev(values) if len(values) > 1 else math.nan


def _only_names(key: str) -> bool:
    return key.partition(".")[0] in NO_EXPERIMENT


def _settings(record: Record, keys: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if not record.has_overrides:
        return (("run", record.name),)
    return tuple((key, _value(record, key)) for key in keys)


def _value(record: Record, key: str) -> str:
    return alike(record.overrides.get(key, NOT_TYPED))


def _label(settings: tuple[tuple[str, str], ...]) -> str:
    return " ".join(value if key == "run" else f"{SHORT.get(key, key)}={value}" for key, value in settings)


def _whole(runs: Sequence[Record]) -> str:
    """The name of a group that differs from no other."""
    return runs[0].name if len(runs) == 1 else f"{len(runs)} seeds"
