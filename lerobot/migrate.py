"""Stored run configs of any version, read as this version's. Imports no torch.

A new version of the format comes with `SCHEMA_VERSION` one higher and a function in `MIGRATIONS` that takes the
config of the version before. Keys that are new need none, they take their defaults; nor do keys that are gone.
"""

import dataclasses
import functools
import logging
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from lerobot.checkpoint.json_file import holds_interpolation, read_json
from lerobot.config import NOT_STORED, SCHEMA_VERSION, TrainConfig
from lerobot.errors import ConfigError
from lerobot.foreign import known_class

log = logging.getLogger(__name__)

VERSION_KEY = "schema_version"


def _without_its_start(stored: dict[str, Any]) -> dict[str, Any]:
    """Version 0 also stored how a run was started (`resume`, `interrupt_after`), which is not what it is."""
    return {key: value for key, value in stored.items() if key not in NOT_STORED}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _without_its_start}
"""Version to what makes the next one of it."""


def read_run(file: Path) -> dict[str, Any]:
    """The run config in `file` with the keys of this version; another's are named once. LeRobot's stays as it is.

    Raises `ConfigError`.
    """
    stored = read_json(file)
    if not isinstance(stored.get("policy"), dict):
        raise ConfigError(f"{file} holds no run's config: name a run, or its train_config.json")
    if holds_interpolation(stored):
        raise ConfigError(f"{file} has a reference (${{...}}) in place of a value: give the config of a run")
    return current(stored, file) if is_ours(stored) else stored


def is_ours(stored: dict[str, Any]) -> bool:
    """Whether a run config was written here and not by LeRobot."""
    return "_target_" in stored["policy"]


def current(stored: dict[str, Any], file: Path) -> dict[str, Any]:
    """`stored` as this version would have written it; what it does not know is left out, and all is said once."""
    version = stored.get(VERSION_KEY, 0)
    if not isinstance(version, int) or version < 0:
        raise ConfigError(f"{file} has {VERSION_KEY}={version}: give the config of another checkpoint")
    said = []
    if version > SCHEMA_VERSION:
        said.append(f"it was written by a newer version (format {version}, this one knows {SCHEMA_VERSION})")
    elif version < SCHEMA_VERSION:
        said.append(f"format {version} is read as format {SCHEMA_VERSION}")
    for older in range(version, SCHEMA_VERSION):
        stored = MIGRATIONS[older](stored)
    unknown: list[str] = []
    absent: list[str] = []
    kept = _fit({key: value for key, value in stored.items() if key != VERSION_KEY}, TrainConfig, "", unknown, absent)
    absent = [key for key in absent if key not in NOT_STORED]
    for group in ("dataset", "optimizer", "scheduler"):
        if not isinstance(kept.get(group), dict):
            raise ConfigError(f"{file} has no {group}: give the config of another checkpoint, or of the run's .hydra")
    if unknown:
        said.append(f"unknown keys have no effect: {', '.join(unknown)}")
    if absent:
        said.append(f"keys that are not there take their defaults: {', '.join(absent)}")
    if said:
        _warn_once(f"{file}: {'; '.join(said)}")
    return kept


def _fit(node: dict[str, Any], cls: type[Any], prefix: str, unknown: list[str], absent: list[str]) -> dict[str, Any]:
    """`node` without what `cls` does not have; dotted names of that, and of what is not in `node`, are appended."""
    kinds = {field.name: field.type for field in dataclasses.fields(cls)}
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "_target_":
            kept[key] = value
        elif key not in kinds:
            unknown.append(prefix + key)
        elif isinstance(value, dict) and (inner := _class_of(value, kinds[key])) is not None:
            kept[key] = _fit(value, inner, f"{prefix}{key}.", unknown, absent)
        else:
            kept[key] = value
    absent += [prefix + key for key in kinds if key not in node]
    return kept


def _class_of(node: dict[str, Any], kind: Any) -> type[Any] | None:
    """The dataclass that a node is of; None where its keys are free."""
    kinds = [known_class(node["_target_"])] if "_target_" in node else [kind]
    kinds = get_args(kind) if isinstance(kinds[0], types.UnionType) else kinds
    return next((each for each in kinds if isinstance(each, type) and dataclasses.is_dataclass(each)), None)


@functools.cache
def _warn_once(message: str) -> None:
    log.warning(message)
