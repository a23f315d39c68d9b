"""What a search was typed to be: its settings, and which values it chooses from. Imports optuna when read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import OmegaConf

from lerobot.cli import translate
from lerobot.errors import ConfigError
from lerobot.ranges import COUNT, COUNT_OR_NONE, POSITIVE, check_ranges
from lerobot.sweep.jobs import Job, is_about_the_sweep, short_name, spelled

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

WHERE = "hydra.sweeper"
PLACE = ("policy.device", "accelerator.mixed_precision")


@dataclass
class Settings:
    """What `conf/hydra/sweeper/optuna.yaml` holds, with what each key is for."""

    metric: str
    direction: Any
    take: str
    n_trials: int
    n_jobs: int
    storage: str
    study_name: str
    seed: int
    pruning: bool
    startup_trials: int
    poll_s: float
    params: dict[str, str] | None

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Settings":
        """Settings of the sweeper's node; a key that is none of them is refused."""
        names = [item.name for item in fields(cls)]
        if unknown := sorted(given.keys() - set(names)):
            raise ConfigError(f"{WHERE}.{unknown[0]} is no setting of the search: type one of {', '.join(names)}")
        return cls(**{**given, "params": dict(given["params"] or {})})

    def __post_init__(self) -> None:
        for name, words in (("direction", ("maximize", "minimize")), ("take", ("last", "best"))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{WHERE}.{name}={getattr(self, name)}: type {' or '.join(words)}")
        numbers = {"n_trials": COUNT, "n_jobs": COUNT, "seed": COUNT_OR_NONE}
        check_ranges(WHERE, self, {**numbers, "startup_trials": COUNT_OR_NONE, "poll_s": POSITIVE})

    def value(self, rows: Sequence[dict[str, Any]]) -> float | None:
        """What a job with these rows came to; None where it has no finite value."""
        found = [row[self.metric] for row in rows if isinstance(row.get(self.metric), int | float)]
        found = [value for value in found if math.isfinite(value)]
        if not found or self.take == "last":
            return found[-1] if found else None
        return max(found) if self.direction == "maximize" else min(found)


@dataclass
class Space:
    """What is the same in every job, and what is searched."""

    fixed: list[str] = field(default_factory=list)
    """Overrides."""
    searched: dict[str, "BaseDistribution"] = field(default_factory=dict)
    config: Any = None
    """What all jobs share, as composed."""

    def overrides(self, trial: "Trial") -> list[str]:
        """The overrides of one job."""
        return [*self.fixed, *(f"{key}={value}" for key, value in trial.params.items())]

    def job(self, trial: "Trial") -> Job:
        """The job that a trial is, with its folder, named by what was chosen for it."""
        differs = [spelled(f"{key}={_short(value)}") for key, value in trial.params.items()]
        place = [trial.params.get(key) or OmegaConf.select(self.config, key) for key in PLACE]
        own = [word for word in self.overrides(trial) if not is_about_the_sweep(word)]
        return Job(trial.number, f"{trial.number}_{short_name(differs, *map(str, place))}", own, differs)


def _short(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def read_space(settings: Settings, arguments: Sequence[str], parser: OverridesParser) -> Space:
    """Sort overrides, those of `settings.params` first, into fixed and searched; the last of a key stands."""
    listed = translate(["-m", *(f"{key}={value}" for key, value in (settings.params or {}).items())]).overrides()
    space = Space()
    for override in parser.parse_overrides([*listed, *arguments]):
        key = override.get_key_element()
        space.fixed = [word for word in space.fixed if word.partition("=")[0] != key]
        space.searched.pop(key, None)
        if override.is_sweep_override():
            space.searched[key] = _distribution(override)
        else:
            space.fixed.append(f"{key}={override.get_value_element_as_str()}")
    if not space.searched:
        raise ConfigError("nothing is searched: type a space, 'policy.optimizer_lr=tag(log,interval(1e-5,1e-2))'")
    return space


def _distribution(override: Override) -> "BaseDistribution":
    """Optuna's name for a sweep of Hydra's grammar."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep: Any = override.value()
    if isinstance(sweep, IntervalSweep):
        kind = IntDistribution if isinstance(sweep.start, int) else FloatDistribution
        try:
            return kind(sweep.start, sweep.end, log="log" in sweep.tags)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"{override.input_line} is no space ({error}): type interval(<low>,<high>)") from error
    if isinstance(sweep, RangeSweep):
        start, stop, step = sweep.start, sweep.stop, sweep.step
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and start < stop and step > 0:
            last = range(start, stop, step)[-1]  # the end is left out, as in Python
            return IntDistribution(start, last, step=step, log="log" in sweep.tags)
    return CategoricalDistribution(list(override.sweep_string_iterator()))
