"""Pictures that compare runs: one line a group, its seeds as a band around it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot.envs.result import wilson
from lerobot.report.groups import Group
from lerobot.report.plot import TEXT_COLOR, fit_scale, tidy
from lerobot.report.record import Record
from lerobot.report.styles import Style, add_legend, choose_styles, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DOTS = 20
POINTS = 300
"""Of a line; more cannot be seen."""
MARKS = 8
"""Markers on a line."""

Drawn = Sequence[tuple[Group, Style]]
Curve = Sequence[tuple[int, float]]


def draw_all(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draw what the runs have into `folder`."""
    from matplotlib.figure import Figure  # A figure of its own: pyplot would keep it, and choose a window system.

    drawn = [group for group in groups if any(run.rows for run in group.runs)]
    pairs = list(zip(drawn, choose_styles(drawn), strict=True))
    paths = []
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(8, 4.8), dpi=130, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr]
        styles = draw(figure.subplots(), pairs)
        if not styles:
            (folder / name).unlink(missing_ok=True)  # of an earlier report, which other runs were in
            continue
        if draw is not _success:
            add_legend(figure, styles)
        figure.savefig(folder / name)
        paths.append(folder / name)
    return paths


def _loss(axes: "Axes", pairs: Drawn) -> list[Style]:
    styles = _curves(axes, pairs, "train/loss")
    fit_scale(axes, [value for group, _ in pairs for run in group.runs for _, value in run.series("train/loss")])
    ends = [
        _mark_end(axes, run.series("train/loss"), style)
        for group, style in pairs
        for run in group.runs
    ]  # fmt: skip
    _title(axes, "Training loss (x: not finite from there)" if any(ends) else "Training loss")
    return styles


def _mark_end(axes: "Axes", curve: Curve, style: Style) -> bool:
    """Mark where a curve stopped being finite for good."""
    finite = [point for point in curve if math.isfinite(point[1])]
    if not finite or finite[-1] == curve[-1]:
        return False
    axes.plot(*finite[-1], marker="x", markersize=11, markeredgewidth=2.5, color=style.color, zorder=3)
    return True


def _scale(axes: "Axes", pairs: Drawn) -> list[Style]:
    from matplotlib.ticker import MaxNLocator

    styles = _curves(
        axes, pairs, "train/scale", hold=True, of=lambda scale: math.log2(scale) if scale > 0 else math.nan
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter("$2^{{{x:.0f}}}$")
    _title(axes, "Loss scale")
    return styles


def _skipped(axes: "Axes", pairs: Drawn) -> list[Style]:
    from matplotlib.ticker import MaxNLocator

    styles = _curves(axes, pairs, "train/skipped_steps", hold=True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_ylim(bottom=0)
    _title(axes, "Skipped updates, running total")
    return styles


def _curves(
    axes: "Axes", pairs: Drawn, key: str, *, hold: bool = False, of: Callable[[float], float] = float
) -> list[Style]:
    """A line of `of(value)` for each group that has `key`, and a band of one deviation where it has several seeds."""
    styles, last = [], 1.0
    for number, (group, style) in enumerate(pairs):
        curves = [[(step, of(value)) for step, value in run.series(key)] for run in group.runs]
        curves = [curve for curve in curves if any(math.isfinite(value) for _, value in curve)]
        if not curves:
            continue
        steps, middle, spread = band(curves, hold=hold)
        styles.append(style)
        last = max(last, steps[-1])
        _line(axes, steps, middle, style, number / len(pairs), hold=hold)
        if len(curves) > 1 and style.marker:
            shade = {"color": style.color, "alpha": 0.15, "linewidth": 0, "step": "post" if hold else None}
            axes.fill_between(steps, middle - spread, middle + spread, **shade)
    tidy(axes, last)
    return styles


def _line(axes: "Axes", x: Any, y: Any, style: Style, shift: float, *, hold: bool = False) -> None:
    """One line; its markers stand `shift` of their distance further, so that equal lines show both theirs."""
    apart = max(1, len(x) // MARKS)
    axes.plot(
        x, y, color=style.color, linestyle=style.line, linewidth=style.width, markersize=6,
        marker=style.marker or ("o" if len(x) == 1 else ""), markevery=(int(shift * apart), apart),
        drawstyle="steps-post" if hold else "default",
    )  # fmt: skip


def band(curves: Sequence[Curve], *, hold: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean and deviation over curves, `(n,)` each; a curve enters where it was finite, and not beyond its end.

    hold: a value holds until the next one, rather than moving there in a line.
    """
    steps = np.unique([step for curve in curves for step, _ in curve]).astype(float)
    rows = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(rows, curves, strict=True):
        x, y = np.array(sorted(curve, key=lambda point: point[0]), dtype=float).T
        inside = (steps >= x[0]) & (steps <= x[-1])
        held = y[np.searchsorted(x, steps[inside], side="right") - 1]
        row[inside] = held if hold else np.interp(steps[inside], x, y)
    known = np.isfinite(rows)
    count = np.maximum(known.sum(axis=0), 1)
    middle = np.where(known, rows, 0).sum(axis=0) / count
    spread = np.sqrt((np.where(known, rows - middle, 0) ** 2).sum(axis=0) / np.maximum(count - 1, 1))
    middle[~known.any(axis=0)] = np.nan  # a gap in the line
    return _thinned(steps), _thinned(middle), _thinned(spread)


def _thinned(values: np.ndarray) -> np.ndarray:
    """At most `POINTS` and one: means of as many neighbours each, up to the end; the first one is kept."""
    size = math.ceil(len(values) / POINTS)
    if size == 1:
        return values
    rest = values[len(values) % size :].reshape(-1, size).mean(axis=1)
    return np.array([values[0], *rest])


def _success(axes: "Axes", pairs: Drawn) -> list[Style]:
    """The last evaluation of each group, best on top, with its interval."""
    judged = sorted((pair for pair in pairs if pair[0].outcome[1]), key=lambda pair: -pair[0].success_rate)
    if not judged:
        return []
    shown = judged[:MOST_DOTS]
    for height, (group, style) in enumerate(shown):
        axes.plot(group.interval, [height, height], color=style.color, linewidth=2.2, solid_capstyle="butt")
        axes.plot(group.success_rate, height, color=style.color, marker=style.marker or "o", markersize=8)
    axes.set_yticks(range(len(shown)), [f"{plain(group.label)}, n={group.outcome[1]}" for group, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.figure.set_figheight(1.5 + 0.4 * max(2, len(shown)))  # type: ignore[union-attr]
    tidy(axes, 1)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("share of episodes solved, with 95 % interval", color=TEXT_COLOR, fontsize=11)
    axes.xaxis.set_major_formatter("{x:.1f}")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.8)
    _title(axes, "Success rate" if shown == judged else f"Success rate, the best {len(shown)} of {len(judged)}")
    return [style for _, style in shown]


def _success_curve(axes: "Axes", pairs: Drawn) -> list[Style]:
    """Pooled over seeds at each evaluation; nothing where each run was evaluated once."""
    found = [(style, sorted(_evaluations(group.runs).items())) for group, style in pairs]
    found = [(style, points) for style, points in found if points]
    if max((len(points) for _, points in found), default=0) < 2:
        return []
    for number, (style, points) in enumerate(found):
        steps = [step for step, _ in points]
        _line(axes, steps, [solved / n for _, (solved, n) in points], style, number / len(found))
        if style.marker:
            low, high = zip(*(wilson(solved, n) for _, (solved, n) in points), strict=True)
            axes.fill_between(steps, low, high, color=style.color, alpha=0.12, linewidth=0)
    tidy(axes, max(points[-1][0] for _, points in found))
    axes.set_ylim(-0.03, 1.03)
    _title(axes, "Success rate over training, with 95 % interval")
    return [style for style, _ in found]


def _evaluations(runs: Sequence[Record]) -> dict[int, tuple[int, int]]:
    """Step to solved and all episodes of the runs."""
    found: dict[int, tuple[int, int]] = {}
    for run in runs:
        counts = dict(run.series("eval/n_episodes"))
        for step, rate in run.series("eval/success_rate"):
            n = counts.get(step, math.nan)
            if math.isfinite(rate) and n > 0:
                solved, before = found.get(step, (0, 0))
                found[step] = (solved + round(rate * n), before + int(n))
    return found


def _title(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", color=TEXT_COLOR, fontsize=14)


PICTURES: dict[str, Callable[["Axes", Drawn], list[Style]]] = {
    "success.png": _success,
    "success_curve.png": _success_curve,
    "loss.png": _loss,
    "scale.png": _scale,
    "skipped.png": _skipped,
}
