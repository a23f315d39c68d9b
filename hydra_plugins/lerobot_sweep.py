"""The sweeper of lerobot's commands, where Hydra looks for it. What it does is in `lerobot.sweep`."""

from collections.abc import Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class JobSweeper(Sweeper):
    """Runs the jobs that a line means, once each, and goes on where an earlier pass over the folder ended."""

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        """`params` are overrides that a config file sweeps over, in the spelling of the command line."""
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See Hydra."""
        self.config, self.hydra_context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """See Hydra."""
        from lerobot.cli import translate  # hydra imports every plugin at every start
        from lerobot.sweep.run import run

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.launcher is not None
        params = translate(["-m", *(f"{key}={value}" for key, value in self.params.items())])
        run(self.config, self.hydra_context.config_loader, self.launcher, [*params.overrides(), *arguments])
