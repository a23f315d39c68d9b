"""What a sweep would do: its jobs, the refusals among them and, tried out, what it would take."""

import sys
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lerobot.errors import ConfigError
from lerobot.sweep.jobs import spelled
from lerobot.sweep.plan import Planned

DONE, FAILED, REFUSED = 0, 1, 2


def dry_run(command: str, config: DictConfig, planned: Sequence[Planned], *, estimates: bool) -> int:
    """Print the jobs of a sweep; return the status that it would leave with as far as is known. Makes no folder."""
    if estimates and command != "train":
        raise ConfigError("sweep.estimate=true tries updates of lerobot-train: type sweep.dry_run=true")
    _say(f"{_folder(config)}/")
    width = max(len(one.job.folder) for one in planned)
    for one in planned:
        _say(f"  {one.job.folder:{width}}  {' '.join(one.job.differs)}".rstrip())
        if one.refusal is not None:
            _say(f"  {'':{width}}  refused: {one.refusal}")
    shared = set.intersection(*(set(one.job.overrides) for one in planned)) if len(planned) > 1 else set()
    if shared:
        _say(f"all with {' '.join(spelled(word) for word in planned[0].job.overrides if word in shared)}")
    refused = sum(one.refusal is not None for one in planned)
    _say(f"{len(planned)} jobs" + (f", {refused} of them refused" if refused else ""))
    status = REFUSED if refused else DONE
    if estimates and refused < len(planned):
        from lerobot.sweep.estimate import estimate

        print(flush=True)  # noqa: T201
        sentences, whole = estimate([one for one in planned if one.refusal is None])
        for sentence in sentences:
            _say(sentence)
        return status if whole else FAILED
    return status


def _folder(config: DictConfig) -> str:
    """The folder of the sweep as it is typed; one with the time in its name is made when it runs."""
    unresolved: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    return "outputs/multirun/<day>/<time>_<job_name>" if "${" in str(unresolved["dir"]) else unresolved["dir"]


def _say(line: str) -> None:
    print(line, file=sys.stdout)  # noqa: T201
