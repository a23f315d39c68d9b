"""The picture of one run: its loss, and its success beside that of the baselines."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lerobot.errors import ConfigError
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which the common forms of colour blindness tell apart.
LOSS_COLOR = "#555555"
POLICY_COLOR = "#0072B2"
BASELINE_COLORS = ("#D55E00", "#009E73", "#CC79A7")
TEXT_COLOR = "#222222"
LABEL_GAP = 0.075
"""Least distance of two labels, in success rate."""


def plot_run(run_dir: Path, out_png: Path, *, baselines: Mapping[str, float]) -> None:
    """Draw training loss and, if the run was evaluated, success rate over steps from its `metrics.jsonl`.

    baselines: name to success rate, drawn as level lines.
    """
    from matplotlib.figure import Figure  # A figure of its own: pyplot would keep it, and choose a window system.

    rows = read_metrics(run_dir / METRICS_FILE)
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    evaluations = [row for row in rows if row.get("eval/success_rate") is not None]
    if not losses:
        raise ConfigError(f"{run_dir / METRICS_FILE} has no train/loss: give the folder of a training run")

    figure = Figure(figsize=(10, 4) if evaluations else (5.5, 4), dpi=150, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04)  # type: ignore[union-attr]
    axes = figure.subplots(1, 2 if evaluations else 1, squeeze=False)[0]
    _draw_loss(axes[0], losses)
    if evaluations:
        _draw_success(axes[1], evaluations, baselines)
    last_step = max([step for step, _ in losses] + [row["step"] for row in evaluations])
    for panel in axes:
        tidy(panel, last_step)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png)


def _draw_loss(axes: "Axes", losses: list[tuple[int, float | None]]) -> None:
    steps = [step for step, _ in losses]
    values = [math.nan if value is None else value for _, value in losses]  # null in the file: a gap in the line
    axes.plot(steps, values, color=LOSS_COLOR, linewidth=1.8, marker="o" if len(values) == 1 else None)
    axes.set_title("Training loss", loc="left", color=TEXT_COLOR, fontsize=13)
    fit_scale(axes, values)


def fit_scale(axes: "Axes", values: list[float]) -> None:
    """A logarithmic axis for `values` that span more than ten times, else one from zero; NaN is left out."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    # Most of a curve that falls tenfold lies on the floor of a linear axis.
    if positive and len(positive) == len(finite) and max(positive) > 10 * min(positive):
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=min([0.0, *finite]))


def _draw_success(axes: "Axes", evaluations: list[dict[str, Any]], baselines: Mapping[str, float]) -> None:
    rates = [row["eval/success_rate"] for row in evaluations]
    lines = [("policy", rates[-1], POLICY_COLOR)]
    for (name, rate), color in zip(baselines.items(), BASELINE_COLORS, strict=False):
        axes.axhline(rate, color=color, linewidth=1.8, linestyle=(0, (5, 3)))
        lines.append((name, rate, color))
    # Rounding may leave the interval's end of 50 in 50 a hair below 1.
    below = [max(0.0, row["eval/success_rate"] - row["eval/success_low"]) for row in evaluations]
    above = [max(0.0, row["eval/success_high"] - row["eval/success_rate"]) for row in evaluations]
    steps = [row["step"] for row in evaluations]
    axes.errorbar(steps, rates, yerr=(below, above), color=POLICY_COLOR, linewidth=2.2, marker="o", elinewidth=1.2)

    axes.set_ylim(-0.03, 1.05)
    title = f"Success rate ({evaluations[-1]['eval/n_episodes']} episodes, 95 % interval)"
    axes.set_title(title, loc="left", color=TEXT_COLOR, fontsize=13)
    for (name, rate, color), height in zip(lines, _spread([rate for _, rate, _ in lines]), strict=True):
        place: Any = axes.get_yaxis_transform()  # x in parts of the panel, y in success rate
        axes.text(1.03, height, f"{rate:.2f}  {name}", color=color, transform=place, va="center", fontsize=11.5)


def tidy(axes: "Axes", last_step: float) -> None:
    """Updates along the axis, and as little ink as shows the numbers."""
    axes.set_xlim(0, last_step * 1.02)
    axes.set_xlabel("update", color=TEXT_COLOR, fontsize=11)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(colors=TEXT_COLOR, labelsize=10.5, length=0)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#BBBBBB")


def _spread(heights: list[float]) -> list[float]:
    """Where labels go so that each is near its height and no two overlap."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + LABEL_GAP)
    return placed
