"""Over how many processes a run is spread, and how. Imports no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lerobot.accelerator.config import AUTO
from lerobot.errors import ConfigError
from lerobot.ranges import COUNT, POSITIVE

LOST = "another process of the run is gone"
"""Said by a process that hears no more than that of another one."""
FILL = -1
"""As many as there are processes left for."""


def is_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as one of several."""
    return environment.get("WORLD_SIZE", "1") not in ("", "1")


def rank_of(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process among those of the run, from 0."""
    return int(environment.get("RANK") or 0) if is_rank(environment) else 0


@dataclass
class ParallelismConfig:
    """How the processes of a run share the work: `dp_replicate` times `dp_shard` of them."""

    dp_replicate: int | None = None
    """Copies of the policy. None: as many as there are processes, also one; -1: the same, but several."""
    dp_shard: int = 1
    """Processes that hold one copy between them (FSDP2); 1: each holds all of it; -1: all processes."""
    nproc: Any = None
    """Processes to start on this machine: a number, or auto for one a card. None: none, this one or torchrun's do."""
    shard_units: list[str] | None = None
    """Classes of modules that are gathered and let go of as one when sharded; None: what the policy declares."""
    find_unused_parameters: bool | None = None
    """Whether copies look for parameters without a gradient in every update, which costs time; None: as the policy
    declares."""
    timeout_s: float = 600.0
    """How long one process waits for the others in an update. Evaluations and saves are waited for without an end."""

    def __post_init__(self) -> None:
        for name in ("dp_replicate", "dp_shard"):
            value = getattr(self, name)
            if value not in (None, FILL) and value not in COUNT:
                raise ConfigError(f"parallelism.{name}={value}: type 1 or more, or -1 for as many as there are")
        if self.dp_replicate == FILL == self.dp_shard:
            raise ConfigError("parallelism.dp_replicate=-1 and dp_shard=-1 leave both open: type a number for one")
        if self.nproc not in (None, AUTO) and self.nproc not in COUNT:
            raise ConfigError(f"parallelism.nproc={self.nproc}: type 1 or more, auto for one a card, or null")
        if self.timeout_s not in POSITIVE:
            raise ConfigError(f"parallelism.timeout_s={self.timeout_s}: type seconds above 0")

    def shape(self, world_size: int) -> tuple[int, int]:
        """Copies, and processes that share each, for `world_size` processes. Raises `ConfigError`."""
        shard, replicate = self.dp_shard, self.dp_replicate
        if shard == FILL:
            shard = world_size // (replicate or 1)
        if replicate in (None, FILL):
            replicate = world_size // shard
        assert replicate is not None
        copies = "null" if self.dp_replicate is None else self.dp_replicate
        typed = f"parallelism.dp_replicate={copies} parallelism.dp_shard={self.dp_shard}"
        processes = "there is 1 process" if world_size == 1 else f"there are {world_size} processes"
        if self.dp_replicate == 1 == self.dp_shard and world_size > 1:
            raise ConfigError(
                f"{typed} is for one process and {processes}: type parallelism=auto, or parallelism.nproc=null"
            )
        if self.dp_shard == FILL and shard <= 1 < world_size:  # copies alone, where shards were asked for
            least = 2 * (replicate or 1)
            raise ConfigError(f"{typed} is for {least} processes or more and {processes}: type {self._start(least)}")
        if replicate * shard != world_size:
            least = max(1, self.dp_replicate or 1) * max(1, self.dp_shard)
            is_open = self.dp_replicate in (None, FILL) or self.dp_shard == FILL
            multiple = " or a multiple" if is_open else ""
            raise ConfigError(f"{typed} is for {least} processes{multiple} and {processes}: type {self._start(least)}")
        if world_size == 1 and FILL in (self.dp_shard, self.dp_replicate):
            raise ConfigError(f"{typed} is for several processes and {processes}: type {self._start(2)}")
        return replicate, shard

    def _start(self, number: int) -> str:
        return f"parallelism.nproc={max(2, number)} or start that many with torchrun, or parallelism=auto"
