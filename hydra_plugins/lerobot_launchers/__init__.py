"""`hydra/launcher=joblib|slurm|submitit_local`: Hydra's own launchers, with a card for each job and a way back for it.

Hydra imports this to list its plugins, so that theirs are imported when one is used.
"""

import logging
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from lerobot.errors import ConfigError

log = logging.getLogger(__name__)


def _stock(module: str, name: str, extra: str) -> Any:
    try:
        return getattr(import_module(f"hydra_plugins.{module}"), name)
    except ImportError as error:
        raise ConfigError(f"this launcher needs `pip install lerobot-runner[{extra}]`") from error


class _Loader:
    """Hydra's loader for the jobs of a stock launcher, which registers its own node anew in each."""

    def __init__(self, loader: ConfigLoader) -> None:
        self.loader = loader

    def load_sweep_config(self, config: DictConfig, overrides: list[str]) -> DictConfig:
        """See Hydra: what a job composes."""
        from lerobot.stored import forget_launcher_schemas

        forget_launcher_schemas()
        return self.loader.load_sweep_config(config, overrides)


class _Wrapping(Launcher):
    """Hands the jobs to another launcher, each as a `lerobot.launch.Job`."""

    STOCK: tuple[str, str, str]
    """Module and name of that one, and the extra that brings it."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See Hydra: called once, before `launch`."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        sweep = config.get("sweep")
        if sweep is None or not (sweep.dry_run or sweep.estimate):
            self.check()

    def check(self) -> None:
        """Refuse what this machine lacks, before a folder is made."""
        self.stock()

    def stock(self) -> Any:
        """Hydra's own launcher."""
        return _stock(*self.STOCK)

    def _submit(self, launcher: Launcher, job: Any, jobs: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        """Hand on to submitit; a job that it lost is told, and has failed by its status."""
        from submitit.core.utils import UncompletedJobError

        try:
            return self._hand_on(launcher, job, jobs, first)
        except UncompletedJobError as error:
            log.error("%s", str(error).splitlines()[0])
            return []

    def _hand_on(self, launcher: Launcher, job: Any, jobs: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
        context = HydraContext(_Loader(self.hydra_context.config_loader), self.hydra_context.callbacks)  # type: ignore[arg-type]
        launcher.setup(hydra_context=context, task_function=job, config=self.config)
        return launcher.launch(jobs, first)


class JoblibLauncher(_Wrapping):
    """Jobs side by side on this machine, each in a process of its own and never two on a card unless asked."""

    STOCK = ("hydra_joblib_launcher.joblib_launcher", "JoblibLauncher", "sweep")

    def __init__(self, n_jobs: int | None, jobs_per_device: int, **joblib: Any) -> None:
        self.n_jobs, self.jobs_per_device, self.joblib = n_jobs, jobs_per_device, joblib

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """See Hydra: run one batch of jobs."""
        from lerobot.launch import Job, pool_for, side_by_side, stopping_gently

        sweep = Path(self.config.hydra.sweep.dir)
        sweep.mkdir(parents=True, exist_ok=True)
        pool = pool_for(self.config, job_overrides, self.jobs_per_device)
        launcher = self.stock()(n_jobs=side_by_side(self.n_jobs, pool), **self.joblib)
        with stopping_gently(sweep):
            return self._hand_on(launcher, Job(self.task_function, sweep, pool), job_overrides, initial_job_idx)


class SlurmLauncher(_Wrapping):
    """Each job a task of one SLURM array, brought back by SLURM until it is done."""

    STOCK = ("hydra_submitit_launcher.submitit_launcher", "SlurmLauncher", "slurm")

    def __init__(self, **submitit: Any) -> None:
        self.submitit = submitit

    def check(self) -> None:
        """Also SLURM itself."""
        super().check()
        if shutil.which("srun") is None:
            raise ConfigError("hydra/launcher=slurm needs SLURM and there is no srun here: type hydra/launcher=joblib")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """See Hydra: run one batch of jobs."""
        from lerobot.launch import Job

        job = Job(self.task_function, Path(self.config.hydra.sweep.dir), apart=False, requeues=True)
        return self._submit(self.stock()(**self.submitit), job, job_overrides, initial_job_idx)


class SubmititLocalLauncher(_Wrapping):
    """The road of `slurm` without a cluster: all jobs at once on this machine; with cards, as they become free."""

    STOCK = ("hydra_submitit_launcher.submitit_launcher", "LocalLauncher", "slurm")

    def __init__(self, jobs_per_device: int, **submitit: Any) -> None:
        self.jobs_per_device, self.submitit = jobs_per_device, submitit

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """See Hydra: run one batch of jobs."""
        from lerobot.launch import Job, pool_for, stopping_gently

        sweep = Path(self.config.hydra.sweep.dir)
        pool = pool_for(self.config, job_overrides, self.jobs_per_device)
        job = Job(self.task_function, sweep, pool, requeues=True)
        with stopping_gently(sweep):
            return self._submit(self.stock()(**self.submitit), job, job_overrides, initial_job_idx)
