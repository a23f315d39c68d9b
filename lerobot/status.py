"""`status.json`: what became of a run, in the folder of the run."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by strict JSON of `value`, all of it or none."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")
    os.replace(temporary, path)  # noqa: PTH105


def read_status(folder: Path) -> dict[str, Any]:
    """What `status.json` says; an empty dict where there is none yet."""
    path = folder / STATUS_FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def write_status(folder: Path, **changes: Any) -> None:
    """Change keys of `status.json`: state (running, done, failed, refused or stopped), step, steps, error, started, ended."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATUS_FILE, {**read_status(folder), **changes})
