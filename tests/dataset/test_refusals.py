"""What is no dataset, or a damaged one, is refused in one sentence that says what to do."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lerobot.data.reader import LeRobotDataset
from lerobot.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
PARQUET = "data/chunk-000/file-000.parquet"


@pytest.fixture
def copy(numbered, tmp_path):
    return Path(shutil.copytree(numbered, tmp_path / "copy"))


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


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


@pytest.mark.parametrize("version", ["v3.1", "v4.0", "v10.2"])
def test_a_newer_format_is_not_sent_to_the_converter_of_an_older_one(copy, version):
    edit(copy / "meta/info.json", codebase_version=version)
    message = refusal(copy)
    assert f"LeRobotDataset {version} and v3.0 is read: give the dataset as v3.0" in message
    assert "convert" not in message


STATE = {"dtype": "float32", "shape": [2]}


@pytest.mark.parametrize(("changes", "said"), [
    ({"codebase_version": 3}, "int"),
    ({"codebase_version": "new"}, "new"),
    ({"fps": 0}, "its fps is 0"),
    ({"fps": "ten"}, "its fps is ten"),
    ({"features": []}, "its features are a list"),
    ({"features": {"action": 3}}, "'action' has no dtype and shape"),
    ({"features": {"action": {**STATE, "shape": 2}}}, "'action' has the shape 2"),
    ({"features": {"action": {**STATE, "shape": [-2]}}}, r"'action' has the shape [-2]"),
    ({"features": {"action": {**STATE, "dtype": "wavelet"}}}, "wavelet"),
    ({"features": {"action": {**STATE, "dtype": "image"}}}, "is an image of the shape [2]"),
    ({"features": {"look": {"dtype": "video", "shape": [8, 8, 3]}}}, "its video_path is None"),
    ({"data_path": "{chunk}.parquet"}, "its data_path is '{chunk}.parquet'"),
    ({"data_path": "{}"}, "its data_path is '{}'"),
    ({"data_path": 3}, "its data_path is 3"),
])  # fmt: skip
def test_an_info_that_makes_no_sense(copy, changes, said):
    edit(copy / "meta/info.json", **changes)
    message = refusal(copy)
    assert str(copy / "meta/info.json") in message
    assert said in message


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}"])
@pytest.mark.parametrize("name", ["meta/info.json", "meta/stats.json"])
def test_json_that_is_something_else(copy, name, content):
    (copy / name).write_text(content)
    if (name, content) == ("meta/stats.json", "{}"):
        return  # the policy says which statistic it misses
    assert str(copy / name) in refusal(copy)


@pytest.mark.parametrize(("stats", "said"), [
    (3, "its statistics of 'action' are a int"),
    ({"mean": ["x"]}, "its 'mean' of 'action' holds more than numbers"),
    ({"mean": [None]}, "its 'mean' of 'action' holds more than numbers"),
    ({"std": [1.0, 2.0]}, "its 'std' of 'action' has 2 numbers for the shape [1]"),
    ({"q01": [[1.0, 2.0], [3.0]]}, "stats.json cannot be read"),
])  # fmt: skip
def test_statistics_that_make_no_sense(copy, stats, said):
    edit(copy / "meta/stats.json", action=stats)
    message = refusal(copy)
    assert str(copy / "meta/stats.json") in message
    assert said in message


@pytest.mark.parametrize(("name", "column", "values"), [
    ("meta/episodes/chunk-000/file-000.parquet", "dataset_to_index", None),
    ("meta/episodes/chunk-000/file-000.parquet", "dataset_to_index", ["a", "b", "c"]),
    ("meta/episodes/chunk-000/file-000.parquet", "data/file_index", [0, None, 0]),
    ("meta/tasks.parquet", "task_index", ["a", None]),
    (PARQUET, "action", ["x"] * 12),
])  # fmt: skip
def test_columns_that_make_no_sense(copy, name, column, values):
    table = pq.read_table(copy / name)
    at = table.column_names.index(column)
    table = table.remove_column(at)
    pq.write_table(table if values is None else table.append_column(column, [values]), copy / name)
    assert str(copy / name) in refusal(copy)


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


@pytest.mark.parametrize("spoil", [
    lambda png: b"",
    lambda png: png[:200],
    lambda png: png[: png.index(b"IDAT") - 1] + b"\x10" + png[png.index(b"IDAT") :],  # its length
])  # fmt: skip
def test_a_corrupt_picture_is_named_with_its_episode(tmp_path, spoil):
    copy = Path(shutil.copytree(DATA / "metaworld_push_img", tmp_path / "copy"))
    key = "observation.images.corner2"
    table = pq.read_table(copy / PARQUET)
    pictures = table[key].to_pylist()
    pictures[3]["bytes"] = spoil(pictures[3]["bytes"])
    column = pa.array(pictures, table[key].type)
    pq.write_table(table.set_column(table.column_names.index(key), table.field(key), column), copy / PARQUET)
    dataset = LeRobotDataset(copy)
    assert dataset[2][key].shape == (3, 96, 96)
    with pytest.raises(ConfigError, match=r"corner2 in .* \(episode 0\) cannot be decoded"):
        dataset[3]


@pytest.mark.parametrize("file", ["action.npy", "observation.images.corner2.bin", "observation.images.corner2.npy"])
def test_a_torn_cache_is_named(tmp_path, monkeypatch, file):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("lerobot.data.columns.MEMORY_LIMIT", 0)
    LeRobotDataset(DATA / "metaworld_push_img")
    (torn,) = tmp_path.rglob(file)
    torn.write_bytes(torn.read_bytes()[:-8])
    message = refusal(DATA / "metaworld_push_img")
    assert f"{torn.parent} holds torn columns" in message
    assert "remove that folder" in message
