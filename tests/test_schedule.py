"""When things happen, and the learning rate as a function of the step."""

import math

import pytest

from lerobot.schedule import ConstantConfig, CosineConfig, due


@pytest.mark.parametrize(
    ("every", "steps"), [(3, [3, 6, 9, 10]), (1, list(range(1, 11))), (0, [10]), (-1, [10]), (20, [10]), (10, [10])]
)
def test_what_is_due_happens_in_its_period_and_after_the_last_update(every, steps):
    assert [step for step in range(1, 11) if due(step, every, step == 10)] == steps


def test_a_warm_up_rises_linearly_to_the_full_rate_and_stays():
    schedule = ConstantConfig(num_warmup_steps=4)

    assert [schedule.factor(step, 10) for step in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_a_cosine_starts_full_is_half_in_the_middle_and_ends_near_its_floor():
    schedule = CosineConfig(final_factor=0.1)

    assert schedule.factor(1, 100) == 1.0
    assert schedule.factor(51, 100) == pytest.approx(0.55)  # halfway between 1 and 0.1
    assert schedule.factor(100, 100) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.99)))
