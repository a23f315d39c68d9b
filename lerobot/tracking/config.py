"""What wandb can be told, in LeRobot's field names. Imports neither torch nor wandb."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lerobot.errors import ConfigError

MODES = ("online", "offline", "disabled")
"""From the least to the most private."""


@dataclass
class WandbConfig:
    """Where a run's charts go, beside `metrics.jsonl`."""

    enable: bool | None = None
    """True: online where a key is, else offline. False: no wandb at all. None: `mode` decides."""
    mode: str | None = None
    """online, offline or disabled. None: what `WANDB_MODE` says, else offline."""
    project: str = "lerobot"
    entity: str | None = None
    name: str | None = None
    """Of this run in the charts; None takes wandb's own."""
    group: str | None = None
    """What the runs of one sweep share."""
    job_type: str | None = None
    notes: str | None = None
    run_id: str | None = None
    """None: a new run gets a new one, a resumed run keeps its own."""
    add_tags: bool = True
    """Tag the run with its policy, seed, dataset and env."""
    disable_artifact: bool = False
    """Do not upload checkpoints. Only online runs upload any."""

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"wandb.mode={self.mode}: type one of wandb.mode={'|'.join(MODES)}")

    def resolve_mode(self, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
        """The mode that holds, and a sentence to say where `WANDB_MODE` and what was typed disagree (else empty).

        Of a typed mode and `WANDB_MODE` the more private one holds. Either beats `enable=true`, which beats offline.
        """
        variable = environment.get("WANDB_MODE", "").lower()
        if variable and variable not in MODES:
            raise ConfigError(f"WANDB_MODE={variable}: set it to one of {'|'.join(MODES)}, or unset it")
        typed = "disabled" if self.enable is False else self.mode
        if typed and variable and typed != variable:
            mode = max(typed, variable, key=MODES.index)
            return mode, f"wandb: {mode}, the more private of what was typed ({typed}) and WANDB_MODE={variable}"
        return typed or variable or ("online" if self.enable else "offline"), ""
