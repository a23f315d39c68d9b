"""What the reader gives, held against LeRobot's own values and against values written down by hand."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from lerobot.data import columns
from lerobot.data.reader import LeRobotDataset

DATA = Path(__file__).parents[1] / "data"
GOLDEN = {
    name: value for name, value in json.loads((DATA / "golden.json").read_text()).items() if isinstance(value, dict)
}
CUT = {"metaworld_push_img": 74}
"""Frames left of a dataset whose golden values are of the whole."""
WHOLE = [name for name in GOLDEN if name not in CUT]


def steps(name, meta):
    return {key: [round(s * meta.fps) for s in seconds] for key, seconds in GOLDEN[name]["delta_timestamps"].items()}


def assert_golden(item, golden):
    assert item.keys() == golden.keys()
    for key, expected in golden.items():
        value = item[key]
        if isinstance(expected, str):
            assert value == expected
            continue
        assert (list(value.shape), str(value.dtype)) == (expected["shape"], expected["dtype"]), key
        if "values" in expected:
            np.testing.assert_array_equal(value.numpy(), np.array(expected["values"], value.numpy().dtype), key)
        else:
            # Another build of FFmpeg may round a colour the other way.
            np.testing.assert_allclose(value.flatten()[:16], expected["first16"], atol=2.5 / 255)
            assert value.double().mean().item() == pytest.approx(expected["mean"], abs=2e-3)
            assert value.double().std().item() == pytest.approx(expected["std"], abs=2e-3)


@pytest.mark.parametrize("name", GOLDEN)
def test_items_and_windows_are_those_of_lerobot(name):
    golden = GOLDEN[name]
    plain = LeRobotDataset(DATA / name)
    windowed = LeRobotDataset(DATA / name, delta_indices=steps(name, plain.meta))
    inside = [int(i) for i in golden["items"] if int(i) < len(plain)]
    assert len(inside) >= 3
    for i in inside:
        assert_golden(plain[i], golden["items"][str(i)])
    # The last golden item of a cut dataset looks past the cut only if its window does, and 73 ends its episode.
    for i in (int(i) for i in golden["window_items"] if int(i) < len(plain)):
        assert_golden(windowed[i], golden["window_items"][str(i)])


@pytest.mark.parametrize("name", WHOLE)
def test_meta_and_statistics_are_those_of_lerobot(name):
    golden, meta = GOLDEN[name], LeRobotDataset(DATA / name).meta
    assert (meta.num_frames, meta.num_episodes, meta.fps) == tuple(
        golden[k] for k in ("num_frames", "num_episodes", "fps")
    )
    assert meta.camera_keys == golden["camera_keys"]
    assert {task: i for i, task in enumerate(meta.tasks)} == golden["tasks"]
    assert np.stack([meta.starts, meta.stops], axis=1).tolist() == golden["episode_bounds"]
    assert meta.stats.keys() == golden["stats"].keys()
    for key, stats in golden["stats"].items():
        for name_, value in stats.items():
            np.testing.assert_array_equal(meta.stats[key][name_], value)


@pytest.mark.parametrize("name", WHOLE)
def test_a_subset_reads_the_frames_that_lerobot_reads(name):
    golden = GOLDEN[name]["episodes_subset_1_3"]
    meta = LeRobotDataset(DATA / name).meta
    subset = LeRobotDataset(DATA / name, episodes=[1, 3], delta_indices=steps(name, meta))
    assert (len(subset), len(subset.episodes)) == (golden["num_frames"], golden["num_episodes"])
    for i, item in golden["items"].items():
        assert_golden(subset[int(i)], item)


# Of each frame in order: the action at the step asked for, and whether that step lies outside the episode.
BY_HAND = {
    ((0,), 0): ([0, 1, 2, 3, 4], [0, 0, 0, 0, 0]),
    ((0,), -1): ([0, 0, 1, 2, 3], [1, 0, 0, 0, 0]),
    ((0,), 1): ([1, 2, 3, 4, 4], [0, 0, 0, 0, 1]),
    ((2,), 0): ([2000, 2001, 2002, 2003], [0, 0, 0, 0]),
    ((2,), -1): ([2000, 2000, 2001, 2002], [1, 0, 0, 0]),
    ((2,), 1): ([2001, 2002, 2003, 2003], [0, 0, 0, 1]),
    ((0, 2), 0): ([0, 1, 2, 3, 4, 2000, 2001, 2002, 2003], [0] * 9),
    ((0, 2), -1): ([0, 0, 1, 2, 3, 2000, 2000, 2001, 2002], [1, 0, 0, 0, 0, 1, 0, 0, 0]),
    ((0, 2), 1): ([1, 2, 3, 4, 4, 2001, 2002, 2003, 2003], [0, 0, 0, 0, 1, 0, 0, 0, 1]),
    ((2, 0), 0): ([2000, 2001, 2002, 2003, 0, 1, 2, 3, 4], [0] * 9),
    ((2, 0), -1): ([2000, 2000, 2001, 2002, 0, 0, 1, 2, 3], [1, 0, 0, 0, 1, 0, 0, 0, 0]),
    ((2, 0), 1): ([2001, 2002, 2003, 2003, 1, 2, 3, 4, 4], [0, 0, 0, 1, 0, 0, 0, 0, 1]),
}


@pytest.mark.parametrize(("episodes", "step"), BY_HAND)
def test_windows_of_a_subset_never_leave_their_episode(numbered, episodes, step):
    """DATA-01."""
    action, is_pad = BY_HAND[episodes, step]
    dataset = LeRobotDataset(numbered, episodes=episodes, delta_indices={"action": [step]})
    batch = dataset.__getitems__(range(len(dataset)))
    assert batch["action"][:, 0].tolist() == action
    assert batch["action_is_pad"][:, 0].tolist() == [bool(p) for p in is_pad]
    assert [dataset[i]["action"].item() for i in range(len(dataset))] == action


def test_a_frame_knows_its_place_and_its_task(numbered):
    dataset = LeRobotDataset(numbered, episodes=[1, 2])
    batch = dataset.__getitems__([0, 2, 3, 6])
    assert batch["index"].tolist() == [5, 7, 8, 11]
    assert batch["episode_index"].tolist() == [1, 1, 2, 2]
    assert batch["frame_index"].tolist() == [0, 2, 0, 3]
    assert batch["task_index"].tolist() == [1, 1, 0, 0]
    assert batch["timestamp"].tolist() == pytest.approx([0.0, 0.2, 0.0, 0.3])
    assert [dataset[i]["task"] for i in (0, 3)] == ["task 1", "task 0"]


@pytest.mark.parametrize("i", [-1, 12])
def test_a_position_outside_is_an_index_error(numbered, i):
    with pytest.raises(IndexError):
        LeRobotDataset(numbered)[i]


@pytest.mark.parametrize("name", ["metaworld_push_cam", "metaworld_push_img"])
def test_a_batch_is_its_items_and_uint8_images_are_the_same_images(name):
    deltas = {"action": [0, 1], "observation.images.corner2": [-1, 0]}
    batch = LeRobotDataset(DATA / name, delta_indices=deltas, return_uint8=True).__getitems__([70, 3, 71, 3])
    images = batch["observation.images.corner2"]
    assert (images.dtype, images.shape) == (torch.uint8, (4, 2, 3, 96, 96))
    floats = LeRobotDataset(DATA / name, delta_indices=deltas)
    for position, i in enumerate([70, 3, 71, 3]):
        for key, value in floats[i].items():
            if key == "observation.images.corner2":
                torch.testing.assert_close(value, images[position] / 255, rtol=0, atol=0)
            elif key != "task":
                torch.testing.assert_close(value, batch[key][position], rtol=0, atol=0)


def test_only_the_keys_asked_for_are_decoded(monkeypatch):
    dataset = LeRobotDataset(DATA / "metaworld_push_cam", keys=["observation.state", "action"])
    monkeypatch.setattr(dataset, "_video", lambda *_: pytest.fail("a camera was decoded"))
    assert dataset.__getitems__([0, 1]).keys() == {"observation.state", "action"}


@pytest.mark.parametrize("name", ["metaworld_push_multifile", "metaworld_push_img"])
def test_a_large_dataset_is_decoded_once_and_mapped_from_then_on(name, tmp_path, monkeypatch):
    indices = [73, 0, 40]
    held = LeRobotDataset(DATA / name).__getitems__(indices)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(columns, "MEMORY_LIMIT", 0)
    first = LeRobotDataset(DATA / name).__getitems__(indices)
    monkeypatch.setattr(columns, "_decode", lambda *_: pytest.fail("decoded again"))
    mapped = LeRobotDataset(DATA / name)
    second = mapped.__getitems__(indices)
    for key, value in held.items():
        torch.testing.assert_close(first[key], value, rtol=0, atol=0)
        torch.testing.assert_close(second[key], value, rtol=0, atol=0)
    assert not list(tmp_path.rglob("part-*"))


def test_a_pickled_dataset_holds_arguments_and_opens_the_files_again():
    dataset = LeRobotDataset(DATA / "metaworld_push_state", episodes=[2, 0], delta_indices={"action": [0, 5]})
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    assert len(again) == len(dataset)
    for key, value in dataset.__getitems__([3, 100]).items():
        torch.testing.assert_close(again.__getitems__([3, 100])[key], value, rtol=0, atol=0)
