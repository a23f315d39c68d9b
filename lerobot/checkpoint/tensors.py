"""Tensors from files, onto the processor; a file that is torn, empty or not there is refused by name."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lerobot.errors import ConfigError


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors in the safetensors `file`, whatever device they were on. Raises `ConfigError`."""
    try:
        return load_file(file, device="cpu")
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split()).removesuffix(f": {file}")
        raise ConfigError(f"{file} cannot be read ({reason}): give a checkpoint that has it whole") from error
