"""Which runs a folder holds, those that left nothing among them."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from lerobot.errors import ConfigError
from lerobot.report.record import Record, is_run, read_run
from lerobot.report.words import split_override
from lerobot.sweep.jobs import Job, read_sweep

MULTIRUN_FILE = "multirun.yaml"
MOST_JOBS = 10_000
WINNER_FOLDER = "winner"
"""Where a sweep's best policy is evaluated anew."""


def read_folders(folders: Sequence[Path]) -> list[Record]:
    """The runs of run folders, and of sweep folders by number, each once. Raises `ConfigError` where there is none."""
    try:
        found = [record for folder in folders for record in _read(folder)]
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}): name a folder that can be") from error
    once: dict[Path, Record] = {}
    for record in found:
        once.setdefault(record.folder.resolve(), record)
    records = list(once.values())
    if len({record.name for record in records}) < len(records):
        for record in records:
            record.name = str(record.folder)
    return records


def job_folders(sweep: Path) -> list[Path]:
    """The folders of a sweep that jobs were in, by number."""
    jobs = [path for path in sweep.iterdir() if path.is_dir() and path.name != WINNER_FOLDER and is_run(path)]
    return sorted(jobs, key=lambda job: (job_number(job), job.name))


def job_number(job: Path) -> int:
    """The number that Hydra gave a job; -1 where the folder's name holds none."""
    number = job.name.partition("_")[0]
    return int(number) if number.isdecimal() else -1


def _read(folder: Path) -> list[Record]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: type the folder of a run or of a sweep")
    if is_run(folder):
        return [read_run(folder, folder.resolve().name)]
    if (sweep := read_sweep(folder)) is not None:
        return [_of_job(folder / job.folder, job) for job in sweep.jobs]
    jobs = job_folders(folder)
    records = [read_run(job, job.name) for job in jobs]
    records += _missing(folder, {job_number(job): record for job, record in zip(jobs, records, strict=True)})
    if not records:
        raise ConfigError(
            f"{folder} holds no run: type the folder of a run or of a sweep, such as outputs/multirun/<day>/<time>_act"
        )
    return sorted(records, key=lambda record: (job_number(record.folder), record.name))


def _of_job(folder: Path, job: Job) -> Record:
    """A job that `sweep.json` lists; its words are those, as `.hydra` holds some in the words of one process."""
    words = dict(map(split_override, job.overrides))
    if is_run(folder):
        return read_run(folder, job.folder, words)
    return Record(job.folder, folder, state="not run", overrides=words, has_overrides=True)


def _missing(sweep: Path, there: dict[int, Record]) -> list[Record]:
    """The jobs that a sweep was to have and that left no folder."""
    expected = expected_jobs(sweep)
    wrong = [
        n for n, record in there.items() if record.overrides and expected.get(n, record.overrides) != record.overrides
    ]
    if wrong or not expected:  # not a plain product of lists: only the gaps in the numbers are certain
        expected = {number: {} for number in range(max(there, default=-1))}
    return [
        Record(str(number), sweep / str(number), error="left nothing", overrides=words, has_overrides=bool(words))
        for number, words in expected.items()
        if number not in there
    ]


def expected_jobs(sweep: Path) -> dict[int, dict[str, str]]:
    """Number to overrides of the jobs that `multirun.yaml` crosses; empty where it does not say."""
    file = sweep / MULTIRUN_FILE
    if not file.is_file():
        return {}
    import yaml
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        stored = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        words = OverridesParser.create().parse_overrides(stored["hydra"]["overrides"]["task"])
        lists = [
            [f"{word.get_key_element()}={value}" for value in word.sweep_string_iterator()]
            if word.is_discrete_sweep()
            else [f"{word.get_key_element()}={word.get_value_element_as_str()}"]
            for word in words
        ]
    except (yaml.YAMLError, HydraException, KeyError, TypeError):
        return {}
    if math.prod(map(len, lists)) > MOST_JOBS:
        return {}
    return {n: dict(map(split_override, job)) for n, job in enumerate(itertools.product(*lists))}
