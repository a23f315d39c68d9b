"""What is no dataset, or a damaged one, is refused in one sentence that says what to do."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lerobot.data.reader import LeRobotDataset
from lerobot.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
PARQUET = "data/chunk-000/file-000.parquet"


@pytest.fixture
def copy(numbered, tmp_path):
    return Path(shutil.copytree(numbered, tmp_path / "copy"))


def refusal(*args, **kwargs):
    with pytest.raises(ConfigError) as error:
        LeRobotDataset(*args, **kwargs)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_folder_that_is_not_there(tmp_path):
    assert "there is no dataset folder" in refusal(tmp_path / "nowhere")


def test_a_folder_of_datasets_names_one_of_them(copy):
    assert f"dataset.root={copy}" in refusal(copy.parent)


def test_a_folder_that_is_no_dataset(tmp_path):
    assert "is no LeRobotDataset (it has no meta/info.json)" in refusal(tmp_path)


def test_an_older_format_names_its_converter(copy):
    info = json.loads((copy / "meta/info.json").read_text())
    (copy / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    message = refusal(copy)
    assert "LeRobotDataset v2.1" in message
    assert "convert_dataset_v21_to_v30" in message


@pytest.mark.parametrize("name", [PARQUET, "meta/stats.json", "meta/tasks.parquet"])
def test_a_missing_file(copy, name):
    (copy / name).unlink()
    assert f"lacks {name}" in refusal(copy)


def test_missing_episodes(copy):
    shutil.rmtree(copy / "meta/episodes")
    assert "meta/episodes" in refusal(copy)


@pytest.mark.parametrize(
    "name", [PARQUET, "meta/info.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"]
)
def test_a_torn_file(copy, name):
    (copy / name).write_bytes((copy / name).read_bytes()[:60])
    message = refusal(copy)
    assert str(copy / name) in message
    assert "copy it again" in message


def test_data_that_meta_does_not_describe(copy):
    table = pq.read_table(copy / PARQUET)
    pq.write_table(table.slice(0, 9), copy / PARQUET)
    assert "holds 9 frames and its meta/ names 12" in refusal(copy)
    pq.write_table(table.take(list(range(11, -1, -1))), copy / PARQUET)
    assert "do not follow frame 0 in order" in refusal(copy)


def test_a_missing_video(tmp_path):
    copy = Path(shutil.copytree(DATA / "metaworld_push_multifile", tmp_path / "copy"))
    lost = "videos/observation.images.corner2/chunk-001/file-001.mp4"
    (copy / lost).unlink()
    assert lost in refusal(copy)
    assert len(LeRobotDataset(copy, episodes=[0, 1])) == 74 + 57  # which lie in other files


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        ([0, 7], "names episode 7: "),
        ([-1], "names episode -1: "),
        ([1, 0, 1], "names episode 1 more than once"),
        ([], "type dataset.episodes=null"),
    ],
)
def test_episodes_that_cannot_be_chosen(numbered, episodes, said):
    assert said in refusal(numbered, episodes=episodes)


def test_a_feature_that_is_not_there_names_those_that_are(numbered):
    assert "type one of observation.state, action" in refusal(numbered, keys=["observation.stat"])
    assert "'action'" in refusal(numbered, keys=["observation.state"], delta_indices={"action": [0]})


def test_a_corrupt_video_is_named_with_its_episode(tmp_path):
    copy = Path(shutil.copytree(DATA / "metaworld_push_multifile", tmp_path / "copy"))
    video = copy / "videos/observation.images.corner2/chunk-001/file-000.mp4"
    video.write_bytes(video.read_bytes()[:4000])
    dataset = LeRobotDataset(copy)
    assert dataset[0]["observation.images.corner2"].shape == (3, 64, 64)
    with pytest.raises(ConfigError, match=r"file-000\.mp4 at 0\.000 s \(episode 2\) cannot be decoded") as error:
        dataset[74 + 57]
    assert "\n" not in str(error.value)
