import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lerobot.data.reader import LeRobotDataset
from lerobot.envs import record as recording
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.envs.record import Demonstrator, Plan, record
from lerobot.errors import ConfigError, RunError
from lerobot.features import STATE_KEY

DATA = Path(__file__).parents[1] / "data"


def info(root):
    return json.loads((root / "meta/info.json").read_text())


def episodes(root):
    table = pq.read_table(root / "data/chunk-000/file-000.parquet").to_pydict()
    columns = {key: np.array(values) for key, values in table.items()}
    numbers = columns["episode_index"]
    return [{key: values[numbers == i] for key, values in columns.items()} for i in np.unique(numbers)]


def test_a_recording_has_the_shape_of_lerobots(tmp_path):
    done = record(MetaWorldConfig(), tmp_path / "demos", Plan(num_episodes=3))
    there, here = info(DATA / "metaworld_push_state"), info(tmp_path / "demos")
    assert here["features"] == there["features"]
    assert (here["fps"], here["robot_type"]) == (there["fps"], there["robot_type"])
    assert (here["total_episodes"], here["total_frames"]) == (done.episodes, done.frames) == (3, done.frames)
    assert LeRobotDataset(tmp_path / "demos").meta.tasks == ["Push the puck to a goal"]
    for episode in episodes(DATA / "metaworld_push_state")[:3] + episodes(tmp_path / "demos"):
        # Solved at the eleventh frame from the end, then ten steps more.
        assert np.flatnonzero(episode["next.success"])[0] == len(episode["next.success"]) - 11
        assert np.flatnonzero(episode["next.done"]).tolist() == [len(episode["next.done"]) - 1]
        assert np.abs(episode["action"]).max() <= 1


def test_the_starts_are_those_of_the_seeds(tmp_path):
    record(MetaWorldConfig(), tmp_path / "demos", Plan(num_episodes=2, seed=1000))
    for there, here in zip(episodes(DATA / "metaworld_push_state"), episodes(tmp_path / "demos"), strict=False):
        np.testing.assert_allclose(here[STATE_KEY][0], there[STATE_KEY][0], atol=1e-3)


def attempt(noise):
    demonstrator = Demonstrator(MetaWorldConfig(), Plan(1, action_noise=noise))
    demonstrator.open("push-v3")
    executed = []
    step = demonstrator._env.step
    demonstrator._env.step = lambda action: executed.append(action) or step(action)
    frames = demonstrator.attempt(0)
    return np.array(executed), frames["action"]


def test_noise_is_executed_and_the_experts_own_answer_is_stored():
    executed, stored = attempt(0.1)
    assert 0.07 < (executed - stored).std() < 0.13
    executed, stored = attempt(0.0)
    np.testing.assert_array_equal(executed, stored)


@pytest.fixture
def clumsy(monkeypatch):
    """An expert that fails where the seed is odd."""
    attempt = Demonstrator.attempt
    monkeypatch.setattr(Demonstrator, "attempt", lambda self, seed: None if seed % 2 else attempt(self, seed))


def test_failed_attempts_are_left_out_and_counted(clumsy, tmp_path):
    heard = []
    done = record(
        MetaWorldConfig(), tmp_path / "demos", Plan(3, seed=0), on_episode=lambda so_far: heard.append(so_far.episodes)
    )
    assert (done.episodes, done.attempts) == (3, 5)
    assert heard == [1, 2, 3]
    assert len(episodes(tmp_path / "demos")) == 3


def test_an_expert_that_never_succeeds_ends_the_recording(monkeypatch, tmp_path):
    monkeypatch.setattr(Demonstrator, "attempt", lambda self, seed: None)
    with pytest.raises(RunError, match="the expert of push-v3 solved 0 of 20 attempts: type a smaller action_noise "):
        record(MetaWorldConfig(), tmp_path / "demos", Plan(3, action_noise=5))
    assert list(tmp_path.iterdir()) == []


def test_a_stop_keeps_what_was_finished(tmp_path):
    done = record(MetaWorldConfig(), tmp_path / "demos", Plan(9), should_stop=lambda: True)
    assert done.stopped
    assert len(LeRobotDataset(tmp_path / "demos")) == done.frames > 0


def test_an_existing_folder_is_refused_before_anything_is_simulated(monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "open_lanes", lambda *_, **__: pytest.fail("simulated"))
    with pytest.raises(ConfigError, match=r"dataset\.root="):
        record(MetaWorldConfig(), tmp_path, Plan(1))


@pytest.mark.parametrize("parent", ["file", "/proc", "/dev/null"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_simulated(monkeypatch, tmp_path, parent):
    """A superuser may write to a read-only folder, but not there."""
    monkeypatch.setattr(recording, "open_lanes", lambda *_, **__: pytest.fail("simulated"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/demos cannot be written \(.+\): type dataset\.root=<a new folder"):
        record(MetaWorldConfig(), tmp_path / parent / "demos", Plan(1))


def test_what_killed_recordings_left_goes_with_the_next_of_the_same_target(monkeypatch, tmp_path):
    monkeypatch.setattr("psutil.pid_exists", lambda pid: pid == 7)
    kept = [".demos.7.part", ".demos.v2.41.part", ".others.41.part", ".demos.mine.part"]
    for name in [*kept, ".demos.41.part", f".demos.{os.getpid()}.part"]:
        (tmp_path / name / "data").mkdir(parents=True)
    record(MetaWorldConfig(), tmp_path / "demos", Plan(9), should_stop=lambda: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "demos"])


@pytest.mark.parametrize(("plan", "answer"), [
    ({"cameras": ("top",)}, "cameras are"),
    ({"image_size": 97}, "type image_size=96"),
    ({"num_episodes": 0}, "num_episodes=0: type a whole number of at least 1"),
    ({"seed": -1}, "seed=-1: type a whole number of at least 0"),
    ({"action_noise": float("nan")}, "action_noise=nan: type a finite number of at least 0"),
])  # fmt: skip
def test_a_plan_that_cannot_be_recorded_is_refused(tmp_path, plan, answer):
    with pytest.raises(ConfigError, match=answer):
        record(MetaWorldConfig(), tmp_path / "demos", Plan(**{"num_episodes": 1, **plan}))


def test_cameras_are_recorded_in_the_order_of_the_seeds(needs_gl, tmp_path):
    """Several processes draw; the reference is one that does not draw."""
    config = MetaWorldConfig(task="drawer-close-v3")  # short episodes
    record(config, tmp_path / "seen", Plan(2, cameras=("corner2",), image_size=64))
    record(config, tmp_path / "felt", Plan(2))
    seen, felt = LeRobotDataset(tmp_path / "seen"), LeRobotDataset(tmp_path / "felt")
    assert len(seen) == len(felt)
    for i in (0, len(seen) - 1):
        np.testing.assert_array_equal(seen[i][STATE_KEY], felt[i][STATE_KEY])
    picture = seen[0]["observation.images.corner2"]
    assert picture.shape == (3, 64, 64)
    assert picture.std() > 0.05
