"""The baselines are the best of their kind on the demonstrations, and run like any policy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lerobot.data.reader import LeRobotDataset
from lerobot.errors import ConfigError
from lerobot.policies.baselines import LinearPolicy, ReplayPolicy

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def push() -> LeRobotDataset:
    return LeRobotDataset(DATA / "metaworld_push_state")


@pytest.fixture(scope="module")
def frames(push) -> dict[str, torch.Tensor]:
    return push.__getitems__(range(len(push)))


def test_replay_is_the_mean_demonstration_then_its_last_action(push, frames):
    policy = ReplayPolicy.fit(push)
    observation = {"observation.state": frames["observation.state"][:3]}
    longest = int(frames["frame_index"].max()) + 1
    actions = torch.stack([policy.select_action(observation) for _ in range(longest + 5)])
    assert actions.shape == (longest + 5, 3, 4)
    for step in (0, 40, longest - 1):
        expected = frames["action"][frames["frame_index"] == step].mean(0)
        torch.testing.assert_close(actions[step, 0], expected)
    assert torch.equal(actions[-1], actions[longest - 1])
    policy.reset()
    assert torch.equal(policy.select_action(observation), actions[0])
    assert torch.equal(policy.predict_action_chunk(observation)[:, :5], actions[1:6].transpose(0, 1))


def test_linear_is_the_least_squares_fit(push, frames):
    policy = LinearPolicy.fit(push)
    predicted = policy.predict_action_chunk(frames)[:, 0].double().numpy()
    x = torch.cat([frames["observation.state"], frames["observation.environment_state"]], dim=1).double().numpy()
    # Without normalising, in float64: scaling the inputs changes the weights and not the fit.
    best = (
        np.c_[x, np.ones(len(x))] @ np.linalg.lstsq(np.c_[x, np.ones(len(x))], frames["action"].numpy(), rcond=None)[0]
    )
    np.testing.assert_allclose(predicted, best, atol=1e-4)
    residual = np.square(predicted - frames["action"].numpy()).mean()
    assert residual < 0.7 * frames["action"].var(0, correction=0).mean()


def test_linear_gives_a_constant_dimension_no_say(push, frames):
    policy = LinearPolicy.fit(push)
    observation = {key: value[:1].clone() for key, value in frames.items() if key.startswith("observation")}
    before = policy.select_action(observation)
    observation["observation.environment_state"][:, 5] += 1.0  # the goal's height: the same in every demonstration
    assert torch.equal(policy.select_action(observation), before)


@pytest.mark.parametrize("kind", [LinearPolicy, ReplayPolicy])
def test_a_baseline_runs_where_a_policy_runs(push, frames, kind):
    policy = kind.fit(push).eval()
    assert policy.device.type == "cpu"
    assert set(policy.inputs) == {"observation.state", "observation.environment_state"}
    observation = {key: frames[key][:5] for key in policy.inputs}
    action = policy.select_action(observation)
    assert action.shape == (5, 4)
    assert action.dtype == torch.float32
    assert not action.requires_grad
    assert policy.predict_action_chunk(observation).shape[::2] == (5, 4)


def test_a_baseline_is_fitted_to_the_chosen_episodes(push):
    some = LeRobotDataset(DATA / "metaworld_push_state", episodes=[3])
    only = some.__getitems__(range(len(some)))["action"]
    torch.testing.assert_close(ReplayPolicy.fit(some).actions, only)


def test_cameras_are_left_out_and_alone_they_are_refused():
    keys = ["observation.images.corner2", "action", "frame_index"]
    dataset = LeRobotDataset(
        DATA / "metaworld_push_cam", episodes=[0], keys=["observation.state", "action", "frame_index"]
    )
    assert set(LinearPolicy.fit(dataset).inputs) == {"observation.state"}
    blind = LeRobotDataset(DATA / "metaworld_push_cam", episodes=[0], keys=keys)
    del blind.meta.info["features"]["observation.state"]
    with pytest.raises(ConfigError, match="leave this baseline out"):
        LinearPolicy.fit(blind)
