"""The Optuna study that a search is kept in: opened for one process, and only by the line that began it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from lerobot.errors import ConfigError
from lerobot.search_space import WHERE, Settings, Space
from lerobot.sweep.jobs import is_about_the_sweep

if TYPE_CHECKING:
    from optuna import Study

log = logging.getLogger(__name__)


@contextmanager
def opened_study(settings: Settings, folder: Path) -> Iterator["Study"]:
    """The study, new or gone on with, for this process alone."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    lock = FileLock(folder / ".search.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"another process searches in {folder}: wait, or type another output_dir") from None
    try:
        study, done = _stored(settings)
        _refuse_other_direction(settings, study)
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


def _stored(settings: Settings) -> tuple["Study", int]:
    """The study and its number of trials, read or made; `ConfigError` where that is no storage."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        study = optuna.create_study(
            storage=settings.storage,
            study_name=settings.study_name,
            direction=settings.direction,
            load_if_exists=True,
        )
        return study, len(study.trials)
    # What a database that is none makes its readers raise; a torn file fails an assertion of optuna's.
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, AssertionError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "") or "no study can be read there"
        raise ConfigError(
            f"{WHERE}.storage={settings.storage} cannot be used ({reason}): leave it out, or type sqlite:///<file>, a "
            "new one if that was cut off"
        ) from error


def refuse_other_words(settings: Settings, space: Space, study: "Study") -> None:
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
