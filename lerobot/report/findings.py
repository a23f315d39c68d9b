"""Everything that a report says, found once for the terminal and for the page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lerobot.report.compare import Comparison, compare_loss, compare_success
from lerobot.report.folders import WINNER_FOLDER
from lerobot.report.groups import Group, make_groups
from lerobot.report.precision import precision_verdicts, says_all
from lerobot.report.record import Record, is_run, read_run
from lerobot.report.winner import Winner, choose_winner, judges

MOST_TOLD = 6
"""Pairs that are all said one by one."""


@dataclass(frozen=True)
class Findings:
    """Of the runs at hand."""

    records: Sequence[Record]
    groups: Sequence[Group]
    comparisons: Sequence[Comparison]
    """By success where runs were evaluated, else by loss; what is decided first."""
    precision: Sequence[str]
    winner: Winner | None
    fresh: str
    """What the winner did on fresh starts; empty where it was not evaluated there."""

    @property
    def counts(self) -> str:
        """How many runs ended how."""
        states = Counter(record.state for record in self.records)
        total = f"{len(self.records)} run{'s' if len(self.records) > 1 else ''}"
        return f"{total}: {', '.join(f'{n} {state}' for state, n in states.items())}"

    @property
    def headline(self) -> str:
        """The comparisons of the best one with many others in a sentence; empty where each pair was compared."""
        sides = [{comparison.first.label, comparison.second.label} for comparison in self.comparisons]
        shared = set.intersection(*sides) if len(sides) > 1 else set()
        if not shared:
            return ""
        best = shared.pop()
        better = sum(comparison.decided and comparison.first.label == best for comparison in self.comparisons)
        return (
            f"{best} comes first of {len(sides) + 1}: better than {better} of them (corrected p < 0.05), "
            f"undecided against {len(sides) - better}"
        )

    @property
    def told(self) -> list[Comparison]:
        """The comparisons that are said at once: all if they are few, else what is decided."""
        if self.headline:
            return []
        return [found for found in self.comparisons if found.decided or len(self.comparisons) <= MOST_TOLD]

    @property
    def folded(self) -> list[Comparison]:
        """The other ones."""
        told = self.told
        return [found for found in self.comparisons if found not in told]

    @property
    def advice(self) -> str:
        """What the best success rate is not."""
        assert self.winner is not None
        return (
            f"The highest rate is that of {self.winner.group.label}, {self.winner.group.success_rate:.2f}. The highest "
            "of several is too high on average; this line judges the policy on starts that it was not chosen by:"
        )

    @property
    def problems(self) -> list[str]:
        """Why runs did not get to their end, and what could not be read."""
        errors: dict[str, list[str]] = {}
        for record in self.records:
            if record.error:
                errors.setdefault(f"{record.state}: {record.error}", []).append(record.name)
        told = [f"{', '.join(names)} {error}" for error, names in errors.items()]
        return told + [f"{record.name}: {note}" for record in self.records for note in record.notes]

    @property
    def conclusions(self) -> list[str]:
        """What follows from the runs, in words."""
        words = [self.headline] if self.headline else [comparison.sentence for comparison in self.told]
        if self.folded and not self.headline:
            words += [f"{len(self.folded)} more pairs are undecided, the report has each"]
        words += [*self.precision, *([self.fresh] if self.fresh else [])]
        if self.winner is not None and not self.fresh:
            words += [f"{self.advice} {self.winner.command}"]
        return words

    @property
    def sentences(self) -> list[str]:
        """All of it in words, for a terminal."""
        return [*self.conclusions, *self.problems]


def find(records: Sequence[Record], folders: Sequence[Path]) -> Findings:
    """Compare the records of `folders`."""
    groups = make_groups(records)
    precision = precision_verdicts(groups)
    comparisons = compare_success(groups) or ([] if says_all(groups) else compare_loss(groups))
    comparisons.sort(key=lambda comparison: not comparison.decided)
    winner = choose_winner(groups, folders[0]) if len(folders) == 1 else None
    fresh = _fresh(folders[0], winner) if len(folders) == 1 else ""
    return Findings(records, groups, comparisons, precision, winner, fresh)


def _fresh(sweep: Path, winner: Winner | None) -> str:
    folder = sweep / WINNER_FOLDER
    if winner is None or not is_run(folder):
        return ""
    record = read_run(folder, WINNER_FOLDER)
    solved, n = record.outcome
    if record.state != "done" or not n:
        return (
            f"The evaluation of the best on fresh starts: {record.state}{f', {record.error}' if record.error else ''}"
        )
    if not judges(record, winner):
        return (
            f"{folder} evaluates another policy than the newest of the best run, {winner.run.name}: remove it, then "
            f"type {winner.command}"
        )
    low, high = record.interval
    return (
        f"The highest rate was that of {winner.group.label}; from fresh starts, its policy {winner.run.name} solved "
        f"{solved} of {n} episodes: {solved / n:.2f} (95 % interval {low:.2f} to {high:.2f})"
    )
