import subprocess
import sys

import pytest

from lerobot.envs import metaworld_tasks
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, ENV_STATE_KEY, STATE_KEY, Feature

STATE = {STATE_KEY: Feature("STATE", [4])}
ENV_STATE = {ENV_STATE_KEY: Feature("ENV", [6])}
CAMERA = {"observation.images.corner2": Feature("VISUAL", [3, 96, 96])}
ACTION = {ACTION_KEY: Feature("ACTION", [4])}


def test_reading_the_config_loads_neither_torch_nor_a_simulator():
    code = "import sys, lerobot.envs.metaworld_config, lerobot.envs.pusht_config; print({'torch', 'mujoco', 'metaworld', 'gymnasium'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("typed", "tasks"),
    [
        ("push-v3", ["push-v3"]),
        ("metaworld-push-v3", ["push-v3"]),
        ("push-v3, reach-v3", ["push-v3", "reach-v3"]),
        (["push-v3", "reach-v3"], ["push-v3", "reach-v3"]),
        ("hard", ["assembly-v3", "hand-insert-v3", "pick-out-of-hole-v3", "pick-place-v3", "push-back-v3", "push-v3"]),
    ],
)
def test_tasks_are_typed_as_a_name_several_or_a_difficulty(typed, tasks):
    assert MetaWorldConfig(task=typed).tasks == tasks


def test_the_difficulties_hold_every_task_once():
    tasks = MetaWorldConfig(task="easy,medium,hard,very_hard").tasks
    assert sorted(tasks) == sorted(metaworld_tasks.TASKS)
    assert len(tasks) == 50


def test_the_tasks_are_those_of_the_library():
    env_dict = pytest.importorskip("metaworld.env_dict")
    assert set(env_dict.ENV_CLS_MAP) == set(metaworld_tasks.TASKS)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ({"task": "push-v2"}, r"type env\.task=push-v3"),
        ({"task": "draweropen"}, r"type env\.task=drawer-open-v3"),
        ({"task": "push-v3,raech-v3"}, r"type env\.task=reach-v3"),
        ({"task": []}, r"type env\.task=push-v3"),
        ({"fps": 30}, r"leave env\.fps out"),
        ({"obs_type": "pixel"}, "type state, pixels or pixels_agent_pos"),
        ({"camera_name": "corner22"}, r"type env\.camera_name=corner2"),
        ({"episode_length": 0}, "at least 1"),
    ],
)
def test_a_wrong_word_is_answered_with_what_to_type(typed, answer):
    with pytest.raises(ConfigError, match=answer):
        MetaWorldConfig(**typed)


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        ({"observation.images.top": Feature("VISUAL", [3, 96, 96])}, r"rename_map=\{observation\.images\.corner2: "),
        ({"observation.images.corner2": Feature("VISUAL", [1, 96, 96])}, r"\[3, h, w\]"),
        ({STATE_KEY: Feature("STATE", [14])}, r"has shape \[14\] and MetaWorld's has \[4\]"),
        ({ENV_STATE_KEY: Feature("ENV", [16])}, r"has shape \[16\] and MetaWorld's has \[6\]"),
        ({"observation.effort": Feature("STATE", [4])}, r"add rename_map=\{<one of these>: observation\.effort\}"),
    ],
)
def test_what_metaworld_does_not_yield_is_refused(inputs, answer):
    with pytest.raises(ConfigError, match=answer):
        MetaWorldConfig().check(inputs, ACTION)


def test_an_action_of_another_robot_is_refused():
    with pytest.raises(ConfigError, match=r"action has shape \[7\]"):
        MetaWorldConfig().check(STATE, {ACTION_KEY: Feature("ACTION", [7])})


@pytest.mark.parametrize(
    ("obs_type", "inputs"),
    [
        ("state", CAMERA),
        ("state", {**STATE, **CAMERA}),
        ("pixels", STATE),
        ("pixels", {**STATE, **CAMERA}),
        ("pixels_agent_pos", STATE),
        ("pixels_agent_pos", CAMERA),
        ("pixels_agent_pos", {**STATE, **ENV_STATE, **CAMERA}),
    ],
)
def test_a_typed_obs_type_that_is_not_what_the_policy_reads_is_refused(obs_type, inputs):
    with pytest.raises(ConfigError, match=rf"env\.obs_type={obs_type} .* leave env\.obs_type out"):
        MetaWorldConfig(obs_type=obs_type).check(inputs, ACTION)


def test_a_typed_obs_type_that_agrees_is_accepted(needs_gl):
    MetaWorldConfig(obs_type="state").check({**STATE, **ENV_STATE}, ACTION)
    MetaWorldConfig(obs_type="pixels").check(CAMERA, ACTION)
    MetaWorldConfig(obs_type="pixels_agent_pos").check({**STATE, **CAMERA}, ACTION)


def test_without_the_simulator_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("lerobot.envs.metaworld_config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lerobot-runner\[metaworld\]'"):
        MetaWorldConfig().check(STATE, ACTION)


def test_a_picture_without_a_camera_name_comes_from_camera_name():
    config = MetaWorldConfig(camera_name="topview")
    assert config.camera_of("observation.image") == "topview"
    assert config.camera_of("observation.images.corner") == "corner"
