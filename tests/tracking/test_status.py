"""`status.json` is whole or counts as not there."""

import os

import pytest

from lerobot.status import read_status, write_json, write_status


@pytest.mark.parametrize("content", [b"", b'{"state": "run', b"\xff", b"[]", b"null"])
def test_a_torn_status_is_unknown_and_the_next_one_replaces_it(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    assert read_status(tmp_path) == {}
    write_status(tmp_path, state="done")
    assert read_status(tmp_path) == {"state": "done"}


def test_a_file_is_on_the_disk_before_it_replaces_another(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append("fsync") or fsync(handle))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replace") or replace(*paths))
    write_json(tmp_path / "status.json", {"state": "done"})
    assert done == ["fsync", "replace"]
