"""The words of a run: as its first line typed them, and as lines that went on with it changed them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lerobot.checkpoint.paths import TRAIN_CONFIG_FILE, find_pretrained, read_json
from lerobot.cli import unescape, unquote
from lerobot.errors import ConfigError

OVERRIDES_FILE = Path(".hydra", "overrides.yaml")
_LATER = ".hydra.*"
"""Where what each later line composed is, below the folder of a run."""


def split_override(word: str) -> tuple[str, str]:
    """Key and value of an override as Hydra stores it, without Hydra's quotes and escapes."""
    key, _, value = word.partition("=")
    return key.lstrip("+~"), unescape(unquote(value))


def alike(value: str) -> str:
    """One spelling for each number: `1e-3` is 0.001."""
    if value.lstrip("-").isdigit():
        return value
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return value


def read_words(path: Path) -> dict[str, str]:
    """The words in Hydra's file of them; `ValueError` where it holds none."""
    try:
        words = _yaml(path)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not isinstance(words or [], list):
        raise ValueError("no list of overrides")
    return dict(split_override(str(word)) for word in words or [])


def changed_words(run: Path, words: dict[str, str]) -> dict[str, str]:
    """Of the words that later lines typed, those that changed `words`: what the newest checkpoint was trained with.

    A line that was refused is not in it, nor one that the run went back behind.
    """
    typed = {key for file in run.glob(f"{_LATER}/{OVERRIDES_FILE.name}") for key in _or_empty(file)}
    if not typed:
        return {}
    try:
        config = read_json(find_pretrained(run) / TRAIN_CONFIG_FILE)
        first = _yaml(run / ".hydra" / "config.yaml")
    except (ConfigError, OSError):
        return {}
    changed = {}
    for key in sorted(typed):
        before, value = _at(first, key), _at(config, key)
        if value is not None and value not in (before, alike(words.get(key, ""))):
            changed[key] = value
    return changed


def composed(run: Path) -> dict[str, Any]:
    """Key to value of the config that the first line of a run came to; empty where that cannot be read."""
    try:
        return dict(_flat(_yaml(run / ".hydra" / "config.yaml"), ""))
    except (ConfigError, OSError, ValueError):
        return {}


def _flat(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict):
        yield key, node
        return
    for name, value in node.items():
        yield from _flat(value, f"{key}.{name}" if key else str(name))


def _or_empty(file: Path) -> dict[str, str]:
    try:
        return read_words(file)
    except (ValueError, OSError):
        return {}


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(str(error)) from error


def _at(config: Any, key: str) -> str | None:
    """A value as it is typed; None where `config` has none or a whole group there."""
    for name in key.split("."):
        if not isinstance(config, dict) or name not in config:
            return None
        config = config[name]
    if isinstance(config, dict | list):
        return None
    return "null" if config is None else str(config).lower() if isinstance(config, bool) else alike(str(config))
