"""The columns of `data/`: decoded into memory when small, else once into a cache that later opens map.

Parquet is compressed, so a row cannot be read in place. A mapped cache opens at once whatever the size, and the
workers of a loader share its pages.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot.data.meta import DatasetMeta, naming, require
from lerobot.errors import ConfigError

MEMORY_LIMIT = 128 * 2**20
"""Decoded bytes above which columns are mapped from the cache."""
CACHE_VERSION = 1


class Images:
    """Encoded image files one behind another; `images[i]` are the bytes of frame i."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        self.data = data
        self.offsets = offsets

    def __getitem__(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()


Column = np.ndarray | Images


def open_columns(meta: DatasetMeta, keys: list[str]) -> dict[str, Column]:
    """The features `keys`, each with one row a frame: numbers as (n, ...) arrays, images as `Images`.

    Floats become float32, integers int64. A feature of shape (1,) is (n,).
    """
    for file in meta.data_files:
        require(file, meta.root)
    if _decoded_bytes(meta, keys) <= MEMORY_LIMIT:
        sinks = _decode(meta, {key: _sink(meta, key) for key in keys})
        return {key: sink.column() for key, sink in sinks.items()}
    folder = cache_folder(meta)
    try:
        _fill_cache(meta, keys, folder)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot hold the decoded columns of {meta.root} ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder that can be written and has room"
        ) from error
    try:
        return {key: _map(folder, key, meta) for key in keys}
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{folder} holds torn columns of {meta.root} ({error}): remove that folder") from error


def cache_folder(meta: DatasetMeta) -> Path:
    """Where the decoded columns of this very state of the dataset lie."""
    root = str(meta.root.resolve())
    files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in meta.data_files]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lerobot-runner/columns"
    return base / _digest(root) / _digest((CACHE_VERSION, files))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _fill_cache(meta: DatasetMeta, keys: list[str], folder: Path) -> None:
    """Decode what `folder` lacks. Each file is renamed into place when whole, so a killed run leaves no torn one."""
    missing = [key for key in keys if not (folder / f"{key}.npy").exists()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.parent.iterdir()) - {folder}:
        shutil.rmtree(old, ignore_errors=True)
    part = folder / f"part-{os.getpid()}"
    part.mkdir(exist_ok=True)
    try:
        for sink in _decode(meta, {key: _sink(meta, key, part) for key in missing}).values():
            sink.close()
        for file in sorted(part.iterdir()):  # `.bin` before the `.npy` that says a column is there
            file.rename(folder / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _map(folder: Path, key: str, meta: DatasetMeta) -> Column:
    # Copy-on-write: torch wants writable memory, the file stays as it is.
    rows = np.load(folder / f"{key}.npy", mmap_mode="c")
    if meta.features[key]["dtype"] != "image":
        return np.asarray(rows)
    data = np.asarray(np.memmap(folder / f"{key}.bin", np.uint8, "r"))
    if len(data) != rows[-1]:
        raise ValueError(f"{key}.bin has {len(data)} of {rows[-1]} bytes")
    return Images(data, np.asarray(rows))


class _Numbers:
    """Collects a numeric column in memory, or in `folder/<key>.npy`."""

    def __init__(self, key: str, shape: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> None:
        if folder is None:
            self.rows = np.empty(shape, dtype)
        else:
            self.rows = np.lib.format.open_memmap(folder / f"{key}.npy", "w+", dtype, shape)

    def add(self, values: pa.Array, at: int) -> None:
        rows = len(values)
        while pa.types.is_nested(values.type):
            values = values.flatten()
        if values.null_count:
            raise ValueError("a value is missing")
        self.rows[at : at + rows] = values.to_numpy(zero_copy_only=False).reshape(rows, *self.rows.shape[1:])

    def column(self) -> Column:
        return self.rows

    def close(self) -> None:
        if isinstance(self.rows, np.memmap):
            self.rows.flush()


class _ImageFiles:
    """Collects an image column in memory, or in `folder/<key>.bin` with its offsets in `folder/<key>.npy`."""

    def __init__(self, key: str, frames: int, folder: Path | None) -> None:
        self.offsets = np.zeros(frames + 1, np.int64)
        self.index = folder and folder / f"{key}.npy"
        self.data: BinaryIO = (folder / f"{key}.bin").open("wb") if folder else io.BytesIO()

    def add(self, values: Any, at: int) -> None:
        files = values.field("bytes")
        if files.null_count:
            raise ValueError("an image is stored as a path, not as bytes")
        for i, file in enumerate(files, at):
            self.offsets[i + 1] = self.offsets[i] + self.data.write(file.as_buffer())

    def column(self) -> Column:
        assert isinstance(self.data, io.BytesIO)
        return Images(np.frombuffer(self.data.getbuffer(), np.uint8), self.offsets)

    def close(self) -> None:
        self.data.close()
        np.save(str(self.index), self.offsets)


_Sink = _Numbers | _ImageFiles


def _sink(meta: DatasetMeta, key: str, folder: Path | None = None) -> _Sink:
    feature = meta.features[key]
    if feature["dtype"] == "image":
        return _ImageFiles(key, meta.num_frames, folder)
    return _Numbers(key, (meta.num_frames, *row_shape(feature)), row_dtype(feature), folder)


def row_shape(feature: dict[str, Any]) -> tuple[int, ...]:
    """The shape of one frame's value; (1,) is a scalar, as LeRobot stores it."""
    shape = tuple(feature["shape"])
    return () if shape == (1,) else shape


def row_dtype(feature: dict[str, Any]) -> np.dtype:
    """float32, int64 or bool: what LeRobot makes of a stored number."""
    return np.dtype({"f": np.float32, "b": np.bool_}.get(np.dtype(feature["dtype"]).kind, np.int64))


def _decode(meta: DatasetMeta, sinks: dict[str, _Sink]) -> dict[str, _Sink]:
    """Run every data file into `sinks`, and hold the `index` column against the order of the rows."""
    at = 0
    for file, batch in _batches(meta, list(sinks)):
        with naming(file, meta.root):
            for key, sink in sinks.items():
                sink.add(batch[key], at)
            if (batch["index"].to_numpy() != np.arange(at, at + len(batch))).any():
                raise ValueError(f"its frames do not follow frame {at} in order")
        at += len(batch)
    if at != meta.num_frames:
        raise ConfigError(
            f"{meta.root} holds {at} frames and its meta/ names {meta.num_frames}: copy the dataset again"
        )
    return sinks


def _batches(meta: DatasetMeta, keys: list[str]) -> Iterator[tuple[Path, pa.RecordBatch]]:
    has_images = any(meta.features[key]["dtype"] == "image" for key in keys)
    rows, columns = (256 if has_images else 65_536), list(dict.fromkeys([*keys, "index"]))
    for file in meta.data_files:
        with naming(file, meta.root), pq.ParquetFile(file, memory_map=True) as parquet:
            yield from ((file, batch) for batch in parquet.iter_batches(rows, columns=columns))


def _decoded_bytes(meta: DatasetMeta, keys: list[str]) -> int:
    numbers = [meta.features[key] for key in keys if meta.features[key]["dtype"] != "image"]
    total = sum(int(np.prod(row_shape(feature))) * row_dtype(feature).itemsize for feature in numbers) * meta.num_frames
    if len(numbers) < len(keys):
        total += sum(file.stat().st_size for file in meta.data_files)
    return total
