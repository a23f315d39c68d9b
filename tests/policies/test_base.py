"""What holds for every policy: the queue of actions, and what is said when an observation does not fit."""

import pytest
import torch

from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.base import Policy
from lerobot.policies.config import PolicyConfig


class Counting(Policy):
    """Predicts chunks of five actions numbered through."""

    num_predictions = 0

    def predict_action_chunk(self, observation):
        self.num_predictions += 1
        state = self.normalized_inputs(observation)["observation.state"]
        numbers = torch.arange(5.0) + 10 * self.num_predictions
        return numbers[None, :, None].expand(len(state), -1, -1)


@pytest.fixture
def counting() -> Counting:
    features = {"observation.state": Feature("STATE", [2])}, {"action": Feature("ACTION", [1])}
    return Counting(PolicyConfig(input_features=features[0], output_features=features[1], n_action_steps=3), {})


def test_a_chunk_is_executed_up_to_n_action_steps_before_the_next_is_predicted(counting):
    observation = {"observation.state": torch.zeros(4, 2)}
    actions = torch.stack([counting.select_action(observation) for _ in range(7)])
    assert actions.shape == (7, 4, 1)
    assert actions[:, 0, 0].tolist() == [10, 11, 12, 20, 21, 22, 30]
    assert counting.num_predictions == 3


def test_an_observation_is_looked_at_only_where_a_chunk_is_predicted(counting):
    observation = {"observation.state": torch.zeros(1, 2)}
    looked = []
    for _ in range(7):
        looked.append(counting.looks)
        counting.select_action(observation)
    assert looked == [True, False, False, True, False, False, True]


def test_reset_forgets_the_rest_of_a_chunk(counting):
    observation = {"observation.state": torch.zeros(1, 2)}
    counting.select_action(observation)
    counting.reset()
    assert counting.select_action(observation).item() == 20


def test_a_missing_observation_is_named_with_what_is_there(counting):
    with pytest.raises(
        ConfigError, match=r"reads 'observation.state' and the observation has observation.qpos: .*rename_map"
    ):
        counting.select_action({"observation.qpos": torch.zeros(1, 2), "action": torch.zeros(1, 1)})


def test_a_rename_map_supplies_what_is_missing(counting):
    counting.rename_map = {"observation.qpos": "observation.state"}
    assert counting.select_action({"observation.qpos": torch.zeros(1, 2)}).item() == 10


@pytest.mark.parametrize("shape", [(1, 3), (2,), (1, 5, 2)])
def test_an_observation_of_another_shape_is_refused(counting, shape):
    with pytest.raises(ConfigError, match=r"'observation.state' has shape .*reads \(batch, 2\)"):
        counting.select_action({"observation.state": torch.zeros(*shape)})


def test_features_of_one_number_may_come_as_scalars(counting):
    counting.inputs = {"observation.state": Feature("STATE", [1])}
    assert counting.select_action({"observation.state": torch.zeros(3)}).shape == (3, 1)


def test_a_policy_without_actions_is_refused():
    with pytest.raises(ConfigError, match=r"name the dataset's action feature 'action'"):
        Counting(PolicyConfig(output_features={"actions": Feature("ACTION", [1])}), {})
