"""Normalising: what LeRobot computes, in float32, with nothing divided by zero and nothing made up."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.normalize import Normalizer, exact_constants

DATA = Path(__file__).parents[1] / "data"
STATE = {"x": Feature("STATE", [3])}
LOW_PRECISION = [torch.bfloat16, torch.float16]


def stats_of(values: np.ndarray) -> dict:
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    return {
        "mean": values.mean(0),
        "std": values.std(0),
        "min": values.min(0),
        "max": values.max(0),
        "q01": low,
        "q99": high,
    }


@pytest.mark.parametrize("name", ["act_state", "act_vae_state"])
def test_a_loaded_policy_normalises_as_lerobot_does(name):
    from lerobot.checkpoint.pretrained import load_policy

    folder = DATA / "peer_checkpoints" / name
    golden = load_file(folder / "golden.safetensors")
    normalizer = load_policy(folder / "pretrained_model").normalizer
    for key in ("observation.state", "observation.environment_state", "action"):
        normalised = normalizer.normalize(key, golden[f"raw.{key}"])
        torch.testing.assert_close(normalised, golden[f"pre.{key}"], rtol=0, atol=1e-6)
    # The environment state has no entry in that checkpoint's mapping, so it goes in as it is.
    assert torch.equal(golden["pre.observation.environment_state"], golden["raw.observation.environment_state"])


@pytest.mark.parametrize(("mode", "bounds"), [("MIN_MAX", ("min", "max")), ("QUANTILES", ("q01", "q99"))])
def test_an_interval_becomes_minus_one_to_one(mode, bounds):
    values = np.random.default_rng(0).normal(5.0, [0.1, 1.0, 1000.0], (500, 3))
    stats = {"x": stats_of(values)}
    normalizer = Normalizer(STATE, {"STATE": mode}, stats)
    for bound, expected in zip(bounds, (-1.0, 1.0), strict=True):
        ends = torch.tensor(stats["x"][bound]).float()[None]
        torch.testing.assert_close(normalizer.normalize("x", ends), torch.full((1, 3), expected), rtol=0, atol=1e-5)
    x = torch.tensor(values).float()
    torch.testing.assert_close(normalizer.unnormalize("x", normalizer.normalize("x", x)), x, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("dtype", LOW_PRECISION)
@pytest.mark.parametrize(("mode", "inside"), [("MEAN_STD", 0.0), ("MIN_MAX", -1.0)])
def test_constant_dimensions_become_one_number_and_come_back_exactly_prec_13(mode, inside, dtype):
    # 0.7 is no float32, so mean and deviation of many of them are off by rounding, as LeRobot's are.
    values = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    values[:, 1] = np.float32(0.7)
    stats = stats_of(values)
    stats["mean"][1] += 5e-8
    stats["std"][1] = 3e-9
    normalizer = Normalizer(STATE, {"STATE": mode}, exact_constants({"x": stats}))
    with torch.autocast("cpu", dtype):
        normalised = normalizer.normalize("x", torch.tensor(values))
        # LeRobot maps the lower end of an interval to -1, so an interval without width is -1 there as well.
        assert torch.equal(normalised[:, 1], torch.full((1000,), inside))
        assert normalised.dtype == torch.float32
        assert normalised.isfinite().all()
        anything = torch.randn(50, 3).to(dtype)
        back = normalizer.unnormalize("x", anything)
    assert torch.equal(back[:, 1], torch.full((50,), 0.7))
    assert back.dtype == torch.float32


@pytest.mark.parametrize("dtype", LOW_PRECISION)
@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_a_policy_learns_and_acts_beside_constant_dimensions_prec_13(mode, dtype, push_config, push_stats, batch):
    stats = {key: {name: np.array(v) for name, v in entry.items()} for key, entry in push_stats.items()}
    constant = {"observation.state": 3, "action": 2}
    for key, dimension in constant.items():
        batch[key][..., dimension] = 0.3
        for name in ("mean", "min", "max"):
            stats[key][name][dimension] = np.float32(0.3)
        stats[key]["std"][dimension] = 0.0
    torch.manual_seed(0)
    policy = push_config(normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), mode)).build(stats)
    with torch.autocast("cpu", dtype):
        loss, _ = policy.train().loss(batch)
        action = policy.eval().select_action(batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())
    assert action.isfinite().all()
    assert torch.equal(action[:, 2], torch.full((4,), 0.3))


def test_a_constant_input_that_changes_after_all_does_not_blow_up():
    stats = {"x": {"mean": [1.0] * 3, "std": [0.0] * 3, "min": [1.0] * 3, "max": [1.0] * 3}}
    for mode in ("MEAN_STD", "MIN_MAX"):
        normalised = Normalizer(STATE, {"STATE": mode}, stats).normalize("x", torch.full((1, 3), 1.001))
        assert normalised.abs().max() <= 1


def test_images_may_be_bytes_or_fractions():
    features = {"observation.images.a": Feature("VISUAL", [3, 4, 4])}
    stats = {"observation.images.a": {"mean": [[[0.5]], [[0.4]], [[0.3]]], "std": [[[0.2]], [[0.2]], [[0.1]]]}}
    image = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    before = image.clone()
    for mode in ("MEAN_STD", "IDENTITY"):
        normalizer = Normalizer(features, {"VISUAL": mode}, stats)
        from_bytes = normalizer.normalize("observation.images.a", image)
        assert torch.equal(from_bytes, normalizer.normalize("observation.images.a", image / 255))
        assert torch.equal(image, before)
    assert from_bytes.max() <= 1


@pytest.mark.parametrize("placeholder", [math.inf, math.nan])
def test_placeholder_statistics_are_refused_by_name_ckpt_15(placeholder):
    stats = {"x": {"mean": [0.0, placeholder, 0.0], "std": [1.0, 1.0, 1.0]}}
    with pytest.raises(ConfigError, match=r"'mean' of 'x' is not finite"):
        Normalizer(STATE, {"STATE": "MEAN_STD"}, stats)


@pytest.mark.parametrize(("stats", "message"), [
    ({}, "no 'mean' of 'x'"),
    ({"x": {"mean": [0.0] * 3}}, "no 'std' of 'x'"),
    ({"x": {"mean": [0.0] * 4, "std": [1.0] * 4}}, r"'mean' of 'x' has shape \[4\]"),
])  # fmt: skip
def test_statistics_that_are_missing_or_of_another_robot_are_refused_by_name(stats, message):
    with pytest.raises(ConfigError, match=message):
        Normalizer(STATE, {"STATE": "MEAN_STD"}, stats)
    Normalizer(STATE, {"STATE": "IDENTITY"}, stats)


def test_statistics_of_different_lengths_are_refused_by_name():
    stats = {"x": {"mean": [0.0] * 4, "std": [1.0] * 3, "min": [0.0] * 3, "max": [1.0] * 3}}
    with pytest.raises(ConfigError, match=r"'mean' of 'x' has shape \[4\]"):
        Normalizer(STATE, {"STATE": "MEAN_STD"}, exact_constants(stats))


def test_quantiles_that_would_erase_a_dimension_are_refused(push_stats):
    # LeRobot averages quantiles over episodes; a goal that is constant in each episode has all of them equal.
    goal = {"observation.environment_state": Feature("ENV", [6])}
    with pytest.raises(ConfigError, match=r"type policy.normalization_mapping.ENV=MIN_MAX"):
        Normalizer(goal, {"ENV": "QUANTILES"}, push_stats)


def test_an_unknown_mode_is_refused_with_the_known_ones(push_stats):
    with pytest.raises(ConfigError, match=r"STATE=MEAN_VAR: type one of MEAN_STD, MIN_MAX"):
        Normalizer({"observation.state": Feature("STATE", [4])}, {"STATE": "MEAN_VAR"}, push_stats)


def test_statistics_move_with_the_policy_and_stay_out_of_its_state_dict(make_policy):
    policy = make_policy()
    assert not [key for key in policy.state_dict() if "normalizer" in key]
    assert {buffer.device.type for buffer in policy.to("meta").normalizer.buffers()} == {"meta"}
