"""Statistics agree with LeRobot's where those are exact, and with numpy where LeRobot estimates."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lerobot.data.reader import LeRobotDataset
from lerobot.data.statistics import QUANTILES, aggregate, episode_stats, feature_stats, image_stats

DATA = Path(__file__).parents[1] / "data"
DATASETS = sorted(path.name for path in DATA.iterdir() if (path / "meta").is_dir())


def stored_episode_stats(root):
    """What LeRobot wrote beside each episode."""
    table = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")
    parts = [{} for _ in range(table.num_rows)]
    for column in table.column_names:
        if column.startswith("stats/"):
            _, key, name = column.split("/")
            for part, value in zip(parts, table[column].to_pylist(), strict=True):
                part.setdefault(key, {})[name] = np.array(value)
    return parts


@pytest.mark.parametrize("name", DATASETS)
def test_episodes_add_up_to_what_lerobot_wrote_for_the_whole(name):
    stored = json.loads((DATA / name / "meta/stats.json").read_text())
    added = aggregate(stored_episode_stats(DATA / name))
    assert added.keys() == stored.keys()
    for key, stats in stored.items():
        for stat, value in stats.items():
            assert added[key][stat].shape == np.shape(value)
            np.testing.assert_allclose(added[key][stat], value, rtol=1e-7, atol=1e-12, err_msg=f"{key} {stat}")


@pytest.mark.parametrize("name", ["metaworld_push_state", "metaworld_multi2_cam2"])
def test_what_is_computed_from_the_numbers_is_what_lerobot_computed(name):
    dataset = LeRobotDataset(DATA / name, keys=["observation.state", "action", "next.reward", "next.success", "index"])
    meta, whole = dataset.meta, []
    for start, stop in zip(meta.starts, meta.stops, strict=True):
        episode = {key: value.numpy() for key, value in dataset.__getitems__(range(start, stop)).items()}
        whole.append(episode_stats(episode, meta.features))
    for key, stats in aggregate(whole).items():
        for stat in ("min", "max", "mean", "count"):
            np.testing.assert_allclose(
                stats[stat], meta.stats[key][stat], rtol=1e-6, atol=1e-8, err_msg=f"{key} {stat}"
            )
        # LeRobot's deviation comes from a running sum in float32.
        np.testing.assert_allclose(stats["std"], meta.stats[key]["std"], rtol=5e-5, atol=1e-8, err_msg=key)


def test_parts_add_up_to_the_statistics_of_the_whole():
    values = np.random.default_rng(0).normal(5.0, 2.0, (90, 3)).astype(np.float32)
    parts = [{"x": feature_stats(part)} for part in (values[:7], values[7:50], values[50:])]
    whole, added = feature_stats(values), aggregate(parts)["x"]
    for stat in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(added[stat], whole[stat], rtol=1e-12)


def test_a_scalar_feature_keeps_one_dimension():
    """DATA-07."""
    stats = feature_stats(np.array([True, False, True, True]))
    assert {value.shape for value in stats.values()} == {(1,)}
    assert (stats["mean"][0], stats["min"][0], stats["count"][0]) == (0.75, 0.0, 4)


def test_large_offsets_lose_no_precision():
    values = (1e6 + np.random.default_rng(0).normal(0.0, 1e-2, 4000)).astype(np.float64)
    assert feature_stats(values)["std"][0] == pytest.approx(1e-2, rel=0.05)


def test_a_bright_image_does_not_overflow():
    """DATA-07."""
    stats = image_stats(np.full((20, 32, 32, 3), 200, np.uint8))
    np.testing.assert_allclose(stats["mean"], np.full((3, 1, 1), 200 / 255), rtol=1e-12)
    np.testing.assert_allclose(stats["std"], np.zeros((3, 1, 1)), atol=1e-12)
    assert stats["count"].tolist() == [20]


def test_image_statistics_are_those_of_the_pixels():
    frames = np.random.default_rng(0).integers(0, 200, (6, 16, 20, 3), dtype=np.uint8)
    pixels = frames.reshape(-1, 3) / 255
    stats = image_stats(frames)
    expected = {"min": pixels.min(0), "max": pixels.max(0), "mean": pixels.mean(0), "std": pixels.std(0)}
    expected |= {name: np.quantile(pixels, q, axis=0) for name, q in QUANTILES.items()}
    for stat, value in expected.items():
        assert stats[stat].shape == (3, 1, 1)
        np.testing.assert_allclose(stats[stat].ravel(), value, rtol=1e-9, err_msg=stat)
