"""`metrics.jsonl`, the record of truth of a run: strict JSON, one object a row, whole rows only."""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lerobot.disk import spared
from lerobot.errors import ConfigError
from lerobot.ranges import COUNT_OR_NONE
from lerobot.tracking.sink import Row, Sink

METRICS_FILE = "metrics.jsonl"


class JsonlSink(Sink):
    """Appends each row and hands it to the system at once, so that a kill loses at most the row being written.

    Rows that a full disk does not take wait here and are written first when it does: the file has no hole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._waiting = b""

    def log(self, row: Row) -> None:
        """Numbers that JSON does not have (NaN, inf) become null."""
        line = json.dumps({key: strict(value) for key, value in row.items()}, allow_nan=False)
        self._waiting += f"{line}\n".encode()
        self._write()

    def close(self) -> None:
        """Further rows are refused."""
        self._write()
        with spared(self._path.parent):
            os.close(self._file)

    def _write(self) -> None:
        with spared(self._path.parent):
            while self._waiting:  # a disk that fills up takes a part of a row: the rest follows it
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]


def strict(value: Any) -> Any:
    """`value`, or None where strict JSON cannot hold it."""
    return value if not isinstance(value, float) or abs(value) < float("inf") else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`. A last line that a kill tore is left out; a broken one before it is refused."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows, and whether the next one would be glued to what a kill left of the last."""
    content = path.read_bytes()
    rows = [_row(line) for line in content.splitlines()]
    is_torn = bool(content) and (rows[-1] is None or not content.endswith(b"\n"))
    if rows and rows[-1] is None:
        rows.pop()
    for number, row in enumerate(rows, start=1):
        if row is None:
            raise ConfigError(f"{path}, line {number} is no row of metrics: remove that line, or move the file away")
    return [row for row in rows if row is not None], is_torn


def _row(line: bytes) -> dict[str, Any] | None:
    """The object in `line` with its `step`; None where strict JSON holds no such thing."""
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row.get("step") in COUNT_OR_NONE else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def truncate_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Move the rows beyond `step` to the first free `metrics.<n>.jsonl`, and return those that stay."""
    with truncated(path, step) as kept:
        return kept


@contextmanager
def truncated(path: Path, step: int) -> Iterator[list[dict[str, Any]]]:
    """The rows up to `step`; on exit `path` has no others, and those beyond are in `metrics.<n>.jsonl`.

    Both files are on the disk before what is done inside begins: an exception there, or a full disk, leaves `path` as
    it was, and a kill loses no row.
    """
    rows, is_torn = _read(path) if path.exists() else ([], False)
    kept = [row for row in rows if row["step"] <= step]
    beyond = [row for row in rows if row["step"] > step]
    if not beyond and not is_torn:
        yield kept
        return
    archive, partial = _first_free(path), path.with_suffix(".tmp")
    try:
        if beyond:
            _write(archive, beyond)
        _write(partial, kept)
        yield kept
    except BaseException:
        for file in (partial, archive):
            file.unlink(missing_ok=True)
        raise
    partial.replace(path)


def _first_free(path: Path) -> Path:
    numbered = (path.with_suffix(f".{number}{path.suffix}") for number in itertools.count(1))
    return next(file for file in numbered if not file.exists())


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
