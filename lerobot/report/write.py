"""Writes a report: table, page and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lerobot.errors import ConfigError
from lerobot.report.curves import draw_all
from lerobot.report.findings import Findings, find
from lerobot.report.folders import read_folders
from lerobot.report.page import write_page
from lerobot.report.table import write_csv

PAGE_FILE = "report.html"
TABLE_FILE = "summary.csv"


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    page: Path
    table: Path
    pictures: list[Path]
    findings: Findings


def write_report(folders: Sequence[Path], output: Path | None = None, *, draws: bool = True) -> Report:
    """Compare the runs in `folders` (runs and sweeps) in `output`, by default the one folder given; `draws` the curves.

    Raises `ConfigError` where there is no run, or nowhere to write to.
    """
    folders = list({folder.resolve(): folder for folder in folders}.values())
    if output is None:
        if len(folders) != 1:
            raise ConfigError("several folders have no place in common: add --output <folder for the report>")
        output = folders[0]
    findings = find(read_folders(folders), folders)
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_csv(output / TABLE_FILE, findings.records, findings.groups)
        pictures = draw_all(findings.groups, output) if draws else []
        title = folders[0].resolve().name if len(folders) == 1 else f"{len(folders)} folders of runs"
        write_page(output / PAGE_FILE, title, findings, pictures)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written to ({error.strerror}): add --output <folder>") from error
    return Report(output / PAGE_FILE, output / TABLE_FILE, pictures, findings)
