"""Which of two groups is better, or how much more it takes to tell."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from lerobot.report import statistics
from lerobot.report.groups import Group

MOST_IN_PAIRS = 8
"""Groups up to which every pair is compared; beyond it, the best with each other one."""
MOST_TOLD = 10_000


@dataclass(frozen=True)
class Comparison:
    """Two groups beside each other."""

    first: Group
    second: Group
    p: float
    """Of the one test; NaN where none could be made."""
    decided: bool
    sentence: str


@dataclass(frozen=True)
class Pairs:
    """Episodes of two groups that started alike: same training seed, same task, same episode seed."""

    better: int
    """Pairs that only the first solved."""
    worse: int
    n: int
    by_start: tuple[int, ...]
    """For each start, how many more of its pairs the first solved."""
    rates: tuple[float, float]


def compare_success(groups: Sequence[Group]) -> list[Comparison]:
    """Pairs of groups that were evaluated, the better one first; p values corrected for all pairs there are."""
    judged = sorted((group for group in groups if group.outcome[1]), key=lambda group: -group.success_rate)
    couples = _couples(judged)
    tests = len(judged) * (len(judged) - 1) // 2
    matched = [matched_episodes(*couple) for couple in couples]
    values = [_success_p(*couple, pairs) for couple, pairs in zip(couples, matched, strict=True)]
    corrected = statistics.holm(values, tests)
    alpha = statistics.ALPHA / max(1, tests)
    rows = zip(couples, matched, values, corrected, strict=True)
    return [_success_verdict(couple, pairs, (p, adjusted), alpha) for couple, pairs, p, adjusted in rows]


def compare_loss(groups: Sequence[Group]) -> list[Comparison]:
    """Pairs of groups by the final training loss, the lower one first, judged by the spread of their seeds."""
    judged = sorted((group for group in groups if group.losses), key=lambda group: fmean(group.losses))
    if len(judged) > 2 and all(len(group.losses) == 1 for group in judged):
        return [_in_a_row(judged)]
    couples = _couples(judged)
    tests = len(judged) * (len(judged) - 1) // 2
    values = [_loss_p(*couple) for couple in couples]
    known = [p for p in values if math.isfinite(p)]
    corrected = iter(statistics.holm(known, tests - (len(values) - len(known))) if known else [])
    alpha = statistics.ALPHA / max(1, tests)
    return [
        _loss_verdict(couple, p, next(corrected) if math.isfinite(p) else math.nan, alpha)
        for couple, p in zip(couples, values, strict=True)
    ]


def matched_episodes(first: Group, second: Group) -> Pairs | None:
    """The episodes that both groups had; None where that is less than half of the smaller group's."""
    left, right = _episodes(first), _episodes(second)
    common = sorted(left.keys() & right.keys(), key=str)
    if not common or 2 * len(common) < min(first.outcome[1], second.outcome[1]):
        return None
    starts: dict[tuple[str, int], int] = defaultdict(int)
    for key in common:
        starts[key[1:]] += left[key] - right[key]
    better = sum(left[key] > right[key] for key in common)
    worse = sum(left[key] < right[key] for key in common)
    rates = fmean(left[key] for key in common), fmean(right[key] for key in common)
    return Pairs(better, worse, len(common), tuple(starts.values()), rates)


def _episodes(group: Group) -> dict[tuple[int | None, str, int], bool]:
    return {(run.seed, row.task, row.seed): row.success for run in group.finished for row in run.episodes}


def _couples(groups: list[Group]) -> list[tuple[Group, Group]]:
    if len(groups) <= MOST_IN_PAIRS:
        return list(combinations(groups, 2))
    return [(groups[0], other) for other in groups[1:]]


def _success_p(first: Group, second: Group, pairs: Pairs | None) -> float:
    if pairs is not None:
        return statistics.paired(pairs.by_start)
    return statistics.unpaired((first.outcome[0], second.outcome[0]), (first.outcome[1], second.outcome[1]))


def _success_verdict(
    couple: tuple[Group, Group], pairs: Pairs | None, p: tuple[float, float], alpha: float
) -> Comparison:
    first, second = couple
    rates = (first.success_rate, second.success_rate) if pairs is None else pairs.rates
    if pairs is None:
        trials = min(first.outcome[1], second.outcome[1])
        said = f"not paired, the starts differ, {first.outcome[1]} and {second.outcome[1]} episodes"
        needed = statistics.trials_needed(rates, alpha)
    else:
        trials, said = pairs.n, f"paired over {pairs.n} episode{'' if pairs.n == 1 else 's'}"
        needed = statistics.pairs_needed(pairs.n, pairs.better, pairs.worse, alpha)
    if rates[1] > rates[0]:  # among the episodes that both had
        first, second, rates = second, first, (rates[1], rates[0])
    numbers = f"success {rates[0]:.2f} against {rates[1]:.2f}"
    if p[1] < statistics.ALPHA:
        sentence = (
            f"{first.label} is better than {second.label}: {numbers} (p={p[1]:.2g}, {said}{_in_seeds(first, second)})"
        )
        return Comparison(first, second, p[0], True, sentence)
    if needed is None:
        sentence = f"{first.label} and {second.label}: no difference seen, {numbers} ({said})"
    else:
        more = _about(max(1, needed - trials), "episode")
        sentence = f"{first.label} and {second.label}: undecided, {more} each; {numbers} (p={p[1]:.2g}, {said})"
    return Comparison(first, second, p[0], False, sentence)


def _in_seeds(first: Group, second: Group) -> str:
    """In how many training seeds the better one was better: the test is about these policies, not about new seeds."""
    others = {run.seed: run.success_rate for run in second.finished}
    both = [(run.success_rate, others[run.seed]) for run in first.finished if run.seed in others]
    return f"; better in {sum(a > b for a, b in both)} of {len(both)} seeds" if len(both) > 1 else ""


def _loss_p(first: Group, second: Group) -> float:
    if min(len(first.losses), len(second.losses)) < 2:
        return math.nan
    return statistics.welch(first.losses, second.losses)


def _in_a_row(judged: Sequence[Group]) -> Comparison:
    """What can be said of groups of one seed each: their order."""
    best, *others = judged
    told = [f"{group.label} {group.losses[0]:.4g}" for group in others[:MOST_IN_PAIRS]]
    more = len(others) - len(told)
    sentence = (
        f"{best.label} has the lowest final loss, {best.losses[0]:.4g}; then {', '.join(told)}"
        f"{f' and {more} more' if more else ''}: one seed each, no spread known, add seed=0,1,2"
    )
    return Comparison(best, others[0], math.nan, False, sentence)


def _loss_verdict(couple: tuple[Group, Group], p: float, corrected: float, alpha: float) -> Comparison:
    first, second = couple
    means = fmean(first.losses), fmean(second.losses)
    gap = means[1] - means[0]
    numbers = f"final loss {means[0]:.4g} against {means[1]:.4g}"
    names = f"{first.label} and {second.label}"
    if math.isnan(p):
        apart = f", {percent(gap, means[0])} apart" if means[0] else ""
        return Comparison(first, second, p, False, f"{names}: one seed, no spread known; {numbers}{apart}")
    seeds = f"p={corrected:.2g}, {len(first.losses)} and {len(second.losses)} seeds"
    deviation = statistics.spread(first.losses, second.losses)
    if corrected < statistics.ALPHA:
        return Comparison(first, second, p, True, f"{first.label} is lower than {second.label}: {numbers} ({seeds})")
    if gap <= deviation:
        return Comparison(
            first, second, p, False, f"{names}: within the spread of seeds ({deviation:.2g}), {numbers} ({seeds})"
        )
    needed = statistics.seeds_needed(gap, deviation, alpha)
    more = _about(max(1, (needed or 0) - min(len(first.losses), len(second.losses))), "seed")
    return Comparison(first, second, p, False, f"{names}: undecided, {more} each; {numbers} ({seeds})")


def percent(difference: float, of: float) -> str:
    """A difference in percent, with its sign if it is negative."""
    return f"{100 * difference / abs(of):.2g} %"


def _about(n: int, thing: str) -> str:
    if n > MOST_TOLD:
        return f"more than {MOST_TOLD:,} more {thing}s"
    rounded = n if n < 100 else round(n, 2 - len(str(n)))
    return f"about {rounded:,} more {thing}{'' if rounded == 1 else 's'}"
