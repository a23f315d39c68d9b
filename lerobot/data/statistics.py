"""Minimum, maximum, mean, deviation and quantiles of every feature, in the layout of LeRobot's `stats.json`.

Quantiles of one episode are exact. Those of several are the mean of the episodes' own, weighted by their length, as
LeRobot has them: an approximation, good where episodes resemble each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lerobot.data.meta import IMAGE_DTYPES, TEXT_DTYPES, Stats

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


def episode_stats(episode: Mapping[str, np.ndarray], features: Mapping[str, Mapping[str, Any]]) -> Stats:
    """Statistics of one episode; its arrays are (t, ...), images (t, h, w, c) uint8. Texts have none."""
    stats: Stats = {}
    for key, values in episode.items():
        dtype = features[key]["dtype"]
        if dtype in IMAGE_DTYPES:
            stats[key] = image_stats(values)
        elif dtype not in TEXT_DTYPES:
            stats[key] = feature_stats(values)
    return stats


def feature_stats(values: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics over the first axis, in float64; a scalar feature keeps the shape (1,)."""
    columns = values.astype(np.float64).reshape(len(values), *(values.shape[1:] or (1,)))
    quantiles = np.quantile(columns, list(QUANTILES.values()), axis=0)
    return {
        "min": columns.min(axis=0),
        "max": columns.max(axis=0),
        "mean": columns.mean(axis=0),
        "std": columns.std(axis=0),
        "count": np.array([len(columns)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def image_stats(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics of each channel of (t, h, w, c) uint8 frames, as (c, 1, 1) in [0, 1].

    They come from a histogram of the 256 levels, so they are exact and nothing overflows. `count` is in frames.
    """
    channels = frames.shape[-1]
    histogram = np.zeros((channels, 256), np.int64)
    for frame in frames:
        for channel in range(channels):
            histogram[channel] += np.bincount(frame[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    total = histogram.sum(axis=1)
    mean = histogram @ levels / total
    variance = (histogram * (levels - mean[:, None]) ** 2).sum(axis=1) / total
    stats = {
        "min": levels[np.argmax(histogram > 0, axis=1)],
        "max": levels[255 - np.argmax(histogram[:, ::-1] > 0, axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: _histogram_quantile(histogram, levels, q) for name, q in QUANTILES.items()},
    }
    return {name: value.reshape(channels, 1, 1) for name, value in stats.items()} | {"count": np.array([len(frames)])}


def aggregate(parts: Sequence[Stats]) -> Stats:
    """Statistics of several episodes or datasets together: exact but for the quantiles."""
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _aggregate_feature([part[key] for part in parts if key in part]) for key in keys}


def _histogram_quantile(histogram: np.ndarray, levels: np.ndarray, q: float) -> np.ndarray:
    """The quantile between the two nearest values, as `np.quantile` takes it."""
    cumulated = histogram.cumsum(axis=1)
    position = q * (cumulated[:, -1] - 1)
    below, above = np.floor(position), np.ceil(position)
    low = levels[(cumulated <= below[:, None]).sum(axis=1)]
    high = levels[(cumulated <= above[:, None]).sum(axis=1)]
    return low + (high - low) * (position - below)


def _aggregate_feature(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    count = np.stack([part["count"] for part in parts])
    weight = (count / count.sum()).reshape(-1, *(1,) * parts[0]["mean"].ndim)

    def mean(values: list[np.ndarray]) -> np.ndarray:
        return (np.stack(values) * weight).sum(axis=0)

    total = mean([part["mean"] for part in parts])
    variance = mean([part["std"] ** 2 + (part["mean"] - total) ** 2 for part in parts])
    return {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": total,
        "std": np.sqrt(variance),
        "count": count.sum(axis=0),
        **{name: mean([part[name] for part in parts]) for name in QUANTILES if all(name in part for part in parts)},
    }
