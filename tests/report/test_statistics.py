"""The tests that decide give the numbers of their textbooks."""

import numpy as np
import pytest

from lerobot.report import statistics


def test_pairs_are_compared_by_mcnemars_exact_test():
    # McNemar's b=2, c=9: 11 coins show 2 heads or fewer in 1 + 11 + 55 of 2048 cases, as often 9 or more.
    assert statistics.paired([1] * 9 + [-1] * 2 + [0] * 33) == pytest.approx(2 * 67 / 2048)
    assert statistics.paired([1] * 6) == pytest.approx(2 / 2**6)  # six heads, or six tails
    assert statistics.paired([0, 0]) == 1.0
    assert statistics.paired([]) == 1.0


def test_pairs_of_one_start_flip_together():
    # Sums of +-3 and +-1: 4, 2, -2, -4, each with chance 1/4; 4 in size are two of them.
    assert statistics.paired([3, 1]) == pytest.approx(0.5)
    assert statistics.paired([3, 3, 3]) == statistics.paired([1, 1, 1])


def test_unmatched_episodes_are_compared_by_fishers_exact_test():
    # Fisher 1935, the lady tasting tea: 3 of 4 against 1 of 4, (1 + 16 + 16 + 1) / 70.
    assert statistics.unpaired((3, 1), (4, 4)) == pytest.approx(34 / 70)
    assert statistics.unpaired((0, 0), (4, 9)) == pytest.approx(1.0)


def test_many_tests_are_corrected_as_holm_does():
    # Holm's procedure on 0.01, 0.04, 0.03, 0.005: 0.005 * 4, 0.01 * 3, 0.03 * 2, then no less than the one before.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.01], tests=45) == pytest.approx([0.45])
    assert statistics.holm([]) == []


@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.776, 4), (2.228, 10), (1.984, 100)])
def test_students_distribution_has_its_table(t, freedom):
    assert statistics.student(t, freedom) == pytest.approx(0.05, abs=5e-5)


def test_means_are_compared_by_welchs_test():
    # scipy.stats.ttest_ind(first, second, equal_var=False) of scipy 1.17 on these numbers: p = 0.021378.
    first = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    second = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
    assert statistics.welch(first, second) == pytest.approx(0.021378, rel=1e-4)
    assert statistics.welch([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert statistics.welch([1.0, 1.0], [2.0, 2.0]) == 0.0


def test_as_many_pairs_as_are_named_find_the_difference_in_four_of_five_cases():
    rng = np.random.default_rng(0)
    n = statistics.pairs_needed(100, 20, 10)  # of 100 pairs, 20 for the one and 10 for the other
    assert n is not None
    draws = rng.multinomial(n, [0.2, 0.1, 0.7], size=300)
    found = np.mean([statistics.paired([1] * better + [-1] * worse) < 0.05 for better, worse, _ in draws])
    assert 0.72 < found < 0.88  # 0.8, less what an exact test is stricter by; 300 draws know it to 0.05
    assert statistics.pairs_needed(100, 7, 7) is None


def test_as_many_trials_as_are_named_find_the_difference_in_four_of_five_cases():
    # Fleiss without his continuity correction: (1.960 * sqrt(2 * 0.7 * 0.3) + 0.842 * sqrt(0.24 + 0.16)) ** 2 / 0.2 ** 2
    # is 81.2.
    assert statistics.trials_needed((0.6, 0.8)) == 82
    assert statistics.trials_needed((0.6, 0.6)) is None


def test_seeds_are_counted_from_the_spread():
    # 2 * ((1.96 + 0.84) * s / gap) ** 2 with gap = s is 15.7.
    assert statistics.seeds_needed(0.1, 0.1) == 16
    assert statistics.seeds_needed(0.0, 0.1) is None
