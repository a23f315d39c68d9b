"""JSON objects from files that may come from anybody. Imports no torch."""

import json
from pathlib import Path
from typing import Any

from lerobot.errors import ConfigError

MOST_BYTES = 16 * 2**20
"""Of one file; a checkpoint's own are a few KB, and Python makes ten times as much of them."""
MOST_LEVELS = 32
"""Of nesting; a checkpoint's own files have fewer than ten."""


def read_json(file: Path) -> dict[str, Any]:
    """The object in `file`, strict JSON of at most `MOST_BYTES`; `ConfigError` if there is none."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES // 2**20} MB")
        content = json.loads(file.read_text(), parse_constant=_refuse_constant)
        _refuse_depths(content)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): give a checkpoint that has it whole") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} holds a {type(content).__name__}: give a checkpoint whose {file.name} is an object")
    return content


def holds_interpolation(value: Any) -> bool:
    """Whether OmegaConf would put something else, such as an environment variable, in place of a part of `value`."""
    return "${" in json.dumps(value, default=vars)


def _refuse_depths(content: Any) -> None:
    level = [content]
    for _ in range(MOST_LEVELS):
        parts = (
            list(part.values()) if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))
        )
        level = [item for part in parts for item in part]
    if level:
        raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
