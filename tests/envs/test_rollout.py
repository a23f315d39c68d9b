import json
import math
import random
from contextlib import contextmanager
from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from envs.fake_env import FakeConfig, RawMetaWorldConfig

from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.envs.result import Episode, EvalResult, wilson, write_episodes
from lerobot.envs.rollout import asked_features, evaluate
from lerobot.errors import ConfigError
from lerobot.features import STATE_KEY, Feature

STATE = {STATE_KEY: Feature("STATE", [4])}


def pushing(observation):
    """Solves the fake simulator after 1 to 6 steps, by where the episode started."""
    return torch.tensor([0.5, 0.0, 0.0, 0.0]).expand(len(observation[STATE_KEY]), 4)


def idle(observation):
    return torch.zeros(len(observation[STATE_KEY]), 4)


def trembling(observation):
    return torch.rand(len(observation[STATE_KEY]), 4) + np.random.rand() + random.random()


@pytest.fixture
def roll(policy_of):
    def run(act=pushing, config=None, **settings):
        settings = {"n_episodes": 5, "seed": 100, **settings}
        return evaluate(policy_of(act, STATE), config or FakeConfig(), **settings)

    return run


def starts(result):
    """The fake simulator's first reward is where the episode started."""
    return [episode.sum_reward for episode in result.episodes]


@pytest.mark.parametrize("batch_size", [0, 1, 2, 4])
def test_rows_do_not_depend_on_the_batch_size(roll, batch_size):
    """EVAL-02."""
    rows = roll(n_episodes=10, batch_size=batch_size).episodes
    assert rows == roll(n_episodes=10, batch_size=10).episodes
    assert [row.episode for row in rows] == list(range(10))
    assert [row.seed for row in rows] == list(range(100, 110))
    assert len({row.length for row in rows}) > 1
    assert all(row.success for row in rows)


def test_rows_do_not_depend_on_processes(roll):
    """EVAL-02."""
    assert roll(batch_size=2, use_async_envs=True).episodes == roll(batch_size=2).episodes


def test_simulators_side_by_side_do_not_disturb_each_other(expert_of):
    """EVAL-02, with physics: this task moves things in the scene itself."""
    config = RawMetaWorldConfig(task="drawer-open-v3")
    alone, beside = (
        evaluate(expert_of("drawer-open-v3"), config, n_episodes=3, seed=0, batch_size=size) for size in (1, 3)
    )
    assert alone.episodes == beside.episodes


def test_starts_do_not_depend_on_success(roll):
    """EVAL-02."""
    solved, unsolved = roll(pushing, batch_size=2), roll(idle, batch_size=2)
    assert [row.length for row in unsolved.episodes] == [12] * 5
    assert (solved.success_rate, unsolved.success_rate) == (1.0, 0.0)
    assert starts(solved) == starts(unsolved)
    assert len(set(starts(solved))) == 5


def test_an_evaluation_repeats_itself_also_with_a_policy_that_draws(roll):
    first = roll(trembling)
    draws()
    assert roll(trembling).episodes == first.episodes


def test_every_task_gets_its_episodes_from_the_same_starts(roll):
    result = roll(config=FakeConfig(task="one,two"), n_episodes=3, batch_size=2)
    assert [(row.task, row.episode) for row in result.episodes] == [(t, i) for t in ("one", "two") for i in range(3)]
    assert [row.seed for row in result.episodes] == [100, 101, 102] * 2
    assert {task: part.success_rate for task, part in result.by_task.items()} == {"one": 1.0, "two": 1.0}


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("fails", [False, True])
def test_mode_gradients_and_randomness_are_as_before(policy_of, fails):
    """EVAL-01."""
    seen = []

    def act(observation):
        seen.append(
            (policy.training, policy.dropout.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        )
        draws()
        if fails:
            raise ArithmeticError("the policy is broken")
        return pushing(observation)

    policy = policy_of(act, STATE).train()
    frozen = torch.nn.BatchNorm1d(4).eval()
    policy.add_module("frozen", frozen)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    try:
        evaluate(policy, FakeConfig(), n_episodes=2, seed=0)
    except ArithmeticError:
        assert fails
    assert draws() == expected
    assert set(seen) == {(False, False, False, True)}
    assert policy.training
    assert policy.dropout.training
    assert not frozen.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_the_policy_forgets_between_batches_and_at_the_end(policy_of):
    policy = policy_of(pushing, STATE)
    evaluate(policy, FakeConfig(), n_episodes=4, seed=0, batch_size=2)
    assert policy.resets == 2 + 2  # one a batch, and one on either side of the evaluation


def test_the_policy_runs_inside_the_autocast_it_is_given(roll):
    inside = []

    @contextmanager
    def autocast():
        inside.append(True)
        yield
        inside.pop()

    def act(observation):
        assert inside
        return pushing(observation)

    roll(act, autocast=autocast)


def test_pictures_reach_the_policy_channels_first(needs_gl, policy_of):
    seen = []

    def act(observation):
        seen.append(observation["observation.images.corner2"])
        return torch.zeros(2, 4)

    picture = {"observation.images.corner2": Feature("VISUAL", [3, 48, 64])}
    evaluate(policy_of(act, picture), MetaWorldConfig(episode_length=2), n_episodes=2, seed=0)
    assert seen[0].shape == (2, 3, 48, 64)
    assert seen[0].dtype == torch.uint8


def test_nothing_is_drawn_while_the_policy_does_not_look(needs_gl, policy_of, monkeypatch):
    """A chunk of three actions is executed before the next look."""
    from lerobot.envs.camera import Camera

    pictures = []
    draw = Camera.draw
    monkeypatch.setattr(Camera, "draw", lambda *args: pictures.append(1) or draw(*args))
    policy = policy_of(
        lambda observation: torch.zeros(1, 4), {"observation.images.corner2": Feature("VISUAL", [3, 48, 48])}
    )
    steps = iter(range(1, 10))
    monkeypatch.setattr(type(policy), "looks", property(lambda self: next(steps) % 3 == 0))

    evaluate(policy, MetaWorldConfig(episode_length=6), n_episodes=1, seed=0)

    assert len(pictures) == 3  # at the start and after 3 and 6 steps


def test_names_are_asked_for_as_they_come_in(policy_of):
    policy = policy_of(pushing, {"observation.images.top": Feature("VISUAL", [3, 96, 96]), **STATE})
    policy.rename_map = {"observation.images.corner2": "observation.images.top"}
    assert list(asked_features(policy)) == ["observation.images.corner2", STATE_KEY]


def test_a_stop_leaves_whole_batches(roll):
    asked = []

    def stop():
        asked.append(True)
        return len(asked) > 2

    result = roll(n_episodes=10, batch_size=2, should_stop=stop)
    assert result.stopped
    assert result.episodes == roll(n_episodes=4).episodes


@pytest.mark.parametrize("videos", ["auto", 2])
def test_the_first_episodes_become_videos(roll, tmp_path, videos):
    result = roll(batch_size=1, videos=videos, video_dir=tmp_path / "eval")
    assert [path.name for path in result.videos] == ["fake_000.mp4", "fake_001.mp4"]
    assert result.note == ""
    with av.open(str(result.videos[0])) as container:
        stream = container.streams.video[0]
        pictures = [frame.to_ndarray(format="gray").mean() for frame in container.decode(stream)]
        assert stream.average_rate == 20
    # The simulator runs at 40 Hz, so every second step is shown, and the last.
    assert len(pictures) == math.ceil(result.episodes[0].length / 2) + 1


def test_without_something_to_draw_with_auto_goes_on_and_says_why(roll, tmp_path):
    result = roll(config=FakeConfig(drawable=False), videos="auto", video_dir=tmp_path)
    assert result.videos == []
    assert result.note == "no video: nothing can be drawn here (no paint)"
    assert result.success_rate == 1.0


def test_videos_that_were_asked_for_are_refused_without_gl(no_gl, policy_of, states, tmp_path):
    policy = policy_of(idle, states.inputs)
    with pytest.raises(ConfigError, match="needs a GL context"):
        evaluate(policy, MetaWorldConfig(), n_episodes=1, seed=0, videos=1, video_dir=tmp_path)


@pytest.mark.parametrize(
    ("broken", "answer"),
    [({"dies_at": 2}, r"process ended \(exit code 3\)"), ({"fails_at": 2}, "the spring is gone(.|\n)*fake_env")],
)
def test_a_broken_simulator_in_a_process_is_an_error_that_says_so(roll, broken, answer):
    with pytest.raises(RuntimeError, match=answer):
        roll(idle, config=FakeConfig(**broken), n_episodes=1, use_async_envs=True)


@pytest.mark.parametrize("task", ["push-v3", "drawer-open-v3"])
def test_the_expert_solves_every_episode_and_chance_none(expert_of, policy_of, states, task):
    """EVAL-04: through the same code."""
    expert = evaluate(expert_of(task), RawMetaWorldConfig(task=task), n_episodes=20, seed=0)
    assert expert.success_rate == 1.0
    chance = policy_of(lambda observation: 2 * torch.rand(len(observation[STATE_KEY]), 4) - 1, states.inputs)
    assert evaluate(chance, MetaWorldConfig(task=task, episode_length=100), n_episodes=10, seed=0).success_rate <= 0.1


@pytest.mark.parametrize(
    ("successes", "n", "interval"),
    # scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
    [
        (0, 10, (0.0, 0.277533)),
        (8, 10, (0.490162, 0.943318)),
        (45, 50, (0.786398, 0.956523)),
        (50, 50, (0.928651, 1.0)),
    ],
)
def test_the_interval_is_wilsons(successes, n, interval):
    assert wilson(successes, n) == pytest.approx(interval, abs=1e-5)


def test_no_episodes_say_nothing():
    result = EvalResult()
    assert math.isnan(result.success_rate)
    assert math.isnan(result.sum_reward)
    assert result.interval == (0.0, 1.0)


def test_rows_are_strict_json(tmp_path):
    rows = [Episode(0, "push-v3", 7, True, 1.5, 60), Episode(1, "push-v3", 8, False, math.inf, 400)]
    write_episodes(tmp_path / "eval/episodes.jsonl", rows)
    read = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "eval/episodes.jsonl").open()]
    assert [Episode(**row) for row in read] == [rows[0], replace(rows[1], sum_reward=None)]


def test_an_action_that_is_not_a_number_ends_the_evaluation(policy_of):
    from lerobot.errors import RunError

    policy = policy_of(lambda observation: torch.full((1, 4), float("nan")), STATE)
    with pytest.raises(RunError, match="action is not a finite number"):
        evaluate(policy, MetaWorldConfig(episode_length=5), n_episodes=1, seed=0)
