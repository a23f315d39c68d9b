"""What wandb's offline files hold. wandb (0.31) writes them now and then, so a kill takes the newest rows from them."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lerobot.tracking.sink import Row

HEADER = 7
"""Bytes of a file that a kill left without a record."""
_BLOCK, _PART = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def lost_rows(new: Path, run_id: str, step_key: str, rows: Sequence[Row]) -> list[Row]:
    """Of `rows`, those that the newest segment of the run lacks, if a kill cut it short.

    A segment that was finished has all, and one that is not there any more was sent. new: the folder of the segment
    that is begun now.
    """
    files = sorted(new.parent.glob(f"offline-run-*-{run_id}*/run-{run_id}.wandb"), reverse=True)
    segments = [file for file in files if file.parent != new]
    if not segments or any(record.HasField("exit") for record in _records(segments[0])):
        return []
    held = next((found for file in segments if (found := list(_history(file)))), [])
    last = max((row[step_key] for row in held if step_key in row), default=-1)
    known = {key for row in held if row.get(step_key) == last for key in row}
    newest = [{k: value for k, value in row.items() if k not in known} for row in rows if row["step"] == last]
    later = [row for row in rows if row["step"] > last]
    return [row for row in newest if any("/" in key for key in row)] + later


def _history(file: Path) -> Iterator[dict[str, Any]]:
    for record in _records(file):
        if record.HasField("history"):
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def _records(file: Path) -> Iterator[Any]:
    """Protobufs in LevelDB's log format: blocks of 32 KiB, records cut into parts at their ends."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    data, position, body = file.read_bytes(), HEADER, b""
    while position + _PART <= len(data):
        if (left := _BLOCK - position % _BLOCK) < _PART:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + _PART])
        position += _PART
        if kind == 0 or position + size > len(data):  # cut off
            return
        body = (b"" if kind in (_FULL, _FIRST) else body) + data[position : position + size]
        position += size
        if kind in (_FULL, _LAST):
            try:
                yield wandb_internal_pb2.Record.FromString(body)  # type: ignore[attr-defined]
            except DecodeError:  # garbled: what follows cannot be told
                return
