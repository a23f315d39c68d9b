import json
import sys

import numpy as np
import pytest
import torch

import lerobot
from lerobot.data.writer import DatasetWriter
from lerobot.envs.pusht_config import PushTConfig
from lerobot.envs.rollout import evaluate
from lerobot.errors import ConfigError
from lerobot.features import ACTION_KEY, ENV_STATE_KEY, STATE_KEY, Feature

IMAGE_KEY = "observation.image"
STATE = {STATE_KEY: Feature("STATE", [2])}
ENV_STATE = {ENV_STATE_KEY: Feature("ENV", [16])}
IMAGE = {IMAGE_KEY: Feature("VISUAL", [3, 96, 96])}
FULL_STATE = {STATE_KEY: Feature("STATE", [5])}
ACTION = {ACTION_KEY: Feature("ACTION", [2])}
EVERYTHING = {**STATE, **ENV_STATE, **IMAGE}


def make(inputs=EVERYTHING, render=False, **typed):
    config = PushTConfig(**typed)
    config.check(inputs, ACTION)
    return config.make("PushT-v0", inputs, render)


def actions(n, seed=0):
    return np.random.default_rng(seed).uniform(0, 512, (n, 2)).astype(np.float32)


def test_an_episode_goes_as_in_lerobot():
    """Of LeRobot 0.6.1's `make_env(PushtEnv())` with gym-pusht 0.1.8: seed 0, the same sixty actions."""
    env = make()
    first, _ = env.reset(seed=0)
    steps = [env.step(action) for action in actions(60)]

    np.testing.assert_array_equal(first[STATE_KEY], [390.0, 304.0])
    np.testing.assert_allclose(first[ENV_STATE_KEY][:4], [299.565186, 283.793579, 183.519928, 253.240387], atol=1e-3)
    np.testing.assert_allclose(first[IMAGE_KEY].mean((0, 1)) / 255, [0.972448, 0.981473, 0.978551], atol=1e-3)
    rewards = [reward for _, reward, *_ in steps]
    assert rewards[:36:12] == pytest.approx([0.279772, 0.317091, 0.04394], abs=1e-3)
    assert sum(rewards) == pytest.approx(7.751486, abs=1e-2)


def test_where_an_episode_starts_and_goes_depends_on_its_seed_alone():
    fresh, used = make(), make()
    used.reset(seed=7)
    for action in actions(50, seed=1):
        used.step(action)

    def trajectory(env, seed):
        return [env.reset(seed=seed)[0]] + [env.step(action)[0] for action in actions(30)]

    for one, other in zip(trajectory(fresh, 3), trajectory(used, 3), strict=True):
        for key in EVERYTHING:
            np.testing.assert_array_equal(one[key], other[key])
    assert not np.array_equal(fresh.reset(seed=3)[0][STATE_KEY], used.reset(seed=4)[0][STATE_KEY])


def test_an_observation_holds_what_the_policy_reads():
    env = make({**FULL_STATE, IMAGE_KEY: Feature("VISUAL", [3, 48, 64])})
    observation, _ = env.reset(seed=0)
    disc, block, angle = np.split(observation[STATE_KEY], [2, 4])
    np.testing.assert_array_equal(disc, make(STATE).reset(seed=0)[0][STATE_KEY])
    assert ((block > 50) & (block < 450)).all()
    assert 0 <= angle[0] < 2 * np.pi
    assert observation[IMAGE_KEY].shape == (48, 64, 3)
    assert env.observation_space.contains(observation)


def test_an_episode_is_solved_where_the_block_lies_on_its_outline():
    env = make()
    env.reset(seed=0)
    env._sim.block.angle = np.pi / 4
    env._sim.block.position = (256, 256)
    away = np.array(env._sim.agent.position)
    _, reward, terminated, truncated, info = env.step(away)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"is_success": True})


def test_an_episode_is_cut_at_its_length():
    env = make(STATE, episode_length=3)
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(action)[3] for action in actions(3)] == [False, False, True]


def test_nothing_is_drawn_while_the_policy_does_not_look(monkeypatch):
    env = make()
    env.reset(seed=0)
    monkeypatch.setattr(env._sim, "_draw", lambda: pytest.fail("drawn"))
    env.draws = False
    assert list(env.step(actions(1)[0])[0]) == [STATE_KEY, ENV_STATE_KEY]


def test_a_video_needs_no_gl_and_opens_without_the_last_episodes_cross(no_gl):
    config = PushTConfig(visualization_width=128, visualization_height=96)
    assert config.can_render() == (True, "")
    env = config.make("PushT-v0", STATE, render=True)
    env.reset(seed=0)
    first = env.render()
    env.step(np.array([100.0, 100.0]))
    red = np.array([255, 0, 0])
    assert (env.render() == red).all(-1).any()
    env.reset(seed=0)
    assert first.shape == (96, 128, 3)
    np.testing.assert_array_equal(env.render(), first)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ({"task": "push-v3"}, r"PushT has one task, .* type env\.task=PushT-v0"),
        ({"task": ["PushT-v0", "PushT-v1"]}, r"type env\.task=PushT-v0"),
        ({"fps": 30}, r"leave env\.fps out"),
        ({"obs_type": "keypoints"}, "type one of state, environment_state_agent_pos, pixels, pixels_agent_pos"),
        ({"visualization_width": 64}, "visualization_width=64: type 96 or more"),
        ({"episode_length": 0}, "at least 1"),
    ],
)
def test_a_wrong_word_is_answered_with_what_to_type(typed, answer):
    with pytest.raises(ConfigError, match=answer):
        PushTConfig(**typed)


@pytest.mark.parametrize(
    ("inputs", "outputs", "answer"),
    [
        ({STATE_KEY: Feature("STATE", [4])}, ACTION, r"has shape \[4\] and PushT's has \[2\]"),
        ({ENV_STATE_KEY: Feature("ENV", [6])}, ACTION, r"has shape \[6\] and PushT's has \[16\]"),
        ({IMAGE_KEY: Feature("VISUAL", [1, 96, 96])}, ACTION, r"\[3, h, w\]"),
        (
            {"observation.images.top": IMAGE[IMAGE_KEY]},
            ACTION,
            r"rename_map=\{<one of these>: observation\.images\.top\}",
        ),
        (STATE, {ACTION_KEY: Feature("ACTION", [4])}, r"action has shape \[4\] and PushT's has \[2\]"),
    ],
)
def test_what_pusht_does_not_yield_is_refused(inputs, outputs, answer):
    with pytest.raises(ConfigError, match=answer):
        PushTConfig().check(inputs, outputs)


READ = {
    "state": FULL_STATE,
    "environment_state_agent_pos": {**STATE, **ENV_STATE},
    "pixels": IMAGE,
    "pixels_agent_pos": {**STATE, **IMAGE},
}


@pytest.mark.parametrize("obs_type", READ)
@pytest.mark.parametrize("read", READ)
def test_a_typed_obs_type_is_what_the_policy_reads_or_refused(obs_type, read):
    PushTConfig().check(READ[read], ACTION)
    if obs_type == read:
        PushTConfig(obs_type=obs_type).check(READ[read], ACTION)
        return
    with pytest.raises(ConfigError, match=rf"env\.obs_type={obs_type} .* leave env\.obs_type out"):
        PushTConfig(obs_type=obs_type).check(READ[read], ACTION)


def test_a_typed_size_is_what_the_policy_reads_or_refused():
    PushTConfig(observation_width=96, observation_height=96).check(IMAGE, ACTION)
    with pytest.raises(ConfigError, match=r"env\.observation_width=384 .* leave env\.observation_width out"):
        PushTConfig(observation_width=384, observation_height=96).check(IMAGE, ACTION)


def test_without_the_simulator_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("lerobot.envs.pusht_config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lerobot-runner\[pusht\]'"):
        PushTConfig().check(STATE, ACTION)


def test_an_opencv_that_cannot_be_loaded_is_refused_before_the_run(monkeypatch):
    """As where the machine has no libGL: `import cv2` is an ImportError."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    for name in [name for name in sys.modules if name == "lerobot.envs.pusht" or name.startswith("gym_pusht")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"cannot load .*cv2.* pip install 'opencv-python-headless<5'"):
        PushTConfig().check(STATE, ACTION)


def test_there_is_no_expert_to_record(tmp_path):
    with pytest.raises(ConfigError, match="env=pusht has no scripted expert to record: type env=metaworld"):
        lerobot.run(lerobot.compose("demos", ["env=pusht", f"dataset.root={tmp_path / 'demos'}"]))
    with pytest.raises(ConfigError, match="type env=metaworld"):
        lerobot.run(lerobot.compose("demos", ["env=null", f"dataset.root={tmp_path / 'demos'}"]))
    assert not (tmp_path / "demos").exists()


def test_what_lerobot_stores_of_pusht_is_read(tmp_path):
    """The `env` of a `train_config.json` that LeRobot 0.6.1 wrote. Its picture's size is not what it trained with."""
    features = {"agent_pos": {"type": "STATE", "shape": [2]}, "pixels": {"type": "VISUAL", "shape": [384, 384, 3]}}
    env = {
        **{"type": "pusht", "task": "PushT-v0", "fps": 10, "episode_length": 300, "obs_type": "pixels_agent_pos"},
        **{"max_parallel_tasks": 1, "disable_env_checker": True, "render_mode": "rgb_array"},
        **dict.fromkeys(
            ("visualization_width", "visualization_height", "observation_height", "observation_width"), 384
        ),
        **{"features": features, "features_map": {"agent_pos": "observation.state", "pixels": "observation.image"}},
    }
    stored = {"env": env, "policy": {"type": "act", "device": "cpu"}, "dataset": {"repo_id": "lerobot/pusht"}}
    (tmp_path / "train_config.json").write_text(json.dumps(stored))
    config = lerobot.compose("train", [f"--config_path={tmp_path / 'train_config.json'}"])
    assert config.env == PushTConfig(obs_type="pixels_agent_pos")


def test_processes_give_the_same_episodes_under_other_names(policy_of):
    def chasing(observation):
        seen.append(observation[IMAGE_KEY])
        return 600 - observation[STATE_KEY]

    seen = []
    policy = policy_of(chasing, {**STATE, "observation.images.top": IMAGE[IMAGE_KEY]})
    policy.outputs = ACTION
    policy.rename_map = {IMAGE_KEY: "observation.images.top"}
    config = PushTConfig(episode_length=6)
    here = evaluate(policy, config, n_episodes=3, seed=0, batch_size=2)
    there = evaluate(policy, config, n_episodes=3, seed=0, batch_size=2, use_async_envs=True)
    assert here.episodes == there.episodes
    assert [episode.length for episode in here.episodes] == [6, 6, 6]
    assert (seen[0].shape, seen[0].dtype) == ((2, 3, 96, 96), torch.uint8)


@pytest.fixture
def demonstrations(tmp_path):
    """Two short episodes as `lerobot/pusht` stores them."""
    numbers = {STATE_KEY: ["motor_0", "motor_1"], ACTION_KEY: ["motor_0", "motor_1"]}
    features = {key: {"dtype": "float32", "shape": [2], "names": names} for key, names in numbers.items()}
    features[IMAGE_KEY] = {"dtype": "image", "shape": [96, 96, 3], "names": ["height", "width", "channel"]}
    env = make({**STATE, **IMAGE})
    with DatasetWriter(tmp_path / "pusht", fps=10, features=features) as writer:
        for seed in range(2):
            rows = [env.reset(seed=seed)[0]] + [env.step(action)[0] for action in actions(9)]
            frames = {key: np.stack([row[key] for row in rows]) for key in (STATE_KEY, IMAGE_KEY)}
            writer.add_episode({**frames, ACTION_KEY: actions(10)}, PushTConfig().describe("PushT-v0"))
    return tmp_path / "pusht"


def test_act_is_trained_and_evaluated_in_lerobots_words(demonstrations, train, rows, tmp_path):
    sizes = [
        "chunk_size=4",
        "n_action_steps=4",
        "dim_model=32",
        "n_heads=2",
        "dim_feedforward=64",
        "n_encoder_layers=1",
    ]
    sizes += ["use_vae=false", "pretrained_backbone_weights=null"]
    words = ["--policy.type=act", *(f"--policy.{size}" for size in sizes), "--env.type=pusht", "--env.task=PushT-v0"]
    quiet = ["--policy.device=cpu", "--wandb.mode=disabled", "--env.episode_length=6"]
    run = train(
        *(*words, *quiet, f"dataset.root={demonstrations}", "--steps=1", "--batch_size=2", "--num_workers=0"),
        *("--eval.n_episodes=1", "--eval.videos=1", "picture=false"),
        base=[],
    )
    assert rows(run)[-1]["eval/n_episodes"] == 1
    assert len(list(run.glob("eval/*/PushT-v0_000.mp4"))) == 1

    words = [f"--policy.path={run}", "--env.type=pusht", "--eval.n_episodes=2", "--eval.batch_size=2", *quiet]
    evaluated = lerobot.run(lerobot.compose("eval", [*words, f"output_dir={tmp_path / 'eval'}"]))
    episodes = [json.loads(line) for line in (evaluated / "eval/episodes.jsonl").open()]
    assert [(episode["seed"], episode["length"]) for episode in episodes] == [(1000, 6), (1001, 6)]
