import errno
import json
import math
import os
from pathlib import Path

import pytest

from lerobot import disk
from lerobot.errors import ConfigError
from lerobot.tracking.jsonl import JsonlSink, read_metrics, truncate_after


def written(path: Path, *rows: dict) -> Path:
    sink = JsonlSink(path)
    for row in rows:
        sink.log(row)
    sink.close()
    return path


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_rows_are_strict_json(tmp_path):
    path = written(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": math.nan, "train/grad_norm": -math.inf})

    row = json.loads(path.read_text(), parse_constant=refuse)

    assert row == {"step": 1, "train/loss": None, "train/grad_norm": None}


def test_a_row_is_on_disk_before_the_next_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.log({"step": 1})

    assert read_metrics(path) == [{"step": 1}]  # the file is still open, as it is when a run is killed
    sink.close()


def test_a_torn_last_line_is_left_out(tmp_path):
    path = written(tmp_path / "metrics.jsonl", {"step": 1}, {"step": 2})
    path.write_text(path.read_text()[:-4])

    assert read_metrics(path) == [{"step": 1}]


BROKEN = [b'{"ste', b"\xff\xfe", b"[1]", b"3", b"", b'{"loss": 1}', b'{"step": "x"}', b'{"step": 2, "loss": NaN}']


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_in_the_middle_is_refused_by_its_number(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    before = path.read_bytes()

    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is no row of metrics: remove that line"):
        truncate_after(path, 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", BROKEN)
def test_whatever_tore_the_last_line_it_is_left_out(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line)

    assert truncate_after(path, 1) == [{"step": 1}]
    assert path.read_bytes() == b'{"step": 1}\n'


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_rows_that_a_full_disk_does_not_take_are_written_when_it_does(tmp_path, monkeypatch, caplog, fault):
    """The run ended with a traceback."""
    path, room, write = tmp_path / "metrics.jsonl", [20], os.write

    def full_write(file, data):
        if not room[0]:
            raise OSError(fault, os.strerror(fault))
        written = write(file, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full_write)
    disk.begin(tmp_path)
    sink = JsonlSink(path)
    for step in range(1, 5):
        sink.log({"step": step})
    assert read_metrics(path) == [{"step": 1}]  # and the first bytes of the second, which is left out
    room[0] = 10_000
    sink.log({"step": 5})
    sink.close()

    assert read_metrics(path) == [{"step": step} for step in range(1, 6)]
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"{tmp_path} cannot be written to ({os.strerror(fault)}) and rows are being lost")


def test_rows_beyond_a_checkpoint_move_aside_at_each_resume(tmp_path):
    path = written(tmp_path / "metrics.jsonl", {"step": 1}, {"step": 4}, {"step": 2, "eval/loss": 1.0}, {"step": 3})

    assert truncate_after(path, 2) == [{"step": 1}, {"step": 2, "eval/loss": 1.0}]
    written(path, {"step": 3, "again": 1})
    truncate_after(path, 2)

    assert read_metrics(path) == [{"step": 1}, {"step": 2, "eval/loss": 1.0}]
    assert read_metrics(tmp_path / "metrics.1.jsonl") == [{"step": 4}, {"step": 3}]
    assert read_metrics(tmp_path / "metrics.2.jsonl") == [{"step": 3, "again": 1}]


def test_a_row_after_a_torn_one_starts_a_new_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step"')

    truncate_after(path, 1)
    written(path, {"step": 2})

    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    assert not (tmp_path / "metrics.1.jsonl").exists()


def test_a_new_run_has_nothing_to_truncate(tmp_path):
    assert truncate_after(tmp_path / "metrics.jsonl", 0) == []
    assert list(tmp_path.iterdir()) == []
