"""Run configs that may come from anybody: what they name is looked up, and runs nothing. Imports no torch."""

import dataclasses
import re
import sys
from typing import Any

from hydra.utils import get_class

from lerobot.compat import GROUP_OF_TYPE, KEY_NAMES, flag
from lerobot.config import OPEN_GROUPS, TrainConfig
from lerobot.errors import ConfigError


def refuse_strange_code(stored: dict[str, Any]) -> None:
    """A config that came from somewhere names classes: only this package's, and those imported already, are looked up.

    Whoever brings another package's types the option of it, and so names the code themselves.
    """
    for group, base in OPEN_GROUPS.items():
        node = stored.get(group)
        if node is None:
            continue
        cls = known_class(node.get("_target_")) if isinstance(node, dict) else None
        if cls is None or not issubclass(cls, base):
            target = node.get("_target_") if isinstance(node, dict) else node
            raise ConfigError(
                f"the stored config names {target} as its {group}, which is no {base.__name__} of this package: "
                f"type {group}=<option> to name one yourself"
            )


def known_class(target: Any) -> type | None:
    """The dataclass of that name, without running code of another package that has not run yet."""
    module = str(target).rpartition(".")[0]
    if module not in sys.modules and not module.startswith("lerobot."):
        return None
    try:
        cls = get_class(str(target))
    except (ImportError, ValueError, AttributeError):
        return None
    return cls if dataclasses.is_dataclass(cls) else None


def is_setting(key: str, value: str) -> bool:
    """Whether a key of LeRobot's is one of a run, or one that `compat` answers; not Hydra's own, nor a class's name."""
    if not all(re.fullmatch(r"[A-Za-z]\w*", part) for part in key.split(".")):
        return False
    if key in GROUP_OF_TYPE or key in OPEN_GROUPS:  # an option, and no path to one
        return re.fullmatch(r"'?[\w-]+'?", value) is not None
    is_ours = key.partition(".")[0] in {field.name for field in dataclasses.fields(TrainConfig)}
    return is_ours or key in KEY_NAMES or flag(key, value) is not None
