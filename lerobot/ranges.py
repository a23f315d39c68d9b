"""Ranges of settings, checked before anything is built. Imports nothing heavy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lerobot.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`, as a test and as the words that ask for one."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Leaves out `low`."""
    below: bool = False
    """Leaves out `high`."""
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        over = value > self.low if self.above else value >= self.low
        under = value < self.high if self.below else value <= self.high
        return over and under and math.isfinite(value)

    def __str__(self) -> str:
        words = "a whole number" if self.whole else "a finite number"
        low = f" {'above' if self.above else 'of at least'} {self.low:g}" if self.low > -math.inf else ""
        high = f"{'below' if self.below else 'at most'} {self.high:g}" if self.high < math.inf else ""
        return f"{words}{low}{' and ' if low and high else ' ' if high else ''}{high}"


COUNT = Range(1, whole=True)
COUNT_OR_NONE = Range(0, whole=True)
POSITIVE = Range(0, above=True)
NOT_NEGATIVE = Range(0)
FRACTION = Range(0, 1)
BELOW_ONE = Range(0, 1, below=True)
FINITE = Range()


def check_ranges(group: str, settings: Any, ranges: Mapping[str, Range]) -> None:
    """Refuse the first of `settings` that is outside its range, as `<group>.<name>`. Raises `ConfigError`."""
    for name, allowed in ranges.items():
        value = getattr(settings, name)
        if value not in allowed:
            raise ConfigError(f"{group}{'.' if group else ''}{name}={value}: type {allowed}")
