"""The `meta/` folder of a LeRobotDataset v3.0: what was recorded and where each episode lies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot.errors import ConfigError
from lerobot.ranges import COUNT, POSITIVE

Stats = dict[str, dict[str, np.ndarray]]

VERSION = "v3.0"
IMAGE_DTYPES = ("image", "video")
TEXT_DTYPES = ("string", "language")


@dataclass(frozen=True)
class VideoSpans:
    """Where one camera's frames of each episode lie: the file, and the time of the first frame in it."""

    chunk: np.ndarray
    file: np.ndarray
    start_s: np.ndarray


@dataclass(frozen=True)
class DatasetMeta:
    """What `meta/` says. Frames are numbered through the whole dataset, episode e being `starts[e] .. stops[e] - 1`."""

    root: Path
    info: dict[str, Any]
    stats: Stats
    tasks: list[str]
    starts: np.ndarray
    stops: np.ndarray
    data_files: list[Path]
    videos: dict[str, VideoSpans]

    @property
    def fps(self) -> float:
        """Frames a second, the same in every episode."""
        return self.info["fps"]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name to `dtype`, `shape` and `names`, as in `info.json`; images are (h, w, c) there."""
        return self.info["features"]

    @property
    def robot_type(self) -> str | None:
        """The robot's name, if one was recorded."""
        return self.info.get("robot_type")

    @property
    def camera_keys(self) -> list[str]:
        """Features that are images, stored either way."""
        return [key for key, feature in self.features.items() if feature["dtype"] in IMAGE_DTYPES]

    @property
    def num_episodes(self) -> int:
        """Episodes on disk, chosen or not."""
        return len(self.starts)

    @property
    def num_frames(self) -> int:
        """Frames on disk, chosen or not."""
        return int(self.stops[-1])

    def video_path(self, key: str, episode: int) -> Path:
        """The mp4 that holds camera `key` of `episode`."""
        spans = self.videos[key]
        return self._video(key, int(spans.chunk[episode]), int(spans.file[episode]))

    def video_files(self, key: str, episodes: list[int]) -> list[Path]:
        """Every mp4 that holds camera `key` of some of `episodes`."""
        spans = self.videos[key]
        places = np.unique(np.stack([spans.chunk[episodes], spans.file[episodes]], axis=1), axis=0)
        return [self._video(key, chunk, file) for chunk, file in places.tolist()]

    def _video(self, key: str, chunk: int, file: int) -> Path:
        return self.root / self.info["video_path"].format(video_key=key, chunk_index=chunk, file_index=file)


def load_meta(root: str | Path) -> DatasetMeta:
    """Read `meta/`; the folder is refused in one sentence when it is no LeRobotDataset v3.0."""
    root = Path(root).expanduser()
    info = _load_info(root)
    column = _load_episodes(root, _episode_columns(info))
    starts, stops = column["dataset_from_index"], column["dataset_to_index"]
    if len(starts) == 0 or starts[0] != 0 or (starts[1:] != stops[:-1]).any() or (stops <= starts).any():
        raise ConfigError(f"{root}/meta/episodes leaves gaps between its episodes: copy or record the dataset again")
    chunks_files = np.unique(np.stack([column["data/chunk_index"], column["data/file_index"]], 1), axis=0)
    videos = {
        key: VideoSpans(*(column[f"videos/{key}/{part}"] for part in ("chunk_index", "file_index", "from_timestamp")))
        for key in _video_keys(info)
    }
    return DatasetMeta(
        root=root,
        info=info,
        stats=_load_stats(root, info["features"]),
        tasks=_load_tasks(root),
        starts=starts,
        stops=stops,
        data_files=[root / info["data_path"].format(chunk_index=c, file_index=f) for c, f in chunks_files],
        videos=videos,
    )


def _load_episodes(root: Path, columns: list[str]) -> dict[str, np.ndarray]:
    """The named columns of `meta/episodes`, one row an episode in the order of their numbers."""
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise ConfigError(f"{root} holds no meta/episodes/*/*.parquet: copy the dataset again, with its whole meta/")
    parts = []
    for file in files:
        with naming(file, root):
            table = _read_table(file, columns)
            parts.append([_numbers(table, name) for name in columns])
    values = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(values[0])
    return {name: column[order] for name, column in zip(columns, values, strict=True)}


def _read_table(file: Path, columns: list[str] | None = None) -> pa.Table:
    """Without Arrow's threads, on which `pq.read_table` waits for ever where memory does not suffice to start them."""
    with pq.ParquetFile(file, memory_map=True) as parquet:
        return parquet.read(columns=columns, use_threads=False)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        raise ValueError(f"it has no column {name!r}")
    column = table[name]
    if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError(f"its column {name!r} holds more than numbers")
    return column.to_numpy()


def require(file: Path, root: Path) -> None:
    """Refuse a dataset that lacks `file`."""
    if not file.is_file():
        raise ConfigError(f"{root} lacks {file.relative_to(root)}, which its meta/ asks for: copy the dataset again")


@contextmanager
def naming(file: Path, root: Path) -> Iterator[None]:
    """Whatever goes wrong while `file` of the dataset `root` is read becomes a sentence that names it."""
    require(file, root)
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{file} cannot be read ({lines[0].rstrip('.')}): copy it again from its source") from error


def _load_info(root: Path) -> dict[str, Any]:
    file = root / "meta/info.json"
    if not root.is_dir():
        raise ConfigError(
            f"there is no dataset folder {root}: type dataset.root=<the folder that holds meta/ and data/>"
        )
    if not file.is_file():
        inside = sorted(str(found.parents[1]) for found in root.glob("*/meta/info.json"))
        hint = (
            f"type one of the datasets inside it, such as dataset.root={inside[0]}"
            if inside
            else ("type dataset.root=<the folder that holds meta/ and data/>")
        )
        raise ConfigError(f"{root} is no LeRobotDataset (it has no meta/info.json): {hint}")
    with naming(file, root):
        info = json.loads(file.read_text())
        version = [int(part) for part in info["codebase_version"].removeprefix("v").split(".")]
    if version != [3, 0]:
        raise ConfigError(
            f"{root} is a LeRobotDataset {info['codebase_version']} and {VERSION} is read: "
            + (
                f"convert it with LeRobot's `python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=<name> "
                f"--root={root} --push-to-hub=false`"
                if version < [3]
                else f"give the dataset as {VERSION}, or install a version of lerobot-runner that reads it"
            )
        )
    with naming(file, root):
        _check_info(info)
    return info


def _check_info(info: dict[str, Any]) -> None:
    """Raise `ValueError` where something does not say where a frame lies or what it is."""
    for name in ("features", "fps", "data_path"):
        if name not in info:
            raise ValueError(f"it has no {name!r}")
    if info["fps"] not in POSITIVE:
        raise ValueError(f"its fps is {info['fps']}")
    if not isinstance(info["features"], dict):
        raise ValueError(f"its features are a {type(info['features']).__name__}")
    for key, feature in info["features"].items():
        _check_feature(key, feature)
    _place(info, "data_path", chunk_index=0, file_index=0)
    if _video_keys(info):
        _place(info, "video_path", video_key="", chunk_index=0, file_index=0)


def _check_feature(key: str, feature: Any) -> None:
    if not isinstance(feature, dict) or not {"dtype", "shape"} <= feature.keys():
        raise ValueError(f"its feature {key!r} has no dtype and shape")
    dtype, shape = feature["dtype"], feature["shape"]
    if not isinstance(shape, list) or not all(length in COUNT for length in shape):
        raise ValueError(f"its feature {key!r} has the shape {shape}")
    if dtype in IMAGE_DTYPES and len(shape) != 3:
        raise ValueError(f"its feature {key!r} is an image of the shape {shape}")
    if dtype not in (*IMAGE_DTYPES, *TEXT_DTYPES) and np.dtype(dtype).kind not in "fiub":
        raise ValueError(f"its feature {key!r} has the dtype {dtype}")


def _place(info: dict[str, Any], name: str, **fields: Any) -> str:
    """The path that the template `name` of `info.json` gives."""
    try:
        return info[name].format(**fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"its {name} is {info.get(name)!r}") from error


def _video_keys(info: dict[str, Any]) -> list[str]:
    return [key for key, feature in info["features"].items() if feature["dtype"] == "video"]


def _episode_columns(info: dict[str, Any]) -> list[str]:
    """The columns that locate an episode: its statistics, a hundred columns, are left on disk."""
    columns = ["episode_index", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index"]
    for key in _video_keys(info):
        columns += [f"videos/{key}/{part}" for part in ("chunk_index", "file_index", "from_timestamp")]
    return columns


def _load_stats(root: Path, features: dict[str, Any]) -> Stats:
    file = root / "meta/stats.json"
    with naming(file, root):
        stored = json.loads(file.read_text())
        if not isinstance(stored, dict):
            raise ValueError(f"it is a {type(stored).__name__}")
        return {key: _feature_stats(key, stats, features.get(key)) for key, stats in stored.items()}


def _feature_stats(key: str, stored: Any, feature: dict[str, Any] | None) -> dict[str, np.ndarray]:
    """The statistics of one feature, as many numbers each as the feature has, or one."""
    if not isinstance(stored, dict):
        raise ValueError(f"its statistics of {key!r} are a {type(stored).__name__}")
    stats = {name: np.array(value) for name, value in stored.items()}
    for name, value in stats.items():
        if value.dtype.kind not in "fiub":
            raise ValueError(f"its {name!r} of {key!r} holds more than numbers")
        if feature is None or name == "count" or feature["dtype"] in TEXT_DTYPES:
            continue
        shape = feature["shape"]
        sizes = (shape[0], shape[-1]) if feature["dtype"] in IMAGE_DTYPES else (int(np.prod(shape)),)
        if value.size not in (1, *sizes):
            raise ValueError(f"its {name!r} of {key!r} has {value.size} numbers for the shape {shape}")
    return stats


def _load_tasks(root: Path) -> list[str]:
    file = root / "meta/tasks.parquet"
    with naming(file, root):
        table = _read_table(file)
        names = "task" if "task" in table.column_names else "__index_level_0__"
        rows = zip(table["task_index"].to_pylist(), table[names].to_pylist(), strict=True)
        return [task for _, task in sorted(rows)]
