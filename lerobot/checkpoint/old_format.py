"""Checkpoints of LeRobot before 0.4, whose statistics are among the weights. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

PREFIXES = ("normalize_inputs.buffer_", "normalize_targets.buffer_", "unnormalize_outputs.buffer_")
"""Of the statistics' names; where two say something of one feature, the last holds: actions come back by it."""
_MOST_BYTES = 2**20
"""Of a header that is looked through; the tensors of such a policy are named in less."""


def holds_statistics(weights_file: Path) -> bool:
    """Whether the safetensors file names statistics. A file that is anything else does not."""
    with weights_file.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return f'"{PREFIXES[0]}'.encode() in file.read(min(length, _MOST_BYTES))


def is_statistic(name: str) -> bool:
    """Whether the tensor `name` is one, and no weight."""
    return name.startswith(PREFIXES)


def read_statistics(tensors: dict[str, Any], features: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Feature to statistics, of those in `tensors`; a feature's dots are underscores there."""
    stats: dict[str, dict[str, Any]] = {}
    for prefix in PREFIXES:
        for key in features:
            stem = f"{prefix}{key.replace('.', '_')}."
            found = {name.removeprefix(stem): value for name, value in tensors.items() if name.startswith(stem)}
            stats.setdefault(key, {}).update(found)
    return {key: entry for key, entry in stats.items() if entry}
