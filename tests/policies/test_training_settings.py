"""Settings of the optimizer and the schedule that could not train anything are refused by the name they are typed by."""

import math

import pytest

from lerobot.errors import ConfigError
from lerobot.optim import AdamConfig, AdamWConfig, SGDConfig
from lerobot.ranges import BELOW_ONE, COUNT, FINITE, FRACTION, NOT_NEGATIVE, POSITIVE
from lerobot.schedule import ConstantConfig, CosineConfig


@pytest.mark.parametrize(("cls", "name", "values"), [
    (AdamWConfig, "optimizer.lr", [-1.0, math.nan, math.inf]),
    (AdamWConfig, "optimizer.weight_decay", [-1.0]),
    (SGDConfig, "optimizer.grad_clip_norm", [-1.0]),
    (AdamConfig, "optimizer.eps", [0.0, -1.0, math.nan]),
    (AdamWConfig, "optimizer.betas", [[2.0, 3.0], [], [0.9], [0.9, 0.99, 0.999], [0.9, 1.0], [math.nan, 0.9]]),
    (SGDConfig, "optimizer.momentum", [-0.1, 1.0, math.nan]),
    (SGDConfig, "optimizer.dampening", [-0.1, 2.0]),
    (SGDConfig, "optimizer.nesterov", [True]),
    (CosineConfig, "scheduler.final_factor", [-0.1, 1.5, math.nan]),
    (CosineConfig, "scheduler.num_warmup_steps", [-1]),
    (ConstantConfig, "scheduler.num_warmup_steps", [-1]),
])  # fmt: skip
def test_a_senseless_value_is_refused_by_name(cls, name, values):
    for value in values:
        with pytest.raises(ConfigError) as error:
            cls(**{name.partition(".")[2]: value})
        assert str(error.value).startswith(f"{name}={str(value).lower() if value is True else value}: ")


@pytest.mark.parametrize("settings", [{"betas": None}, {"betas": [0.0, 0.999]}, {"lr": 0.0, "weight_decay": 0.0}])
def test_the_ends_of_a_range_are_inside(settings):
    AdamWConfig(**settings)
    assert CosineConfig(final_factor=1.0).factor(5, 10) == 1.0
    SGDConfig(momentum=0.9, nesterov=True)


def test_a_range_says_what_it_takes():
    said = {str(allowed) for allowed in (COUNT, POSITIVE, NOT_NEGATIVE, FRACTION, BELOW_ONE, FINITE)}
    assert said == {
        "a whole number of at least 1", "a finite number above 0", "a finite number of at least 0",
        "a finite number of at least 0 and at most 1", "a finite number of at least 0 and below 1", "a finite number",
    }  # fmt: skip
