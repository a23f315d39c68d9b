"""What differences are worth: exact tests, a correction for many of them, and how many trials a decision takes."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

import numpy as np

ALPHA = 0.05
POWER = 0.8


def paired(differences: Sequence[int]) -> float:
    """Two-sided p that pairs differ by chance alone: every sign of every difference is as likely as the other.

    Differences of -1, 0 and 1 give McNemar's exact test (McNemar 1947); larger ones are several pairs that share a
    start and so flip together (Fisher 1935, The Design of Experiments, section 21).
    """
    total = sum(map(abs, differences))
    chances = np.zeros(2 * total + 1)  # of each sum from -total to total
    chances[total] = 1.0
    for size in map(abs, differences):
        if size:
            chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2  # the ends are zero until they are reached
    sums = np.arange(-total, total + 1)
    return min(1.0, float(chances[np.abs(sums) >= abs(sum(differences))].sum()))


def unpaired(successes: tuple[int, int], n: tuple[int, int]) -> float:
    """Two-sided p of Fisher's exact test: the tables that are no likelier than the one seen (Fisher 1935)."""
    solved, trials = sum(successes), sum(n)
    ways = [
        math.comb(n[0], first) * math.comb(n[1], solved - first)
        for first in range(max(0, solved - n[1]), min(n[0], solved) + 1)
    ]
    seen = math.comb(n[0], successes[0]) * math.comb(n[1], successes[1])
    return sum(way for way in ways if way <= seen) / math.comb(trials, solved)


def holm(values: Sequence[float], tests: int | None = None) -> list[float]:
    """The p values, each raised so that 5 % bounds the chance of one false finding among all (Holm 1979).

    tests: how many were open, where `values` are the smallest or the chosen ones of more.
    """
    open_tests = tests or len(values)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (open_tests - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def pairs_needed(n: int, better: int, worse: int, alpha: float = ALPHA) -> int | None:
    """Pairs at which a paired test finds what `n` pairs show in 80 of 100 cases (Connor 1987); None without difference.

    better, worse: pairs in which only the one or only the other succeeded.
    """
    share, gap = (better + worse) / n, abs(better - worse) / n
    if gap == 0:
        return None
    chance, reach = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
    return math.ceil((chance * math.sqrt(share) + reach * math.sqrt(share - gap**2)) ** 2 / gap**2)


def trials_needed(rates: tuple[float, float], alpha: float = ALPHA) -> int | None:
    """Trials of each at which an unpaired test finds the difference in 80 of 100 cases (Fleiss 1981, chapter 3)."""
    gap, middle = abs(rates[0] - rates[1]), fmean(rates)
    if gap == 0:
        return None
    chance, reach = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
    spread = math.sqrt(sum(rate * (1 - rate) for rate in rates))
    return math.ceil((chance * math.sqrt(2 * middle * (1 - middle)) + reach * spread) ** 2 / gap**2)


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p that two means are equal, spreads being what they are (Welch 1947); two values of each at least."""
    parts = [stdev(values) ** 2 / len(values) for values in (first, second)]
    gap = abs(fmean(first) - fmean(second))
    if sum(parts) == 0:
        return 1.0 if gap == 0 else 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    return student(gap / math.sqrt(sum(parts)), freedom)


def one_mean(differences: Sequence[float]) -> float:
    """Two-sided p that the mean of paired differences is zero (Student 1908); two of them at least."""
    gap, deviation = abs(fmean(differences)), stdev(differences)
    if deviation == 0:
        return 1.0 if gap == 0 else 0.0
    return student(gap / deviation * math.sqrt(len(differences)), len(differences) - 1)


def student(t: float, freedom: float) -> float:
    """Chance of a larger |t|. With t = sqrt(freedom) tan(x), Student's density is cos(x) ** (freedom - 1)."""

    def area(end: float) -> float:
        x = np.linspace(0.0, end, 4001)
        return float(np.trapezoid(np.cos(x) ** (freedom - 1), x))

    return max(0.0, 1 - area(math.atan(t / math.sqrt(freedom))) / area(math.pi / 2))


def spread(first: Sequence[float], second: Sequence[float]) -> float:
    """The deviation over seeds, of both together; two values of each at least."""
    freedom = len(first) + len(second) - 2
    squares = sum((len(values) - 1) * stdev(values) ** 2 for values in (first, second))
    return math.sqrt(squares / freedom)


def seeds_needed(gap: float, deviation: float, alpha: float = ALPHA) -> int | None:
    """Seeds of each at which a difference of means is found in 80 of 100 cases; None without difference."""
    if gap == 0:
        return None
    reach = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(POWER)
    return max(2, math.ceil(2 * (reach * deviation / gap) ** 2))
