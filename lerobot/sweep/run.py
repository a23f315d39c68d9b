"""Runs the jobs of a sweep one by one, or hands them to a launcher; goes on where an earlier pass ended."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lerobot.claim import claimed, refuse_runs
from lerobot.errors import ConfigError
from lerobot.signals import Stop, stop_on_signals
from lerobot.status import now, read_status, write_status
from lerobot.sweep.config import SweepConfig
from lerobot.sweep.halt import halted
from lerobot.sweep.jobs import (
    Job,
    Sweep,
    folder_words,
    is_about_the_sweep,
    read_sweep,
    spelled,
    write_refusal,
    write_sweep,
)
from lerobot.sweep.plan import Planned, plan
from lerobot.sweep.table import NOT_RUN, close, state_of
from lerobot.sweep.typed import TYPED, Typed

log = logging.getLogger(__name__)


def run(config: DictConfig, loader: ConfigLoader, launcher: Launcher, words: Sequence[str]) -> None:
    """Run the jobs that `words` mean, or list them, as `config.sweep` says."""
    typed = TYPED.get()
    settings = _settings(config, words)
    planned = plan(typed.command, config, loader, words)
    place, stored = _typed_folder(config), None
    if place is not None and (stored := read_sweep(place)) is not None:
        planned = _matched(place, stored, typed, planned)
    elif place is not None:
        refuse_runs(place)
    if settings.dry_run or settings.estimate:
        from lerobot.sweep.dry import dry_run

        goes_on = stored is not None
        raise SystemExit(dry_run(typed.command, place, planned, goes_on=goes_on, estimates=settings.estimate))
    if stored is None:
        _refuse_all(planned)
    folder = Path(config.hydra.sweep.dir)  # resolved here: it is made where it was not typed
    with claimed(folder, goes_on=True):
        planned = _begin(folder, config, typed, planned, stored)
        about = [word for word in words if is_about_the_sweep(word)]
        launches = [(one.job, _words(folder, one, about)) for one in planned]
        try:
            with stop_on_signals() as stop:
                _launch(folder, config, launcher, launches, stop)
        except BaseException:
            close(folder)  # Hydra calls nothing more
            raise


def _settings(config: DictConfig, words: Sequence[str]) -> SweepConfig:
    settings = OmegaConf.to_object(config.sweep)
    assert isinstance(settings, SweepConfig)
    if lists := [word for word in words if word.startswith("sweep.") and "," in word]:
        raise ConfigError(f"{lists[0]} holds several values: it is about the whole sweep, type one")
    return settings


def _typed_folder(config: DictConfig) -> Path | None:
    """The folder of the sweep; None where it has the time in its name, which makes it when it is asked for."""
    unresolved: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    return None if "${" in str(unresolved["dir"]) else Path(unresolved["dir"])


def _refuse_all(planned: Sequence[Planned]) -> None:
    """Refuse at once, before anything is made, where all jobs are wrong in the same way."""
    if len({one.refusal for one in planned}) == 1 and planned[0].refusal is not None:
        raise ConfigError(planned[0].refusal)


def _begin(
    folder: Path, config: DictConfig, typed: Typed, planned: list[Planned], stored: Sweep | None
) -> list[Planned]:
    """Write down the sweep unless it is `stored`; return the jobs that are to run."""
    if stored is None:
        jobs = [one.job for one in planned]
        write_sweep(folder, Sweep(typed.command, typed.flags, [*typed.words, *typed.about], jobs))
        OmegaConf.save(config, folder / "multirun.yaml")
    left = [one for one in planned if state_of(folder / one.job.folder) != "done"]
    if stored is not None:
        others = ", going on with the others" if left else ""
        log.info("%s: %d of %d jobs are done%s", folder, len(planned) - len(left), len(planned), others)
    _refuse(folder, [one for one in left if one.refusal is not None])
    to_run = [one for one in left if one.refusal is None]
    for one in to_run:
        # From an earlier pass; the checkpoints say where it stood. One that was stopped is that until its turn comes.
        if read_status(folder / one.job.folder).get("state") not in (None, "stopped"):
            write_status(folder / one.job.folder, state=NOT_RUN, error=None)
    return to_run


def _matched(folder: Path, stored: Sweep, typed: Typed, planned: list[Planned]) -> list[Planned]:
    """`planned` with the numbers and folders of the sweep that is there."""
    _refuse_another(folder, stored, typed, planned)
    known = {frozenset(job.overrides): job for job in stored.jobs}
    for one in planned:
        one.job = known[frozenset(one.job.overrides)]
    return sorted(planned, key=lambda one: one.job.number)


def _refuse_another(folder: Path, stored: Sweep, typed: Typed, planned: list[Planned]) -> None:
    here = {frozenset(one.job.overrides) for one in planned}
    there = {frozenset(job.overrides) for job in stored.jobs}
    if typed.command == stored.command and here == there:
        return
    if typed.command != stored.command:
        told = f"lerobot-{stored.command}"
    elif not (told := _differing(stored.words, typed.words)):  # then a file with options has changed
        odd = sorted(here - there or there - here, key=sorted)[0].difference(*(there if here - there else here))
        raise ConfigError(
            f"the jobs of {folder} follow from a file that has changed, such as that of experiment=...: the line now "
            f"means {len(here)} jobs and there are {len(there)}, {len(here - there)} of them new"
            f"{f' ({spelled(sorted(odd)[0])})' if odd else ''}; put the file back, or type another output_dir"
        )
    raise ConfigError(
        f"{folder} holds another sweep, {told}: type -m sweep.resume={folder} to go on with it, or another output_dir"
    )


def _differing(there: Sequence[str], here: Sequence[str]) -> str:
    """What was typed in two lines, where it differs; what this one has first."""
    before, now_ = (
        {word.partition("=")[0]: word for word in words if not is_about_the_sweep(word)} for words in (there, here)
    )
    keys = [key for key in (*now_, *(before.keys() - now_.keys())) if before.get(key) != now_.get(key)]
    return ", ".join(
        f"{spelled(now_[key]) if key in now_ else f'no {spelled(key)}'} (there: "
        f"{spelled(before[key]).partition('=')[2] if key in before else 'none'})"
        for key in keys[:4]
    )


def _refuse(folder: Path, refused: Sequence[Planned]) -> None:
    """Write each refusal into the job's folder, and say them now: the jobs that work may take hours."""
    told: dict[str, list[str]] = {}
    for one in refused:
        write_refusal(folder, one.job, one.refusal or "")
        told.setdefault(one.refusal or "", []).append(one.job.folder)
    for sentence, names in told.items():
        log.warning("refused: %s: %s", ", ".join(names), sentence)


def _words(folder: Path, one: Planned, about: Sequence[str]) -> list[str]:
    """What Hydra reads for one job."""
    sweep = [word for word in about if word.startswith("sweep.")]  # hydra's own are added by Hydra
    return [*one.words, *sweep, *folder_words(folder, one.job.folder)]


def _launch(
    folder: Path, config: DictConfig, launcher: Launcher, launches: list[tuple[Job, list[str]]], stop: Stop
) -> None:
    """Run what is left; in this process one by one, so that nothing begins after an end was asked for."""
    if config.hydra.runtime.choices["hydra/launcher"] != "basic":
        if launches:
            launcher.launch([words for _, words in launches], initial_job_idx=0)
        _tell_lost(folder, [job for job, _ in launches])
        return
    total = len(launches)
    for count, (job, words) in enumerate(launches, 1):
        if stop() or halted(folder, config.sweep.on_error):
            return
        if count > 1 and state_of(folder / launches[count - 2][0].folder) == "stopped":  # by its time limit
            return
        log.info("job %d of %d: %s (%s)", count, total, job.folder, " ".join(job.differs) or "the only one")
        launcher.launch([words], initial_job_idx=job.number)


def _tell_lost(folder: Path, jobs: Sequence[Job]) -> None:
    """Mark as failed the jobs that a launcher never began, unless the sweep was stopped before their turn."""
    places = [folder / job.folder for job in jobs]
    if any(state_of(place) == "stopped" for place in places):
        return
    for place in places:
        if not place.exists():
            write_status(place, state="failed", error="the launcher lost it before it began", ended=now())
