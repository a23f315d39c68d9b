import json
import sys

import pytest
from PIL import Image

from lerobot.errors import ConfigError
from lerobot.report.plot import _spread, plot_run

BASELINES = {"replay": 0.1, "linear": 0.12}


def run_folder(path, *, losses=(1.0, 0.1, 0.05), successes=(0.5, 0.96)):
    rows = [{"step": 100 * i, "time_s": 1.0, "train/loss": loss} for i, loss in enumerate(losses, start=1)]
    for i, rate in enumerate(successes, start=1):
        bounds = {
            "eval/success_low": rate - 0.1,
            "eval/success_high": min(1 - 1e-16, rate + 0.1),
            "eval/n_episodes": 50,
        }
        rows.append({"step": 150 * i, "time_s": 1.0, "eval/success_rate": rate, **bounds})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def colors(picture) -> set:
    return {color for _, color in Image.open(picture).convert("RGB").getcolors(1 << 24)}


def test_a_run_is_drawn_beside_its_baselines(tmp_path):
    had_pyplot = "matplotlib.pyplot" in sys.modules
    plot_run(run_folder(tmp_path), tmp_path / "plots" / "run.png", baselines=BASELINES)

    width, height = Image.open(tmp_path / "plots" / "run.png").size
    assert (width, height) == (1500, 600)
    # policy, first and second baseline
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)} <= colors(tmp_path / "plots" / "run.png")
    assert had_pyplot or "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("losses", [(0.5,), (None, 0.5, None), (None,), (-1.0, 1.0), (1e6, 1e-6), (0.5, 0.4)])
def test_any_losses_can_be_drawn(tmp_path, losses):
    plot_run(run_folder(tmp_path, losses=losses, successes=[1.0]), tmp_path / "a.png", baselines={})

    assert (0x55, 0x55, 0x55) in colors(tmp_path / "a.png") or losses == (None,)


def test_a_run_without_evaluation_is_one_panel(tmp_path):
    plot_run(run_folder(tmp_path, successes=()), tmp_path / "a.png", baselines=BASELINES)

    assert Image.open(tmp_path / "a.png").width == 825
    assert (0x00, 0x72, 0xB2) not in colors(tmp_path / "a.png")


def test_a_folder_without_losses_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no train/loss"):
        plot_run(run_folder(tmp_path, losses=()), tmp_path / "a.png", baselines={})


def test_labels_keep_their_order_and_their_distance():
    placed = _spread([0.98, 0.10, 0.12, 0.11])

    assert placed[0] == 0.98
    assert placed[1:] == pytest.approx([0.10, 0.25, 0.175])  # 0.10, then 0.075 apart in the order of their heights
