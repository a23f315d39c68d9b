from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lerobot.envs import gl
from lerobot.features import ACTION_KEY, ENV_STATE_KEY, STATE_KEY, Feature
from lerobot.policies.base import Policy
from lerobot.policies.config import PolicyConfig

STATES = {STATE_KEY: Feature("STATE", [4]), ENV_STATE_KEY: Feature("ENV", [6])}
ACTION = {ACTION_KEY: Feature("ACTION", [4])}


class FunctionPolicy(Policy):
    """Acts by a function of the observation; it has a dropout to be switched off and one weight."""

    looks = True

    def __init__(self, act, inputs=STATES):
        torch.nn.Module.__init__(self)
        self.config = PolicyConfig(input_features=inputs, output_features=ACTION)
        self.inputs, self.outputs, self.rename_map = inputs, ACTION, {}
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.dropout = torch.nn.Dropout()
        self.act = act
        self.resets = 0

    def select_action(self, observation):
        return self.act(observation)

    def reset(self):
        self.resets += 1


@pytest.fixture
def policy_of():
    return FunctionPolicy


@pytest.fixture
def expert_of():
    """The scripted expert of a task as a policy; its simulator is `RawMetaWorldConfig`."""
    from lerobot.envs.metaworld import expert

    def make(task):
        act = expert(task)
        return FunctionPolicy(lambda o: torch.from_numpy(np.stack([act(raw) for raw in o["observation.raw"].numpy()])))

    return make


@pytest.fixture
def needs_gl():
    works, reason = gl.can_render()
    if not works:
        pytest.skip(f"no GL context: {reason}")


@pytest.fixture
def gl_asked_anew(monkeypatch):
    """What was found out about GL is forgotten before and after the test, which may change the environment."""
    monkeypatch.setenv("MUJOCO_GL", "")
    gl.can_render.cache_clear()
    yield
    gl.can_render.cache_clear()


@pytest.fixture
def no_gl(gl_asked_anew, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "off")


@pytest.fixture
def states():
    return SimpleNamespace(inputs=STATES, outputs=ACTION)
