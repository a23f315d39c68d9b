"""Small policies and real batches, shared by the tests of the policies."""

import json
from pathlib import Path

import pytest
import torch

from lerobot.features import policy_features
from lerobot.policies.config import ACTConfig

DATA = Path(__file__).parents[1] / "data"
SMALL = {"chunk_size": 8, "n_action_steps": 4, "dim_model": 32, "n_heads": 4, "dim_feedforward": 64}


@pytest.fixture(scope="session")
def push_stats() -> dict:
    """The statistics of metaworld_push_state, whose last environment number (the goal's height) is constant."""
    return json.loads((DATA / "metaworld_push_state/meta/stats.json").read_text())


@pytest.fixture(scope="session")
def push_config():
    """Makes a small ACTConfig for metaworld_push_state, or another dataset; settings as keywords."""

    def make(dataset: str = "metaworld_push_state", **settings) -> ACTConfig:
        info = json.loads((DATA / dataset / "meta/info.json").read_text())
        inputs, outputs = policy_features(info["features"])
        small = SMALL | {"n_encoder_layers": 1, "n_vae_encoder_layers": 1}
        return ACTConfig(input_features=inputs, output_features=outputs, **(small | settings))

    return make


@pytest.fixture(scope="session")
def make_policy(push_config, push_stats):
    """Makes a small ACT policy with the statistics of metaworld_push_state; the same weights every time."""

    def make(**settings):
        torch.manual_seed(0)
        return push_config(**settings).build(push_stats)

    return make


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Four frames of metaworld_push_state with chunks of 8 actions, as LeRobot's loader gave them."""
    from safetensors.torch import load_file

    golden = load_file(DATA / "peer_checkpoints/act_state/golden.safetensors")
    raw = {key.removeprefix("raw."): value for key, value in golden.items() if key.startswith("raw.")}
    raw["action"], raw["action_is_pad"] = raw["action"][:, -8:].clone(), raw["action_is_pad"][:, -8:].clone()
    assert raw["action_is_pad"].any()
    return raw
