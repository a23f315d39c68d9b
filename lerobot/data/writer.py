"""Episodes written as a LeRobotDataset v3.0, which LeRobot reads as its own."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot.data.columns import row_shape
from lerobot.data.meta import IMAGE_DTYPES, VERSION, Stats
from lerobot.data.statistics import aggregate, episode_stats
from lerobot.data.tables import arrow_column, data_schema, stats_columns, tasks_table
from lerobot.data.video import VideoEncoder, dataset_codec, video_info
from lerobot.errors import ConfigError

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"
CHUNK_FILES = 1000
DATA_FILE_MB = 100
VIDEO_FILE_MB = 200

COUNTED_FEATURES: dict[str, dict[str, Any]] = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
"""Features that the writer fills itself."""


class DatasetWriter:
    """Writes a new dataset at `root`, which appears there whole when the writer is closed, and not at all on an error.

    `features` are those of `info.json`: name to `dtype` (a number type, bool, `image` or `video`), `shape` and `names`;
    images are (h, w, c) uint8 arrays, stored as PNG inside parquet (`image`) or as AV1 (`video`).
    """

    def __init__(
        self, root: str | Path, *, fps: float, features: Mapping[str, Mapping[str, Any]], robot_type: str | None = None
    ) -> None:
        self.root = Path(root).expanduser()
        if self.root.exists():
            raise ConfigError(f"{self.root} exists already: type dataset.root=<a new folder>, or remove it")
        self.fps = fps
        self.robot_type = robot_type
        self.features = {key: {**feature, "shape": list(feature["shape"])} for key, feature in features.items()}
        self.features |= COUNTED_FEATURES
        self.folder = self.root.with_name(f".{self.root.name}.{os.getpid()}.part")
        self.tasks: list[str] = []
        self.episodes: list[dict[str, Any]] = []
        self.stats: list[Stats] = []
        self.num_frames = 0
        self._data = _DataFile(self.folder, self.features)
        self._videos = {
            key: _VideoFile(self.folder, key, fps)
            for key, feature in self.features.items()
            if feature["dtype"] == "video"
        }

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.close()
        finally:
            self.discard()

    def add_episode(self, frames: Mapping[str, np.ndarray], task: str) -> None:
        """Append one episode: every feature as a (t, ...) array."""
        episode = self._checked(frames)
        length = len(next(iter(episode.values())))
        if task not in self.tasks:
            self.tasks.append(task)
        frame_index = np.arange(length)
        episode |= {
            "timestamp": (frame_index / self.fps).astype(np.float32),
            "frame_index": frame_index,
            "episode_index": np.full(length, len(self.episodes)),
            "index": frame_index + self.num_frames,
            "task_index": np.full(length, self.tasks.index(task)),
        }
        row: dict[str, Any] = {"episode_index": len(self.episodes), "tasks": [task], "length": length}
        row |= self._data.add(episode)
        row |= {"dataset_from_index": self.num_frames, "dataset_to_index": self.num_frames + length}
        for key, video in self._videos.items():
            row |= video.add(episode[key])
        self.episodes.append(row)
        self.stats.append(episode_stats(episode, self.features))
        self.num_frames += length

    def close(self) -> None:
        """Finish all files and move the dataset to `root`."""
        if not self.episodes:
            raise ConfigError(f"{self.root} would hold no episode: record at least one")
        self._data.close()
        for key, video in self._videos.items():
            video.close()
            first = self.folder / VIDEO_PATH.format(video_key=key, chunk_index=0, file_index=0)
            self.features[key]["info"] = video_info(first, self.fps, dataset_codec())
        self._write_meta()
        if self.root.exists():
            beside = self.folder.rename(self.root.with_name(f"{self.root.name}-{os.getpid()}"))
            raise ConfigError(f"{self.root} appeared while it was recorded: type dataset.root={beside} instead")
        self.folder.rename(self.root)

    def discard(self) -> None:
        """Remove what is not yet at `root`."""
        self._data.close()
        for video in self._videos.values():
            video.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _checked(self, frames: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays in the types of their features. What does not fit is a mistake of the caller."""
        wanted = self.features.keys() - COUNTED_FEATURES.keys()
        assert frames.keys() == wanted, f"features {sorted(wanted ^ frames.keys())} are missing or unknown"
        episode: dict[str, np.ndarray] = {}
        for key, values in frames.items():
            feature = self.features[key]
            dtype = np.dtype(np.uint8 if feature["dtype"] in IMAGE_DTYPES else feature["dtype"])
            if feature["dtype"] in IMAGE_DTYPES:
                assert values.dtype == np.uint8, f"{key} is {values.dtype}, not uint8"
            episode[key] = np.asarray(values, dtype).reshape(len(values), *row_shape(feature))
        lengths = {len(values) for values in episode.values()}
        assert len(lengths) == 1, f"features differ in length: {sorted(lengths)}"
        assert lengths != {0}, "an episode has at least one frame"
        return episode

    def _write_meta(self) -> None:
        episodes = pa.table(
            {
                **_episode_columns(self.episodes),
                **stats_columns(self.stats),
                **_place(len(self.episodes)),
            }
        )
        file = self.folder / EPISODES_PATH
        file.parent.mkdir(parents=True)
        pq.write_table(episodes, file, compression="snappy")
        pq.write_table(tasks_table(self.tasks), self.folder / "meta/tasks.parquet")
        stats = {
            key: {name: value.tolist() for name, value in feature.items()}
            for key, feature in aggregate(self.stats).items()
        }
        (self.folder / "meta/stats.json").write_text(json.dumps(stats, indent=4))
        (self.folder / "meta/info.json").write_text(json.dumps(self._info(), indent=4))

    def _info(self) -> dict[str, Any]:
        return {
            "codebase_version": VERSION,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "features": self.features,
            "total_episodes": len(self.episodes),
            "total_frames": self.num_frames,
            "total_tasks": len(self.tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_FILE_MB,
            "video_files_size_in_mb": VIDEO_FILE_MB,
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._videos else None,
            "robot_type": self.robot_type,
            "splits": {"train": f"0:{len(self.episodes)}"},
        }


class _Numbering:
    """Which file is written: after one that is full comes the next, and after `CHUNK_FILES` the next chunk."""

    def __init__(self) -> None:
        self.files = 0

    def place(self) -> dict[str, int]:
        chunk, file = divmod(self.files, CHUNK_FILES)
        return {"chunk_index": chunk, "file_index": file}


class _DataFile:
    """The parquet file being written, one row group an episode."""

    def __init__(self, folder: Path, features: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.schema = data_schema(features)
        self.features = features
        self.numbering = _Numbering()
        self.writer: pq.ParquetWriter | None = None

    def add(self, episode: dict[str, np.ndarray]) -> dict[str, int]:
        place = self.numbering.place()
        path = self.folder / DATA_PATH.format(**place)
        if self.writer is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(path, self.schema, compression="snappy")
        arrays = [arrow_column(episode[field.name], field.type) for field in self.schema]
        self.writer.write_table(pa.Table.from_arrays(arrays, schema=self.schema))
        if path.stat().st_size >= DATA_FILE_MB * 2**20:
            self.close()
            self.numbering.files += 1
        return {f"data/{name}": value for name, value in place.items()}

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class _VideoFile:
    """The mp4 of one camera being written, episode after episode."""

    def __init__(self, folder: Path, key: str, fps: float) -> None:
        self.folder = folder
        self.key = key
        self.fps = fps
        self.numbering = _Numbering()
        self.encoder: VideoEncoder | None = None

    def add(self, frames: np.ndarray) -> dict[str, float]:
        place = self.numbering.place()
        path = self.folder / VIDEO_PATH.format(video_key=self.key, **place)
        if self.encoder is None:
            self.encoder = VideoEncoder(path, self.fps, dataset_codec())
        first = self.encoder.num_frames
        self.encoder.add(frames)
        span = {"from_timestamp": first / self.fps, "to_timestamp": self.encoder.num_frames / self.fps}
        if self.encoder.num_bytes >= VIDEO_FILE_MB * 2**20:
            self.close()
            self.numbering.files += 1
        return {f"videos/{self.key}/{name}": value for name, value in {**place, **span}.items()}

    def close(self) -> None:
        if self.encoder is not None:
            self.encoder.close()
            self.encoder = None


def _episode_columns(episodes: list[dict[str, Any]]) -> dict[str, pa.Array]:
    return {name: pa.array([episode[name] for episode in episodes]) for name in episodes[0]}


def _place(episodes: int) -> dict[str, pa.Array]:
    zeros = pa.array(np.zeros(episodes, np.int64))
    return {"meta/episodes/chunk_index": zeros, "meta/episodes/file_index": zeros}
