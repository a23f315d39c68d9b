"""What a search was typed to be: its settings, and which values it chooses from. Imports optuna when read."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig, IntegerNode, OmegaConf

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

    def corners(self) -> list[list[str]]:
        """The overrides of what is searched left out, and of its first and its last values."""
        kinds: list[Any] = [*self.searched.values()]
        ends = [getattr(kind, "choices", None) or (kind.low, kind.high) for kind in kinds]
        rows = [[f"{key}={end[i]}" for key, end in zip(self.searched, ends, strict=True)] for i in (0, -1)]
        return [self.fixed, *([*self.fixed, *row] for row in rows)]

    def refuse_fractions(self) -> None:
        """Refuse an interval of fractions for a key that is a whole number: hardly a job of it could work."""
        for key, kind in self.searched.items():
            group, _, name = key.rpartition(".")
            holder = OmegaConf.select(self.config, group) if group else self.config
            node = holder._get_node(name) if isinstance(holder, DictConfig) else None
            if isinstance(node, IntegerNode) and type(kind).__name__ == "FloatDistribution":
                typed = f"int(interval({math.ceil(kind.low)},{math.floor(kind.high)}))"  # type: ignore[attr-defined]
                raise ConfigError(f"{spelled(key)} is a whole number: type {spelled(key)}={typed}")

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
        if (only := _only_value(override)) is not None:
            space.fixed.append(f"{key}={only}")
        elif override.is_sweep_override():
            space.searched[key] = _distribution(override)
        else:
            space.fixed.append(f"{key}={override.get_value_element_as_str()}")
    if not space.searched:
        raise ConfigError("nothing is searched: type a space, 'policy.optimizer_lr=tag(log,interval(1e-5,1e-2))'")
    return space


def _only_value(override: Override) -> str | None:
    """The value of a list that has one: it is no choice."""
    if not override.is_discrete_sweep():
        return None
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), 2))
    except ValueError as error:  # a step of 0
        raise ConfigError(f"{override.input_line} is no list of values ({error}): type another step") from error
    if not values:
        raise ConfigError(f"{override.input_line} holds no value: the end of a range is left out, as in Python")
    return values[0] if len(values) == 1 else None


def _distribution(override: Override) -> "BaseDistribution":
    """Optuna's name for a sweep of Hydra's grammar."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep: Any = override.value()
    if strange := sorted(getattr(sweep, "tags", set()) - {"log"}):
        raise ConfigError(f"{override.input_line} has the tag {strange[0]}: there is one, type tag(log,...)")
    log = "log" in sweep.tags if isinstance(sweep, IntervalSweep | RangeSweep) else False
    try:
        if isinstance(sweep, IntervalSweep):
            if not (math.isfinite(sweep.start or 0) and math.isfinite(sweep.end or 0)):
                raise ValueError("its ends are not finite")
            kind = IntDistribution if isinstance(sweep.start, int) else FloatDistribution
            return kind(sweep.start, sweep.end, log=log)  # type: ignore[arg-type]
        if (whole := _whole(sweep)) is not None:
            start, last, step = whole[0], whole[-1], whole.step  # the end is left out, as in Python
            if log and step != 1:
                raise ValueError(f"a logarithmic one has no steps: type tag(log,int(interval({start},{last})))")
            return IntDistribution(start, last, step=step, log=log)
    except ValueError as error:
        said = str(error).rstrip(".")
        advice = "" if "type " in said else ": type interval(<low>,<high>), above 0 with tag(log,...)"
        raise ConfigError(f"{override.input_line} is no space, {said}{advice}") from error
    return CategoricalDistribution(list(override.sweep_string_iterator()))


def _whole(sweep: Any) -> range | None:
    """A range that counts up in whole numbers, so that it has an order that a search can use."""
    if not isinstance(sweep, RangeSweep):
        return None
    start, stop, step = sweep.start, sweep.stop, sweep.step
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and start < stop and step > 0:
        return range(start, stop, step)
    return None
