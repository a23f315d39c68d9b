from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lerobot.data.reader import LeRobotDataset
from lerobot.envs.metaworld import expert
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.features import ENV_STATE_KEY, STATE_KEY, Feature

DATA = Path(__file__).parents[1] / "data"
FIRST_SEED = 1000
"""Episode i of the recordings in tests/data starts from 1000 + i."""
PICTURE = Feature("VISUAL", [3, 96, 96])


def recorded(name):
    table = pq.read_table(DATA / name / "data/chunk-000/file-000.parquet").to_pydict()
    columns = {key: np.array(values) for key, values in table.items()}
    episodes = columns["episode_index"]
    return [{key: values[episodes == i] for key, values in columns.items()} for i in np.unique(episodes)]


@pytest.fixture(scope="module")
def push():
    states = {STATE_KEY: Feature("STATE", [4]), ENV_STATE_KEY: Feature("ENV", [6])}
    env = MetaWorldConfig().make("push-v3", states)
    yield env
    env.close()


@pytest.mark.parametrize("task", ["push-v3", "drawer-open-v3", "pick-place-wall-v3"])
def test_where_an_episode_starts_and_goes_depends_on_its_seed_alone(task, states):
    fresh, used = (MetaWorldConfig().make(task, states.inputs) for _ in range(2))
    act = expert(task)
    used.reset(seed=7)
    for _ in range(100):
        used.step(act(used.raw))

    def trajectory(env):
        env.reset(seed=3)
        return [env.raw.copy()] + [env.step(action)[0][ENV_STATE_KEY] for action in actions]

    actions = np.random.default_rng(0).uniform(-1, 1, (30, 4))
    for one, other in zip(trajectory(fresh), trajectory(used), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(trajectory(fresh)[0], (fresh.reset(seed=4), fresh.raw)[1])


@pytest.mark.parametrize(
    ("name", "task"), [("metaworld_push_state", "push-v3"), ("metaworld_drawer_open_state", "drawer-open-v3")]
)
def test_episodes_start_where_those_of_lerobot_start(name, task, states):
    """The recordings came from metaworld 3.0.0 on MuJoCo 3.16: the height differs by half a millimetre on 3.3."""
    env = MetaWorldConfig().make(task, states.inputs)
    for i, episode in enumerate(recorded(name)):
        observation, _ = env.reset(seed=FIRST_SEED + i)
        for key in states.inputs:
            np.testing.assert_allclose(observation[key], episode[key][0], atol=1e-3)
            assert observation[key].dtype == np.float32


def test_the_expert_answers_recorded_observations_with_the_recorded_actions():
    act = expert("push-v3")
    for episode in recorded("metaworld_push_state")[:5]:
        for state, env_state, action in zip(episode[STATE_KEY], episode[ENV_STATE_KEY], episode["action"], strict=True):
            raw = np.zeros(39)
            raw[:4], raw[4:7], raw[36:] = state, env_state[:3], env_state[3:]
            np.testing.assert_allclose(act(raw), action, atol=1e-5)


def test_recorded_actions_solve_the_recorded_starts(push):
    for i, episode in enumerate(recorded("metaworld_push_state")[:5]):
        push.reset(seed=FIRST_SEED + i)
        assert any(push.step(action)[4]["is_success"] for action in episode["action"])


def test_an_episode_ends_at_its_first_success(push):
    act = expert("push-v3")
    push.reset(seed=0)
    steps = [push.step(act(push.raw)) for _ in range(100)]
    first = next(i for i, (*_, info) in enumerate(steps) if info["is_success"])
    assert [terminated for _, _, terminated, _, _ in steps[: first + 1]] == [False] * first + [True]


def test_an_episode_is_cut_at_its_length(states):
    env = MetaWorldConfig(episode_length=5).make("push-v3", states.inputs)
    env.reset(seed=0)
    assert [env.step(np.zeros(4))[3] for _ in range(5)] == [False] * 4 + [True]
    env.reset(seed=0)
    assert not env.step(np.zeros(4))[3]


def test_an_episode_may_be_longer_than_the_librarys_own_limit(states):
    env = MetaWorldConfig(episode_length=502).make("drawer-open-v3", states.inputs)
    env.reset(seed=0)
    for _ in range(502):
        *_, truncated, _ = env.step(np.zeros(4))
    assert truncated


def test_actions_beyond_the_range_are_clipped(push):
    push.reset(seed=0)
    beyond, *_ = push.step(np.array([5.0, -5.0, 5.0, 5.0]))
    push.reset(seed=0)
    within, *_ = push.step(np.array([1.0, -1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(beyond[STATE_KEY], within[STATE_KEY])


@pytest.mark.parametrize(
    ("name", "task", "camera"),
    [
        ("metaworld_push_cam", "push-v3", "corner2"),
        ("metaworld_multi2_cam2", "drawer-open-v3", "corner2"),
        ("metaworld_multi2_cam2", "drawer-open-v3", "gripperPOV"),
    ],
)
def test_a_camera_shows_what_lerobot_recorded(needs_gl, name, task, camera):
    """The same start, the same way up. Its frames went through AV1: 3 to 4 grey levels off; upside down it is 40."""
    key = f"observation.images.{camera}"
    there = LeRobotDataset(DATA / name)[0][key].permute(1, 2, 0).numpy() * 255
    env = MetaWorldConfig().make(task, {key: PICTURE})
    here = env.reset(seed=FIRST_SEED)[0][key]
    env.close()
    assert here.shape == (96, 96, 3)
    assert here.dtype == np.uint8
    assert np.abs(here - there).mean() < 6
    assert np.abs(here[::-1] - there).mean() > 20


def test_several_simulators_and_sizes_draw_in_one_process(needs_gl):
    cameras = {"observation.images.corner2": PICTURE, "observation.images.topview": Feature("VISUAL", [3, 64, 48])}
    envs = [MetaWorldConfig().make("push-v3", cameras, render=True) for _ in range(3)]
    first = [env.reset(seed=5)[0] for env in envs]
    envs[1].close()
    again, _ = envs[0].reset(seed=5)
    for key, shape in (("observation.images.corner2", (96, 96, 3)), ("observation.images.topview", (64, 48, 3))):
        assert first[0][key].shape == shape
        assert first[0][key].std() > 10
        for picture in (first[1][key], first[2][key], again[key]):
            np.testing.assert_array_equal(first[0][key], picture)
    assert envs[2].render().shape == (240, 240, 3)
    envs[0].close()
    envs[2].close()
