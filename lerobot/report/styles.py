"""How groups are told apart in pictures, by eyes that see colours and by eyes that do not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pvariance
from typing import TYPE_CHECKING, Any

from lerobot.report.groups import NOT_TYPED, SHORT, Group, mean
from lerobot.report.plot import TEXT_COLOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too pale for a line on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
OTHER_COLOR = "#BBBBBB"
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
MARKERS = "osD^vPX"
MOST_SINGLE = 10
"""Groups that are told apart one by one; of more, colour says one thing that differs."""
LEGEND_WIDTH = 96
"""In letters."""


@dataclass(frozen=True)
class Style:
    """How one group is drawn."""

    label: str
    color: str
    line: Any = "-"
    marker: str = ""
    """Empty: one of many, without markers and band."""
    width: float = 1.8
    order: int = 0
    """In the legend."""


def choose_styles(groups: Sequence[Group]) -> list[Style]:
    """A style for each group: its own for few; for many, the colour of what differs most, else of the best ones."""
    if len(groups) <= MOST_SINGLE:
        return [
            Style(group.label, COLORS[i % len(COLORS)], LINES[i % len(LINES)], MARKERS[i % len(MARKERS)], order=i)
            for i, group in enumerate(groups)
        ]
    if (key := _telling_key(groups)) is not None:
        values = sorted({group.setting(key) for group in groups}, key=_in_order)
        name = SHORT.get(key, key)
        return [_thin(f"{name}={value}", values.index(value)) for value in (group.setting(key) for group in groups)]
    best = sorted(range(len(groups)), key=lambda i: _rank(groups[i]))[: len(COLORS)]
    others = Style(f"{len(groups) - len(best)} others", OTHER_COLOR, width=0.8, order=len(COLORS))
    return [_thin(group.label, best.index(i), 1.8) if i in best else others for i, group in enumerate(groups)]


def add_legend(figure: "Figure", styles: Sequence[Style]) -> None:
    """Name what was drawn, below the picture."""
    from matplotlib.lines import Line2D

    entries = {style.label: style for style in sorted(styles, key=lambda style: style.order)}
    labels = [plain(label) for label in entries]
    columns = max(1, min(len(labels), 3, LEGEND_WIDTH // (max(map(len, labels)) + 8)))
    handles = [
        Line2D([], [], color=s.color, linestyle=s.line, marker=s.marker, linewidth=max(1.8, s.width))
        for s in entries.values()
    ]
    look = {"frameon": False, "fontsize": 10.5, "labelcolor": TEXT_COLOR, "handlelength": 3.2}
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, **look)


def plain(label: str) -> str:
    """A label that matplotlib draws as it is: `$` starts mathematics there, and `_` hides an entry."""
    short = label if len(label) <= 60 else f"{label[:57]}..."
    return f"{' ' if short.startswith('_') else ''}{short}".replace("$", r"\$")


def _thin(label: str, number: int, width: float = 1.1) -> Style:
    return Style(label, COLORS[number], LINES[number % len(LINES)], width=width, order=number)


def _rank(group: Group) -> tuple[float, float]:
    """Best first: by success, then by loss."""
    loss, rate = mean(group.losses), group.success_rate
    return (-rate if math.isfinite(rate) else 1.0, loss if math.isfinite(loss) else math.inf)


def _telling_key(groups: Sequence[Group]) -> str | None:
    """The key with as few values as there are colours by which the results differ most; None if each has more."""
    ranked = sorted(groups, key=_rank)
    best, most = None, -1.0
    for key in dict.fromkeys(key for group in groups for key, _ in group.settings if key != "run"):
        places: dict[str, list[float]] = {}
        for place, group in enumerate(ranked):
            places.setdefault(group.setting(key), []).append(place)
        told = pvariance([mean(values) for values in places.values()])
        if 2 <= len(places) <= len(COLORS) and told > most:
            best, most = key, told
    return best


def _in_order(value: str) -> tuple[int, float, str]:
    """Numbers by size, then words; what was not typed first."""
    try:
        return (0, float(value), "")
    except ValueError:
        return (-1 if value == NOT_TYPED else 1, 0.0, value)
