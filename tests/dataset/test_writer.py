"""What the writer writes is read back unchanged, in LeRobot's layout, and nothing half-written is left."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lerobot.data import writer as writing
from lerobot.data.reader import LeRobotDataset
from lerobot.data.writer import COUNTED_FEATURES, DatasetWriter
from lerobot.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"


def own_features(meta):
    return {key: feature for key, feature in meta.features.items() if key not in COUNTED_FEATURES}


def frames_of(dataset, episode):
    meta = dataset.meta
    batch = dataset.__getitems__(range(meta.starts[episode], meta.stops[episode]))
    frames = {key: batch[key].numpy() for key in own_features(meta)}
    return frames | {key: frames[key].transpose(0, 2, 3, 1) for key in meta.camera_keys}


def rewrite(name, root, episodes):
    source = LeRobotDataset(DATA / name, return_uint8=True)
    with DatasetWriter(root, fps=source.meta.fps, features=own_features(source.meta), robot_type="sawyer") as writer:
        for episode in episodes:
            task = source[int(source.meta.starts[episode])]["task"]
            writer.add_episode(frames_of(source, episode), task)
    return source, LeRobotDataset(root, return_uint8=True)


@pytest.mark.parametrize(
    ("name", "episodes"),
    [("metaworld_push_state", [0, 1, 2]), ("metaworld_push_img", [0]), ("metaworld_multi2_cam2", [0, 4])],
)
def test_a_dataset_of_lerobot_comes_back_as_it_was(tmp_path, name, episodes):
    source, copy = rewrite(name, tmp_path / "copy", episodes)
    expected = source.__getitems__([i for e in episodes for i in range(source.meta.starts[e], source.meta.stops[e])])
    for key, value in copy.__getitems__(range(len(copy))).items():
        if key in copy.meta.videos:
            difference = (value.float() - expected[key].float()).abs()
            assert difference.mean() < 4  # encoded a second time
            assert difference.mean() < (value[1:].float() - expected[key][:-1].float()).abs().mean()  # the same frame
        elif key not in ("index", "episode_index", "task_index"):
            assert torch.equal(value, expected[key]), key
    assert [copy.meta.tasks[i] for i in copy.__getitems__(range(len(copy)))["task_index"]] == [
        source.meta.tasks[i] for i in expected["task_index"]
    ]


@pytest.mark.parametrize("name", ["metaworld_push_state", "metaworld_push_img", "metaworld_multi2_cam2"])
def test_files_have_the_layout_that_lerobot_gives_them(tmp_path, name):
    source, copy = rewrite(name, tmp_path / "copy", [0])

    def layout(root):
        tables = {}
        for file in sorted(root.rglob("*.parquet")):
            schema = pq.read_schema(file)
            notes = {note: set(json.loads(text)) for note, text in (schema.metadata or {}).items()}
            tables[str(file.relative_to(root))] = ({field.name: str(field.type) for field in schema}, notes.keys())
        return tables

    assert layout(copy.meta.root) == layout(source.meta.root)
    theirs, ours = (json.loads((root / "meta/info.json").read_text()) for root in (source.meta.root, copy.meta.root))
    assert ours.keys() == theirs.keys()
    assert ours["features"].keys() == theirs["features"].keys()
    for key, feature in theirs["features"].items():
        assert {k: ours["features"][key][k] for k in ("dtype", "shape", "names")} == {
            k: feature[k] for k in ("dtype", "shape", "names")
        }
        assert ours["features"][key].get("info", {}).items() <= feature.get("info", {}).items()
    for notes in (
        json.loads(pq.read_schema(root / "meta/tasks.parquet").metadata[b"pandas"])
        for root in (source.meta.root, copy.meta.root)
    ):
        assert notes["index_columns"] == ["task"]


def test_numbers_of_every_shape_and_type_come_back(tmp_path):
    features = {
        "action": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "grid": {"dtype": "float32", "shape": (2, 3), "names": None},
        "wide": {"dtype": "float64", "shape": (2,), "names": None},
        "count": {"dtype": "int64", "shape": (1,), "names": None},
        "done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    rng = np.random.default_rng(0)
    frames = {
        "action": rng.normal(size=(6, 3)),
        "grid": rng.normal(size=(6, 2, 3)),
        "wide": rng.normal(size=(6, 2)),
        "count": np.arange(6),
        "done": np.arange(6) == 5,
    }
    with DatasetWriter(tmp_path / "new", fps=20, features=features) as writer:
        writer.add_episode(frames, "move")
    dataset = LeRobotDataset(tmp_path / "new")
    batch = dataset.__getitems__(range(6))
    for key, value in frames.items():
        assert batch[key].shape == value.shape
        torch.testing.assert_close(batch[key].double(), torch.from_numpy(value).double(), rtol=1e-6, atol=1e-7)
    assert [str(batch[key].dtype) for key in frames] == [*["torch.float32"] * 3, "torch.int64", "torch.bool"]
    assert dataset.meta.stats["grid"]["mean"].shape == (2, 3)


def test_full_files_are_followed_by_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "DATA_FILE_MB", 0)
    monkeypatch.setattr(writing, "VIDEO_FILE_MB", 0)
    monkeypatch.setattr(writing, "CHUNK_FILES", 2)
    camera = {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]}
    features = {"action": {"dtype": "float32", "shape": (1,), "names": None}, "observation.images.top": camera}
    with DatasetWriter(tmp_path / "new", fps=10, features=features) as writer:
        for episode in range(3):
            shade = 40 + 60 * episode + np.arange(4)
            images = np.broadcast_to(shade[:, None, None, None], (4, 64, 64, 3)).astype(np.uint8)
            writer.add_episode({"action": shade, "observation.images.top": images}, f"task {episode}")
    files = sorted(
        str(f.relative_to(tmp_path / "new")) for f in tmp_path.rglob("*.*") if f.suffix in (".parquet", ".mp4")
    )
    assert [f for f in files if f.startswith("data")] == [
        f"data/chunk-00{chunk}/file-00{file}.parquet" for chunk, file in ((0, 0), (0, 1), (1, 0))
    ]
    assert len([f for f in files if f.endswith(".mp4")]) == 3
    batch = LeRobotDataset(tmp_path / "new", return_uint8=True).__getitems__(range(12))
    assert batch["episode_index"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    shown = batch["observation.images.top"].float().mean(dim=(1, 2, 3))
    torch.testing.assert_close(shown, batch["action"], rtol=0, atol=3)


def test_an_existing_folder_is_refused_before_anything_is_recorded(tmp_path):
    with pytest.raises(ConfigError, match="exists already"):
        DatasetWriter(tmp_path, fps=10, features={})


def test_a_failed_recording_leaves_nothing(tmp_path, numbered):
    features = own_features(LeRobotDataset(numbered).meta)
    episode = {"observation.state": np.zeros((4, 2)), "action": np.zeros(4)}

    def record():
        with DatasetWriter(tmp_path / "new", fps=10, features=features) as writer:
            writer.add_episode(episode, "move")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record()
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(ConfigError, match="would hold no episode"),
        DatasetWriter(tmp_path / "new", fps=10, features=features),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_dataset_appears_whole_with_the_permissions_of_any_folder(tmp_path, numbered):
    writer = DatasetWriter(tmp_path / "new", fps=10, features=own_features(LeRobotDataset(numbered).meta))
    writer.add_episode({"observation.state": np.zeros((4, 2)), "action": np.zeros(4)}, "move")
    assert not (tmp_path / "new").exists()
    writer.close()
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
