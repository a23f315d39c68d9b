"""How the jobs of a sweep are made and run. Imports no torch."""

from dataclasses import dataclass

from lerobot.errors import ConfigError


@dataclass
class SweepConfig:
    """Of `-m` lines only."""

    mode: str = "cross"
    """cross: every combination of the values. zip: the first of each list together, the second of each, and so on."""
    on_error: str = "continue"
    """stop: no job begins after one that failed. Refused jobs have not failed."""
    isolate: str | None = None
    """process: each job in a process of its own, so that a crash costs one job. None: one after the other in this."""
    dry_run: bool = False
    """List the jobs and what would be refused; run nothing."""
    estimate: bool = False
    """A dry run that tries 20 updates of each distinct kind of job and says time, memory and disk."""
    reevaluate: bool = True
    """At the end, judge the best policy from starts that it was not chosen by; where jobs were evaluated."""
    resume: str | None = None
    """The folder of a sweep to go on with; nothing else need be typed."""

    def __post_init__(self) -> None:
        known = {"mode": ("cross", "zip"), "on_error": ("continue", "stop"), "isolate": ("process", None)}
        for key, allowed in known.items():
            if (value := getattr(self, key)) not in allowed:
                words = " or ".join(f"sweep.{key}={'null' if word is None else word}" for word in allowed)
                raise ConfigError(f"sweep.{key}={value}: type {words}")
