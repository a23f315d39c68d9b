"""Which jobs a line means and which of them cannot work, found before the first one runs."""

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from lerobot.config import OPEN_GROUPS, parse
from lerobot.errors import ConfigError
from lerobot.explain import sentence
from lerobot.stored import CHECKPOINT_OPTION, UNUSABLE
from lerobot.sweep.jobs import Job, expand, is_about_the_sweep, short_name, spelled

_HERE = ("basic", "joblib", "submitit_local")
"""Launchers whose jobs run on this machine, so that its devices decide what is refused."""


@dataclass
class Planned:
    """One job, and its config or why it is refused."""

    job: Job
    words: list[str]
    """What Hydra reads for it, in this process."""
    config: Any = None
    refusal: str | None = None


class Composer:
    """Composes like Hydra, once for each distinct set of group choices; values are set on a copy of that.

    Hydra alone takes about 0.12 s a job, most of it for reading files again.
    """

    def __init__(self, loader: ConfigLoader, config_name: str | None, settings: Sequence[str]) -> None:
        """settings: Hydra's own words, which may name more folders of options."""
        self._loader, self._name, self._settings = loader, config_name, list(settings)
        self._is_group = functools.cache(lambda key: bool(loader.get_group_options(key)))
        self._chosen: dict[tuple[str, ...], DictConfig | Exception] = {}

    def __call__(self, overrides: Sequence[str]) -> DictConfig:
        """The config of one job, without Hydra's node."""
        words = OverridesParser.create().parse_overrides(list(overrides))
        values = [word for word in words if self._is_value(word)]
        choices = tuple(word.input_line or "" for word in words if not self._is_value(word))
        config = copy.deepcopy(self._base(choices))
        for word in values:
            _refuse_below_null(config, word)
            try:
                OmegaConf.update(config, word.key_or_group, word.value(), merge=True)
            except (ConfigAttributeError, ConfigKeyError) as error:
                raise ConfigCompositionException(f"Could not override '{word.key_or_group}'.") from error
            except OmegaConfBaseException as error:
                raise ConfigCompositionException(f"Error merging override {word.input_line}") from error
        return config

    def _is_value(self, word: Override) -> bool:
        plain = not (word.is_add() or word.is_delete() or word.is_force_add() or word.package)
        key = word.key_or_group
        return plain and "/" not in key and ("." in key or not self._is_group(key))

    def _base(self, choices: tuple[str, ...]) -> DictConfig:
        if choices not in self._chosen:
            words = [*self._settings, *choices]
            try:
                config = self._loader.load_configuration(self._name, words, run_mode=RunMode.RUN)
                with open_dict(config):
                    del config["hydra"]
                self._chosen[choices] = config
            except HydraException as error:
                self._chosen[choices] = error
        found = self._chosen[choices]
        if isinstance(found, Exception):
            raise found
        return found


def _refuse_below_null(config: DictConfig, word: Override) -> None:
    group, dot, _ = word.key_or_group.partition(".")
    if dot and group in OPEN_GROUPS and group in config and config[group] is None:
        typed = spelled(word.input_line or "")
        raise ConfigError(f"{typed} is for a job with {group}=..., and this one has {group}=null")


def plan(command: str, config: DictConfig, loader: ConfigLoader, words: Sequence[str]) -> list[Planned]:
    """The jobs of `words`, each with its config or the sentence that refuses it; looks at no data and runs nothing."""
    mode = OmegaConf.select(config, "sweep.mode")
    own = [word for word in words if not is_about_the_sweep(word)]
    rows, swept = expand(own, mode)
    tried = trial_of(command, config, loader, [word for word in words if word.startswith("sweep.")])
    found = []
    for number, row in enumerate(rows):
        differs = [word for word in row if word.partition("=")[0] in swept]
        composed, checked, refusal = tried(row)
        planned = Planned(Job(number, "", row), row, checked, refusal)
        planned.job.overrides = [_named(word, composed) for word in row]
        planned.job.differs = [spelled(_named(word, composed)) for word in differs]
        planned.job.folder = f"{number}_{short_name(planned.job.differs, *_place(composed or config))}"
        found.append(planned)
    return found


Tried = Callable[[Sequence[str]], tuple[DictConfig | None, Any, str | None]]
"""From the overrides of a job to what they compose, its config, and why it is refused, each where it is known."""


def trial_of(command: str, config: DictConfig, loader: ConfigLoader, sweep: Sequence[str] = ()) -> Tried:
    """What finds out whether a job could work; `sweep` are the words about the sweep that each has."""
    compose = Composer(loader, config.hydra.job.config_name, [*config.hydra.overrides.hydra])
    check = _machine() if config.hydra.runtime.choices["hydra/launcher"] in _HERE else None

    def tried(row: Sequence[str]) -> tuple[DictConfig | None, Any, str | None]:
        composed: DictConfig | None = None
        try:
            _refuse_unusable(row)
            composed = compose([*row, *sweep])
            return composed, _checked(command, composed, check), None
        except InterpolationResolutionError:  # ${hydra:...} is known in the job alone, which refuses what cannot be
            return composed, None, None
        except (ConfigError, HydraException, OmegaConfBaseException) as error:
            return composed, None, sentence(error, command)

    return tried


def _named(word: str, composed: DictConfig | None) -> str:
    """`word` with the checkpoint that it stands for: the option of the policy group is this process's own."""
    if (option := word.removeprefix("policy=")) in UNUSABLE:
        return f"policy.path={UNUSABLE[option][0]}"
    if composed is None or not word.startswith(f"policy={CHECKPOINT_OPTION}"):
        return word
    return f"policy.path={Path(composed.policy.pretrained_path).parent}"


def _refuse_unusable(row: Sequence[str]) -> None:
    for word in row:
        if (option := word.removeprefix("policy=")) in UNUSABLE:
            raise UNUSABLE[option][1]


def _place(config: DictConfig) -> tuple[str, str]:
    device, precision = (OmegaConf.select(config, key) for key in ("policy.device", "accelerator.mixed_precision"))
    env = OmegaConf.select(config, "env.type")
    return (str(device), str(precision)) if device is not None else (str(env), "")


def _checked(command: str, composed: DictConfig, check: Callable[[str, str], None] | None) -> Any:
    config = parse(command, composed)
    importlib.import_module(f"lerobot.{command}").check(config)
    if check is not None and command != "demos":
        check(config.policy.device or "auto", config.accelerator.mixed_precision)
    return config


def _machine() -> Callable[[str, str], None]:
    """Refuses a device that is absent and a precision that it does not have; imports torch when first called."""

    @functools.cache
    def facts() -> Any:
        from lerobot.accelerator import device

        # Whether a device computes is tried by the job itself: that takes seconds.
        return dataclasses.replace(device.machine(), problem_of=lambda _device, _precision: "")

    @functools.cache
    def refusal(device: str, precision: str) -> ConfigError | None:
        from lerobot.accelerator.device import resolve
        from lerobot.accelerator.precision import check_precision

        try:
            check_precision(precision, resolve(device, facts(), precision))
        except ConfigError as error:
            return error
        return None

    def check(device: str, precision: str) -> None:
        if (error := refusal(device, precision)) is not None:
            raise ConfigError(str(error))

    return check
