"""A LeRobotDataset v3.0 read from its folder, a whole batch at a time."""

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import av.error
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from lerobot.data.columns import Images, open_columns
from lerobot.data.meta import TEXT_DTYPES, DatasetMeta, load_meta, require
from lerobot.data.video import DecoderCache
from lerobot.errors import ConfigError

COUNTED = ("index", "episode_index", "frame_index")
"""Columns that the place of a frame tells; `columns` holds the stored `index` against it."""
DECODE_ERRORS = (av.error.FFmpegError, OSError, EOFError, ValueError, SyntaxError)
"""SyntaxError is Pillow's word for a PNG whose chunks are broken."""


class LeRobotDataset(Dataset):
    """Frames of the chosen `episodes`, in the order asked for.

    `delta_indices` names, for a feature, the steps around the current one to read: it then has a time axis,
    (b, t, ...), and `<key>_is_pad` (b, t) marks steps outside the episode, which repeat its first or last frame.
    Images are (c, h, w), float32 in [0, 1], or uint8 with `return_uint8`.
    `keys` limits what is read and decoded; None reads every feature that is a number or an image. Texts are not read.

    Pickling sends the arguments alone, so a worker of a loader opens its own files.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        episodes: Sequence[int] | None = None,
        delta_indices: Mapping[str, Sequence[int]] | None = None,
        return_uint8: bool = False,
        keys: Iterable[str] | None = None,
    ) -> None:
        self.meta = load_meta(root)
        self.episodes = _chosen(episodes, self.meta)
        self.keys = _readable(keys, self.meta)
        self.return_uint8 = return_uint8
        self.deltas = {key: np.asarray(steps, np.int64) for key, steps in (delta_indices or {}).items()}
        _refuse_unknown(self.deltas, self.keys, self.meta)
        self._arguments = {
            "episodes": None if episodes is None else self.episodes,
            "delta_indices": delta_indices and {key: list(steps) for key, steps in delta_indices.items()},
            "return_uint8": return_uint8,
            "keys": self.keys,
        }
        lengths = self.meta.stops[self.episodes] - self.meta.starts[self.episodes]
        self._ends = np.cumsum(lengths)
        self._shift = self.meta.starts[self.episodes] - (self._ends - lengths)
        stored = [key for key in self.keys if key not in (*COUNTED, *self.meta.videos)]
        self._columns = open_columns(self.meta, list(dict.fromkeys([*stored, "task_index"])))
        self._decoders = DecoderCache()
        for key in self.meta.videos.keys() & self.keys:
            for file in self.meta.video_files(key, self.episodes):
                require(file, self.meta.root)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LeRobotDataset, self.meta.root, **self._arguments), ()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, i: int) -> dict[str, Any]:
        """One frame with its windows, and the sentence of its `task`."""
        item: dict[str, Any] = {key: value[0] for key, value in self.__getitems__([i]).items()}
        task = self._read("task_index", self.frame_numbers([i]))
        return item | {"task": self.meta.tasks[int(task)]}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A batch: each feature with the axis b first."""
        frames = self.frame_numbers(indices)
        batch: dict[str, Tensor] = {}
        for key in self.keys:
            rows = frames
            if key in self.deltas:
                rows, is_pad = self._window(frames, self.deltas[key])
                batch[f"{key}_is_pad"] = torch.from_numpy(is_pad)
            batch[key] = self._read(key, rows)
        return batch

    def frame_numbers(self, indices: Sequence[int]) -> np.ndarray:
        """Positions among the chosen episodes to frame numbers in the whole dataset."""
        local = np.asarray(indices, np.int64)
        if len(local) and (local.min() < 0 or local.max() >= len(self)):
            raise IndexError(f"positions run from 0 to {len(self) - 1}")
        return local + self._shift[np.searchsorted(self._ends, local, side="right")]

    def _window(self, frames: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Frame numbers (b, t) of `steps` around `frames`, kept inside the episode, and where they had to be."""
        episodes = self._episode_of(frames)
        first, last = self.meta.starts[episodes, None], self.meta.stops[episodes, None] - 1
        wanted = frames[:, None] + steps
        inside = np.clip(wanted, first, last)
        return inside, inside != wanted

    def _read(self, key: str, frames: np.ndarray) -> Tensor:
        if key == "index":
            return torch.from_numpy(frames)
        if key == "episode_index":
            return torch.from_numpy(self._episode_of(frames))
        if key == "frame_index":
            return torch.from_numpy(frames - self.meta.starts[self._episode_of(frames)])
        column = self._columns.get(key)
        if isinstance(column, np.ndarray):
            return torch.from_numpy(column[frames])
        # Windows of neighbouring samples overlap: each frame is decoded once, and in the order of the file.
        distinct, back = np.unique(frames, return_inverse=True)
        pixels = self._video(key, distinct) if column is None else self._images(key, column, distinct)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)[torch.from_numpy(back.reshape(frames.shape))]
        return images.contiguous() if self.return_uint8 else images.contiguous() / 255

    def _episode_of(self, frames: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.meta.stops, frames, side="right")

    def _images(self, key: str, files: Images, frames: np.ndarray) -> np.ndarray:
        """Decoded images (n, h, w, c) uint8."""
        pixels = np.empty((len(frames), *self.meta.features[key]["shape"]), np.uint8)
        mode = {1: "L", 3: "RGB", 4: "RGBA"}[pixels.shape[-1]]
        for i, frame in enumerate(frames.tolist()):
            try:
                image = Image.open(io.BytesIO(files[frame])).convert(mode)
                _copy(pixels[i], np.asarray(image).reshape(image.height, image.width, -1))
            except DECODE_ERRORS as error:
                episode = int(self._episode_of(np.array(frame)))
                raise _damaged(f"{key} in {self.meta.root}", episode, error) from error
        return pixels

    def _video(self, key: str, frames: np.ndarray) -> np.ndarray:
        """Decoded video frames (n, h, w, c) uint8."""
        pixels = np.empty((len(frames), *self.meta.features[key]["shape"]), np.uint8)
        episodes = self._episode_of(frames)
        times = self.meta.videos[key].start_s[episodes] + (frames - self.meta.starts[episodes]) / self.meta.fps
        for i, (episode, time_s) in enumerate(zip(episodes.tolist(), times.tolist(), strict=True)):
            path = self.meta.video_path(key, episode)
            try:
                _copy(pixels[i], self._decoders.read(path, time_s))
            except DECODE_ERRORS as error:
                raise _damaged(f"{path} at {time_s:.3f} s", episode, error) from error
        return pixels


def _copy(out: np.ndarray, image: np.ndarray) -> None:
    if image.shape != out.shape:
        raise ValueError(f"its images are {image.shape}, not {out.shape} as meta/info.json says")
    out[...] = image


def _damaged(what: str, episode: int, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(
        f"{what} (episode {episode}) cannot be decoded ({reason}): "
        f"copy it again, or leave episode {episode} out of dataset.episodes"
    )


def _chosen(episodes: Sequence[int] | None, meta: DatasetMeta) -> list[int]:
    if episodes is None:
        return list(range(meta.num_episodes))
    chosen = list(episodes)
    if not chosen:
        raise ConfigError("dataset.episodes=[] chooses no episode: type dataset.episodes=null for all of them")
    for episode in chosen:
        if not 0 <= episode < meta.num_episodes:
            raise ConfigError(
                f"dataset.episodes names episode {episode}: {meta.root} has episodes 0 to {meta.num_episodes - 1}"
            )
    if len(set(chosen)) < len(chosen):
        twice = next(episode for episode in chosen if chosen.count(episode) > 1)
        raise ConfigError(f"dataset.episodes names episode {twice} more than once: type it once")
    return chosen


def _readable(keys: Iterable[str] | None, meta: DatasetMeta) -> list[str]:
    if keys is None:
        keys = [key for key, feature in meta.features.items() if feature["dtype"] not in TEXT_DTYPES]
    keys = list(keys)
    _refuse_unknown(keys, meta.features, meta)
    for key in keys:
        feature = meta.features[key]
        stored = feature.get("info") or {}
        if feature["dtype"] in TEXT_DTYPES:
            raise ConfigError(f"{key} of {meta.root} is a text, which no policy reads yet: leave it out")
        if stored.get("is_depth_map") or stored.get("video.is_depth_map"):
            raise ConfigError(f"{key} of {meta.root} is a depth map, which is not read yet: leave it out")
    return keys


def _refuse_unknown(keys: Iterable[str], known: Iterable[str], meta: DatasetMeta) -> None:
    for key in keys:
        if key not in known:
            raise ConfigError(f"{meta.root} has no feature {key!r}: type one of {', '.join(known)}")
