"""Ends a run before a scheduler does, with time for its last checkpoint. Imports no torch."""

import logging
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lerobot.errors import ConfigError

log = logging.getLogger(__name__)

FLOOR_S = 10.0
"""For what nothing measures: the last log row, the picture, charts that are still sent."""
FIRST_SAVE_S = 10.0
"""What a checkpoint is taken to need until one was written."""
FACTOR = 2.0
"""On what was measured: the next one may be slower than any before."""
SHORTEST_S = 2 * FLOOR_S + FACTOR * FIRST_SAVE_S
"""With less, every job would end before its first update."""

_UNITS = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")
clock = time.monotonic
COMMAND_BEGAN = "LEROBOT_COMMAND_BEGAN"
"""Variable that tells a process of a run when the command began that started it."""


def seconds(value: Any) -> float:
    """A duration in seconds: a number, `3h30m`, `H:MM:SS` or SLURM's `D-HH:MM:SS`; infinity for None."""
    if value is None:
        return math.inf
    found = math.nan
    if isinstance(value, str) and (match := _UNITS.fullmatch(value.strip()) or _CLOCK.fullmatch(value.strip())):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        found = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    elif not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            found = float(value)
    if not 0 < found < math.inf:
        raise ConfigError(f"time_limit={value}: type seconds, or a duration such as 45m, 3h30m, 3:30:00 or 1-12:00:00")
    return found


def process_age_s() -> float:
    """How long the command has been there, its imports included."""
    import psutil

    return max(0.0, time.time() - float(os.environ.get(COMMAND_BEGAN) or psutil.Process().create_time()))


class Deadline:
    """When a run has to write its last checkpoint to be done within its time limit; never without one.

    It is asked once an update, and told how long things took. It says "now" where less is left than `FACTOR` times the
    longest update and the longest save so far, and `FLOOR_S` on top.
    """

    def __init__(self, limit: Any = None) -> None:
        self.limit = limit
        self._ends = math.inf if limit is None else clock() - process_age_s() + seconds(limit)
        self._longest: dict[str, float] = {}
        self._has_come = False

    def took(self, what: str, seconds: float) -> None:
        """Take in how long an `update`, a `save` or an `evaluation` took."""
        self._longest[what] = max(self._longest.get(what, 0.0), seconds)

    def has_come(self, ahead_s: float = 0.0) -> bool:
        """Whether the run has to end, `ahead_s` from now at the latest; once it had to, it has to."""
        if not self._has_come and self._left_s() < ahead_s + self._reserve_s():
            self._has_come = True
            log.warning("time_limit=%s: stopping, %.0f s before it is over", self.limit, self._left_s())
        return self._has_come

    def puts_off_evaluation(self) -> bool:
        """Whether an evaluation as long as the longest so far would not fit: the run's next part begins with it."""
        needs = self._longest.get("evaluation", 0.0)
        fits = not self._has_come and self._left_s() >= needs + self._episodes_s() + self._reserve_s()
        if not fits:
            self._has_come = True
            before = f", which took {needs:.0f} s before," if needs else ""
            log.warning(
                "time_limit=%s: %.0f s are left and the evaluation%s is left to the next job, which begins with it",
                self.limit, self._left_s(), before,
            )  # fmt: skip
        return not fits

    def watching(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """`should_stop` for an evaluation, which asks now and then: it says yes early enough for the next time."""
        asked = clock()

        def ask() -> bool:
            nonlocal asked
            asked, before = clock(), asked
            self.took("episodes", asked - before)
            return should_stop() or self.has_come(ahead_s=self._episodes_s())

        return ask

    def _episodes_s(self) -> float:
        """What an evaluation takes at most from one question to the next."""
        return FACTOR * self._longest.get("episodes", 0.0)

    def _left_s(self) -> float:
        return self._ends - clock()

    def _reserve_s(self) -> float:
        longest = self._longest
        return FACTOR * (longest.get("update", 0.0) + longest.get("save", FIRST_SAVE_S)) + FLOOR_S
