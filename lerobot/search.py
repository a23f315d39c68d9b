"""Searches for the values that make a metric best: each job is a trial of an Optuna study. Imports optuna when run.

A job's value is read from its `metrics.jsonl`, so that it does not matter which launcher ran it, in which process or on
which machine. A job that failed, was refused or came to a number that is not finite is a failed trial and ends nothing.
"""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

from lerobot.cli import translate
from lerobot.errors import ConfigError
from lerobot.ranges import COUNT, COUNT_OR_NONE, POSITIVE, check_ranges
from lerobot.signals import STOP_FILE
from lerobot.status import read_status, write_status
from lerobot.sweep.config import SweepConfig
from lerobot.sweep.jobs import is_about_the_sweep
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

log = logging.getLogger(__name__)

WHERE = "hydra.sweeper"


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

    def overrides(self, trial: "Trial") -> list[str]:
        """The overrides of one job."""
        return [*self.fixed, *(f"{key}={value}" for key, value in trial.params.items())]


def search(settings: Settings, arguments: Sequence[str], sweeper: Sweeper) -> None:
    """Run jobs through `sweeper.launcher` until the study has `settings.n_trials` of them."""
    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs optuna: `pip install lerobot-runner[search]`")
    config: Any = sweeper.config
    space = read_space(settings, arguments, OverridesParser.create(sweeper.hydra_context.config_loader))  # type: ignore[union-attr]
    _refuse_unsearchable(settings, space, config)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")
    with _opened(settings, folder) as study:
        _refuse_other_words(settings, space, study)
        while (left := settings.n_trials - len(study.trials)) > 0:
            trials = [study.ask(space.searched) for _ in range(min(left, settings.n_jobs))]
            jobs = [space.overrides(trial) for trial in trials]
            try:
                sweeper.validate_batch_is_legal(jobs)
                with _watched(settings, folder, study, trials):
                    sweeper.launcher.launch(jobs, initial_job_idx=trials[0].number)  # type: ignore[attr-defined]
            finally:
                stopped = [_tell(settings, folder, study, trial) for trial in trials]
            if any(stopped):
                log.warning("the search is stopped; the same line on the same folder goes on with it")
                return
        _say_best(settings, study)


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


@contextmanager
def _opened(settings: Settings, folder: Path) -> Iterator["Study"]:
    """The study, new or gone on with, for this process alone; trials that a kill left half done have failed."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lock = FileLock(folder / ".search.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"another process searches in {folder}: wait, or type another output_dir") from None
    try:
        study = optuna.create_study(
            storage=settings.storage,
            study_name=settings.study_name,
            direction=settings.direction,
            load_if_exists=True,
        )
        _refuse_other_direction(settings, study)
        for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        done = len(study.trials)
        # A sampler with the same seed would propose the first points again.
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=settings.startup_trials, seed=settings.seed + done, constant_liar=settings.n_jobs > 1
        )
        pruner = optuna.pruners.MedianPruner(n_startup_trials=settings.startup_trials)
        study.pruner = pruner if settings.pruning else optuna.pruners.NopPruner()
        if done:
            log.info("going on after %d of %d trials in %s", done, settings.n_trials, settings.storage)
        yield study
    finally:
        lock.release()


def _refuse_unsearchable(settings: Settings, space: Space, config: Any) -> None:
    """Refuse what a search does not do, and a metric that no job can log."""
    plain = SweepConfig()
    for name in ("dry_run", "estimate", "mode", "on_error"):
        if (value := config.sweep[name]) != getattr(plain, name):
            raise ConfigError(f"sweep.{name}={str(value).lower()} is of a grid, and this is a search: leave it out")
    if settings.metric.startswith("eval/") and config.env is None and "env" not in space.searched:
        raise ConfigError(
            f"{WHERE}.metric={settings.metric} needs a simulator: add env=metaworld, or type {WHERE}.metric=train/loss "
            f"{WHERE}.direction=minimize"
        )


def _refuse_other_words(settings: Settings, space: Space, study: "Study") -> None:
    """A study goes on with the line that began it: trials of two lines compare nothing."""
    fixed = [word for word in space.fixed if not is_about_the_sweep(word)]
    here = {key: str(found) for key, found in space.searched.items()}
    here |= {key: value for key, _, value in (word.partition("=") for word in fixed)}
    there = study.user_attrs.get("words")
    if there is None:
        study.set_user_attr("words", here)
    elif odd := sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key)):
        told = ", ".join(f"{key}={here.get(key)} (there: {there.get(key)})" for key in odd[:3])
        raise ConfigError(
            f"{settings.storage} holds a search with other words, {told}: type them as before, or another "
            f"{WHERE}.study_name and folder"
        )


def _refuse_other_direction(settings: Settings, study: "Study") -> None:
    if (stored := study.direction.name.lower()) != settings.direction:
        raise ConfigError(
            f"{settings.storage} holds a study that is to {stored}: type {WHERE}.direction={stored}, or another "
            f"{WHERE}.study_name"
        )


def job_folder(sweep: Path, number: int) -> Path | None:
    """The folder of a job, once there is one."""
    return next(iter(sweep.glob(f"{number}_*")), None)


def _rows(folder: Path | None) -> list[dict[str, Any]]:
    try:
        return read_metrics(folder / METRICS_FILE) if folder else []
    except (OSError, ConfigError):  # not there yet, or garbled: no value
        return []


@contextmanager
def _watched(settings: Settings, folder: Path, study: "Study", trials: Sequence["Trial"]) -> Iterator[None]:
    """Look at the running jobs from a thread and ask those to stop whose metric falls behind."""
    if not settings.pruning:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        pruned: set[int] = set()
        while not ended.wait(settings.poll_s):
            for trial in trials:
                job = job_folder(folder, trial.number)
                if job is not None and trial.number not in pruned and _falls_behind(settings, trial, job):
                    pruned.add(trial.number)
                    trial.set_user_attr("pruned", True)
                    (job / STOP_FILE).touch()

    thread = threading.Thread(target=watch, name="pruning", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _falls_behind(settings: Settings, trial: "Trial", job: Path) -> bool:
    """Report the job's new rows; whether at one of them the median of the others at the same step is better."""
    reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for row in _rows(job):
        if row["step"] not in reported and (value := settings.value([row])) is not None:
            trial.report(value, row["step"])
            if trial.should_prune():
                return True
    return False


def _tell(settings: Settings, folder: Path, study: "Study", trial: "Trial") -> bool:
    """Write down what became of a job; whether a signal stopped it or kept it from starting, which ends the search."""
    from optuna.trial import TrialState

    job = job_folder(folder, trial.number)
    state = read_status(job).get("state") if job else None
    value = settings.value(_rows(job))
    pruned = trial.user_attrs.get("pruned", False)
    if job:
        _falls_behind(settings, trial, job)  # what it logged since the last look is a yardstick for later ones
        trial.set_user_attr("folder", str(job))
        (job / STOP_FILE).unlink(missing_ok=True)  # of a job that was done before it could be stopped
    if state == "done" and value is not None:
        study.tell(trial, value)
    elif job and state == "stopped" and pruned:
        study.tell(trial, state=TrialState.PRUNED)
        write_status(job, pruned=True)
        log.info("%s is pruned: its %s was behind the median", job, settings.metric)
    else:
        study.tell(trial, state=TrialState.FAIL)
        if state == "done":
            log.warning("%s has no finite %s: a failed trial", job, settings.metric)
    return state in ("stopped", None) and not pruned


def _say_best(settings: Settings, study: "Study") -> None:
    from optuna.trial import TrialState

    if not study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        log.warning("no trial came to a value of %s: it is a key of metrics.jsonl", settings.metric)
        return
    best = study.best_trial
    words = " ".join(f"{key}={value}" for key, value in best.params.items())
    log.info("best of %d: job %d with %s=%g, %s", len(study.trials), best.number, settings.metric, best.value, words)
