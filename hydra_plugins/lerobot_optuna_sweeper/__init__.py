"""`hydra/sweeper=optuna`. Hydra imports this to list its plugins, so that optuna itself waits until a search runs."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OptunaSweeper(Sweeper):
    """Chooses the values of each job by what came out before; settings are `lerobot.search_space.Settings`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See Hydra: called once, before `sweep`."""
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """See Hydra: `arguments` are the overrides as typed, fixed ones and searched ones."""
        from lerobot.search import search
        from lerobot.search_space import Settings

        search(Settings.of(self.settings), arguments, self)
