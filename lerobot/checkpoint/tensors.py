"""Tensors from files, onto the processor; a file that is torn, empty, no safetensors or not there is refused by name.

Nothing is unpickled. The format's own reader refuses headers above 100 MB and tensors that overlap or lie outside.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lerobot.errors import ConfigError

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of numbers that weights are stored in, in the format's words."""


def read_tensors(file: Path, *, most_bytes: float = float("inf")) -> dict[str, Tensor]:
    """The tensors in the safetensors `file`, whatever device they were on. Raises `ConfigError`."""
    try:
        if file.stat().st_size > most_bytes:
            raise OSError(f"it has more than {most_bytes / 2**20:.0f} MB")
        return load_file(file, device="cpu")
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def read_shapes(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name to shape and type of number (`F32`, ...), from the file's header alone. Raises `ConfigError`."""
    try:
        with safe_open(file, "pt", device="cpu") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split()).removesuffix(f": {file}")
    return ConfigError(f"{file} cannot be read ({reason}): give a checkpoint that has it whole")
