"""The jobs that a line means: their overrides, their numbers, the names of their folders; and the file of them."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lerobot.cli import grammar, unescape
from lerobot.errors import ConfigError
from lerobot.status import SWEEP_FILE, now, write_json, write_status

LONGEST_NAME = 60
_OF_THE_SWEEP = re.compile(r"[+~]*(sweep\.|hydra[./])")
"""Words that say how a sweep is run, not what its jobs are."""
_SPELLED = {"policy.device": "device", "accelerator.mixed_precision": "precision"}
_SAYS_ITSELF = (
    *("policy", "device", "precision", "env", "env.task", "optimizer", "scheduler", "experiment", "debug"),
    "policy.path",
)
"""Keys whose value needs no key beside it."""


@dataclass
class Job:
    """One combination."""

    number: int
    folder: str
    """Its name in the folder of the sweep."""
    overrides: list[str]
    """Hydra's words for it, those about the sweep left out. They are what it is known by."""
    differs: list[str] = field(default_factory=list)
    """Those of them that not all jobs share, as they are typed."""


@dataclass
class Sweep:
    """What `sweep.json` holds."""

    command: str
    flags: list[str]
    words: list[str]
    """The line that started it."""
    jobs: list[Job]
    search: bool = False
    """Whether the jobs follow from each other, and more are to come."""


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write down what the sweep in `folder` is."""
    write_json(folder / SWEEP_FILE, asdict(sweep))


def write_refusal(sweep: Path, job: Job, reason: str) -> None:
    """Write into the folder of a job that it cannot work."""
    place = sweep / job.folder
    write_status(place, state="refused", error=reason, ended=now())
    (place / ".hydra").mkdir(exist_ok=True)
    OmegaConf.save(job.overrides, place / ".hydra" / "overrides.yaml")


def read_sweep(folder: Path) -> Sweep | None:
    """What `folder` holds, if it is a sweep that our sweeper started."""
    path = folder / SWEEP_FILE
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text())
        sweep = Sweep(**{**stored, "jobs": [Job(**job) for job in stored["jobs"]]})
        for listed in (sweep.flags, sweep.words, *(job.overrides for job in sweep.jobs)):
            if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
                raise TypeError(f"{listed} in place of words")
        return sweep
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): type another folder") from error


def is_about_the_sweep(word: str) -> bool:
    """Whether `word` leaves the jobs as they are."""
    return _OF_THE_SWEEP.match(word) is not None


def folder_words(sweep: Path, name: str) -> list[str]:
    """Hydra's words for the folder of a job, where what an earlier pass composed stays."""
    earlier = len(list((sweep / name).glob(".hydra*")))
    again = [f"hydra.output_subdir=.hydra.{earlier}"] if earlier else []
    return [f"hydra.sweep.subdir={grammar(name)}", *again]


def expand(words: Sequence[str], mode: str) -> tuple[list[list[str]], list[str]]:
    """The overrides of each job, and the keys that have several values."""
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides(list(words)):
        key, typed = override.get_key_element(), override.input_line or ""
        if not override.is_sweep_override():
            values[key] = [typed]
        elif override.is_discrete_sweep():
            try:
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            except ValueError as error:  # a step of 0
                raise ConfigError(f"{typed} is no list of values ({error}): type another step") from error
            if not values[key]:
                raise ConfigError(f"{typed} holds no value: the end of a range is left out, as in Python")
        else:
            raise ConfigError(f"{typed} has no end of values: type a list or range(...), or a sweeper that searches")
    swept = [key for key, found in values.items() if len(found) > 1]
    if mode == "zip" and swept:
        number = _equal_length(values, swept)
        rows: Any = zip(*(found if key in swept else found * number for key, found in values.items()), strict=True)
    else:
        rows = itertools.product(*values.values())
    unique = dict.fromkeys(tuple(row) for row in rows)
    return [list(row) for row in unique], swept


def _equal_length(values: dict[str, list[str]], swept: list[str]) -> int:
    numbers = {spelled(key): len(values[key]) for key in swept}
    if len(set(numbers.values())) > 1:
        told = ", ".join(f"{key} has {number}" for key, number in numbers.items())
        raise ConfigError(
            f"sweep.mode=zip pairs value lists and these differ in length: {told}; type as many of each, or "
            "sweep.mode=cross for every combination"
        )
    return next(iter(numbers.values()))


def spelled(word: str) -> str:
    """`word` as it is typed: `precision=no`, not `accelerator.mixed_precision=no`."""
    key, equals, value = word.partition("=")
    shown = value if value.startswith(("'", '"')) else unescape(value)
    return f"{_SPELLED.get(key, key)}{equals}{shown}"


def short_name(differs: Sequence[str], device: str, precision: str) -> str:
    """What differs, fit for the name of a folder; device and precision where they alone do, or nothing does."""
    parts = [spelled(word).partition("=") for word in differs]
    places = [value for key, _, value in parts if key in ("device", "precision")]
    others = [(key, value) for key, _, value in parts if key not in ("device", "precision")]
    words = [device, precision] if places or not others else []
    last = [key.rpartition(".")[2] for key, _ in others]
    for key, value in others:
        short = key.rpartition(".")[2]
        name = key.replace(".", "-") if last.count(short) > 1 else short.removeprefix("optimizer_")
        words.append(_clean(value) if key in _SAYS_ITSELF else _named(name.lstrip("+~"), value))
    return "_".join(map(_clean, words))[:LONGEST_NAME].rstrip("_-.")


def _named(name: str, value: str) -> str:
    text = _clean(value)
    return f"{name}{text}" if re.match(r"[\d+.-]", text) else f"{name}-{text}"


def _clean(text: str) -> str:
    """`text` without what a folder's name should not hold; of a path, its end."""
    end = text.strip("'\"").rstrip("/").replace("/checkpoints/", "-").rpartition("/")[2]
    return re.sub(r"[^\w.+-]+", "-", end).strip("-.") or "empty"
