"""Searches for the values that make a metric best: each job is a trial of an Optuna study. Imports optuna when run.

A job's value is read from its `metrics.jsonl`, so that it does not matter which launcher ran it, in which process or on
which machine. A job that failed, was refused or came to a number that is not finite is a failed trial and ends nothing.
"""

import difflib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

from lerobot.claim import refuse_runs
from lerobot.errors import ConfigError
from lerobot.search_space import WHERE, Settings, Space, read_space
from lerobot.search_study import opened_study, refuse_other_words
from lerobot.signals import STOP_FILE
from lerobot.status import read_status, write_status
from lerobot.sweep.config import SweepConfig
from lerobot.sweep.jobs import Job, Sweep, folder_words, read_sweep, write_refusal, write_sweep
from lerobot.sweep.plan import Tried, trial_of
from lerobot.sweep.table import NOT_RUN, state_of
from lerobot.sweep.typed import TYPED
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

log = logging.getLogger(__name__)


@dataclass
class Search:
    """A search under way."""

    settings: Settings
    space: Space
    folder: Path
    study: "Study"
    sweeper: Sweeper
    tried: Tried
    """Says whether a job could work."""

    def run(self) -> None:
        """Run jobs until the study has as many as were asked for, those first that a signal or a kill cut short."""
        cut_short = [trial for trial in self._running() if self._goes_on(trial)]
        while trials := self._next(cut_short):
            if self._run(trials):
                log.warning("the search is stopped; type -m sweep.resume=%s to go on with it", self.folder)
                return
            self._refuse_unlogged(trials)
        _say_best(self.settings, self.study)

    def _running(self) -> list["Trial"]:
        from optuna.trial import Trial, TrialState

        found = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        return [Trial(self.study, trial._trial_id) for trial in found]

    def _goes_on(self, trial: "Trial") -> bool:
        """Whether a job of an earlier pass is to go on; one that had ended is told now."""
        ended = state_of(self._place(trial)) in ("done", "refused") or trial.user_attrs.get("pruned")
        return not ended or self._tell(trial)

    def _next(self, cut_short: list["Trial"]) -> list["Trial"]:
        """The jobs that are to run together now."""
        size = self.settings.n_jobs
        if cut_short:
            trials, cut_short[:] = cut_short[:size], cut_short[size:]
            return trials
        left = self.settings.n_trials - len(self.study.trials)
        return [self.study.ask(self.space.searched) for _ in range(min(left, size))]

    def _run(self, trials: Sequence["Trial"]) -> bool:
        """Run jobs and write down what became of them; whether a signal ended them, and so the search."""
        jobs = [self.space.job(trial) for trial in trials]
        self._list(jobs)
        able = [trial for trial, job in zip(trials, jobs, strict=True) if not self._refused(trial, job)]
        words = [
            [*self.space.overrides(trial), *folder_words(self.folder, self.space.job(trial).folder)] for trial in able
        ]
        try:
            with _watched(self, able):
                if able:
                    self.sweeper.launcher.launch(words, initial_job_idx=able[0].number)  # type: ignore[attr-defined]
        except Exception:
            for trial in able:
                self._tell(trial, begun=False)
            raise
        left = [self._tell(trial) for trial in trials]
        return any(left)

    def _refused(self, trial: "Trial", job: Job) -> bool:
        """Whether a job cannot work by its config alone; that is written into its folder."""
        _, _, reason = self.tried(self.space.overrides(trial))
        if reason is not None:
            write_refusal(self.folder, job, reason)
            log.warning("refused: %s: %s", job.folder, reason)
        return reason is not None

    def _list(self, jobs: Sequence[Job]) -> None:
        """Add `jobs` to the file of the sweep, which the table, the report and `sweep.resume` read."""
        typed, stored = TYPED.get(), read_sweep(self.folder)
        known = {job.number: job for job in (*(stored.jobs if stored else ()), *jobs)}
        listed = [job for _, job in sorted(known.items())]
        write_sweep(self.folder, Sweep(typed.command, typed.flags, [*typed.words, *typed.about], listed, search=True))

    def _place(self, trial: "Trial") -> Path:
        return self.folder / self.space.job(trial).folder

    def rows(self, trial: "Trial") -> list[dict[str, Any]]:
        """What the job has logged so far."""
        try:
            return read_metrics(self._place(trial) / METRICS_FILE)
        except (OSError, ConfigError):  # not there yet, or garbled: no value
            return []

    def ask_to_stop(self, trial: "Trial") -> None:
        """Ask a running job to write its checkpoint and end."""
        trial.set_user_attr("pruned", True)
        (self._place(trial) / STOP_FILE).touch()

    def falls_behind(self, trial: "Trial") -> bool:
        """Report the job's new rows; whether at one of them the median of the others at the same step is better."""
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for row in self.rows(trial):
            if row["step"] not in reported and (value := self.settings.value([row])) is not None:
                trial.report(value, row["step"])
                if trial.should_prune():
                    return True
        return False

    def _tell(self, trial: "Trial", *, begun: bool = True) -> bool:
        """Write down what became of a job, unless a signal stopped it or kept it from starting: then it goes on later.

        begun: False where the launcher raised, so that nothing did.
        """
        from optuna.trial import TrialState

        job, settings = self._place(trial), self.settings
        state, pruned = read_status(job).get("state"), trial.user_attrs.get("pruned", False)
        if begun and state in ("stopped", NOT_RUN, None) and not pruned:
            return True
        self.falls_behind(trial)  # what it logged since the last look is a yardstick for later ones
        trial.set_user_attr("folder", str(job))
        (job / STOP_FILE).unlink(missing_ok=True)  # of a job that was done before it could be stopped
        value = settings.value(self.rows(trial))
        if state == "done" and value is not None:
            self.study.tell(trial, value)
        elif state == "stopped" and pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            write_status(job, pruned=True)
            log.info("%s is pruned: its %s was behind the median", job, settings.metric)
        else:
            self.study.tell(trial, state=TrialState.FAIL)
            if state == "done":
                log.warning("%s has no finite %s: a failed trial", job, settings.metric)
        return False

    def _refuse_unlogged(self, trials: Sequence["Trial"]) -> None:
        """End a search for what no job logs once one is done: all the others would be trained for nothing."""
        from optuna.trial import TrialState

        if self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
            return
        for trial in trials:
            logged = sorted({key for row in self.rows(trial) for key in row if "/" in key})
            if state_of(self._place(trial)) == "done" and self.settings.metric not in logged:
                near = (difflib.get_close_matches(self.settings.metric, logged, 1, cutoff=0.0) or ["train/loss"])[0]
                raise ConfigError(
                    f"{WHERE}.metric={self.settings.metric} is not logged, {self._place(trial).name} is done without "
                    f"it: type {WHERE}.metric={near} (there are {', '.join(logged) or 'none, log_freq is 0'})"
                )


def search(settings: Settings, arguments: Sequence[str], sweeper: Sweeper) -> None:
    """Run jobs through `sweeper.launcher` until the study has `settings.n_trials` of them."""
    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs optuna: `pip install lerobot-runner[search]`")
    config: Any = sweeper.config
    space = read_space(settings, arguments, OverridesParser.create(sweeper.hydra_context.config_loader))  # type: ignore[union-attr]
    space.config = config
    _refuse_unsearchable(settings, space, config)
    tried = trial_of(TYPED.get().command, config, sweeper.hydra_context.config_loader)  # type: ignore[union-attr]
    reasons = {tried(words)[2] for words in space.corners()}
    if len(reasons) == 1 and (reason := reasons.pop()) is not None:  # whatever is chosen
        raise ConfigError(reason)
    folder = Path(config.hydra.sweep.dir)
    _refuse_occupied(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with opened_study(settings, folder) as study:
        refuse_other_words(settings, space, study)
        OmegaConf.save(config, folder / "multirun.yaml")
        Search(settings, space, folder, study, sweeper, tried).run()


def _refuse_occupied(folder: Path) -> None:
    if (stored := read_sweep(folder)) is None:
        refuse_runs(folder)
    elif not stored.search:
        raise ConfigError(f"{folder} holds a sweep that is no search: type another output_dir")


def _refuse_unsearchable(settings: Settings, space: Space, config: Any) -> None:
    """Refuse what a search does not do, and a metric that no job can log."""
    plain = SweepConfig()
    for name in ("dry_run", "estimate", "mode", "on_error"):
        if (value := config.sweep[name]) != getattr(plain, name):
            raise ConfigError(f"sweep.{name}={str(value).lower()} is of a grid, and this is a search: leave it out")
    space.refuse_fractions()
    if settings.metric.startswith("eval/") and config.env is None and "env" not in space.searched:
        raise ConfigError(
            f"{WHERE}.metric={settings.metric} needs a simulator: add env=metaworld, or type {WHERE}.metric=train/loss "
            f"{WHERE}.direction=minimize"
        )


@contextmanager
def _watched(search: Search, trials: Sequence["Trial"]) -> Iterator[None]:
    """Look at the running jobs from a thread and ask those to stop whose metric falls behind."""
    if not search.settings.pruning:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        pruned: set[int] = set()
        while not ended.wait(search.settings.poll_s):
            for trial in trials:
                if trial.number not in pruned and search.rows(trial) and search.falls_behind(trial):
                    pruned.add(trial.number)
                    search.ask_to_stop(trial)

    thread = threading.Thread(target=watch, name="pruning", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _say_best(settings: Settings, study: "Study") -> None:
    from optuna.trial import TrialState

    if not study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        log.warning("no trial came to a value of %s: it is a key of metrics.jsonl", settings.metric)
        return
    best = study.best_trial
    words = " ".join(f"{key}={value}" for key, value in best.params.items())
    log.info("best of %d: job %d with %s=%g, %s", len(study.trials), best.number, settings.metric, best.value, words)
