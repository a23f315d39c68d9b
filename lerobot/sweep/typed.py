"""The line of a sweep on its way past Hydra, and the rewritings that let one line mean many jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from lerobot.cli import Line, grammar, translate, unquote
from lerobot.config import conf_dir
from lerobot.errors import ConfigError
from lerobot.sweep.jobs import is_about_the_sweep, read_sweep

_WIDE = ("experiment", "debug")
"""Groups that may set any key."""

_FOLDERS = ("output_dir=", "hydra.sweep.dir=")


@dataclass(frozen=True)
class Typed:
    """A command with its words in Hydra's names, before stored runs and policies took their place."""

    command: str
    flags: list[str]
    words: list[str]
    about: list[str]
    """Those about how the sweep is run, its folder left out."""


TYPED: ContextVar[Typed] = ContextVar("TYPED")
"""What the sweep under way was started with."""


@contextmanager
def typed(command: str, line: Line) -> Iterator[None]:
    """Remember `line` until exit."""
    plain = [word for word in line.overrides() if not word.startswith(_FOLDERS)]
    about = [word for word in plain if is_about_the_sweep(word)]
    flags = [flag for flag in line.flags if flag not in ("-m", "--multirun")]
    token = TYPED.set(Typed(command, flags, [word for word in plain if word not in about], about))
    try:
        yield
    finally:
        TYPED.reset(token)


def check(line: Line) -> None:
    """Refuse words about a sweep on a line that is none, and lists of them on one that is."""
    words = [(key, value) for _, key, value in line.words if key.startswith("sweep.")]
    if words and not line.is_multirun:
        raise ConfigError(f"{words[0][0]}={words[0][1]} is about a sweep: add -m")
    for key in ("hydra/launcher", "hydra/sweeper"):
        if (value := line.get(key)) is not None and not line.is_multirun and not line.only_looks:
            raise ConfigError(f"{key}={value} is about a sweep: add -m")
    if (name := line.get("hydra.sweep.subdir")) is not None and line.get("hydra/sweeper") is None:
        raise ConfigError(f"hydra.sweep.subdir={name}: a sweep names the folders of its jobs itself, leave it out")


def recall(command: str, line: Line) -> None:
    """For `sweep.resume=<folder>`: put the words of that sweep on `line`, where none were typed."""
    path = line.take("sweep.resume")
    if path is None or path in ("null", "None"):
        return
    folder = Path(unquote(path))
    stored = read_sweep(folder)
    if stored is None:
        raise ConfigError(f"sweep.resume={path} holds no sweep: type the folder of one, such as outputs/multirun/...")
    if stored.command != command:
        raise ConfigError(f"{folder} holds a sweep of lerobot-{stored.command}: type that command")
    for setting in ("output_dir", "hydra.sweep.dir"):
        if (other := line.take(setting)) is not None and Path(unquote(other)).resolve() != folder.resolve():
            raise ConfigError(f"{setting}={other} is not the folder of the sweep that goes on: leave it out")
    before = translate(["-m", *stored.words])
    for part in ("launcher", "sweeper"):  # the settings of one fit no other
        if (chosen := line.get(f"hydra/{part}")) is not None and chosen != before.get(f"hydra/{part}"):
            before.words = [word for word in before.words if not word[1].startswith(f"hydra.{part}.")]
    line.words = [word for word in before.words if line.get(word[1]) is None] + line.words
    line.flags += [flag for flag in stored.flags if flag not in line.flags]
    line.put("hydra.sweep.dir", grammar(str(folder)))


def loosen(line: Line) -> None:
    """Let words that fit only some choices of a swept group be read with each job, not with the group's default.

    Hydra first composes what all jobs share. A list of one is a list: it leaves that to the jobs.
    """
    parser = OverridesParser.create()
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    swept = {
        key
        for prefix, key, value in line.words
        if key in groups and value is not None and parser.parse_override(f"{prefix}{key}={value}").is_sweep_override()
    }

    def depends(key: str) -> bool:
        return "." in key and not key.startswith("hydra.") and bool(swept & {key.partition(".")[0], *_WIDE})

    line.words = [
        (prefix, key, _list_of_one(parser, f"{prefix}{key}", value) if depends(key) else value)
        for prefix, key, value in line.words
    ]


def _list_of_one(parser: OverridesParser, key: str, value: str | None) -> str | None:
    if value in (None, "null") or parser.parse_override(f"{key}={value}").is_sweep_override():
        return value
    return f"choice({value})"
