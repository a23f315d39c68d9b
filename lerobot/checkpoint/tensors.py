"""Tensors to files and back, and the host memory in which they wait to be written.

A file that is torn, empty, no safetensors or not there is refused by name. Nothing is unpickled. The format's reader
refuses headers above 100 MB and tensors that overlap or lie outside.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lerobot.accelerator.shards import gathered, is_shard
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


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` as safetensors, with the one word that readers look for. Raises `OSError`."""
    here = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(here, file, {"format": "pt"})
    except SafetensorError as error:  # a full disk, in the words of the library
        raise OSError(f"{file}: {error}") from error


def _is_here(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not is_shard(tensor)


class Staging:
    """Copies of tensors in host memory, the same memory every time: training goes on while they are written.

    pinned: in memory that the device writes to by itself; its copies then go all at once.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of `tensors`, of those on a device at once, of the others only in `fill`; the last ones are lost."""
        self._buffers = {name: self._buffer(name, value) for name, value in tensors.items()}
        far = {name: value for name, value in tensors.items() if not _is_here(value)}
        for name, value in far.items():  # of what is spread over ranks one after the other is gathered
            self._buffers[name].copy_(gathered(value.detach()), non_blocking=self._pinned)
        for device in {value.device for value in far.values()} if self._pinned else ():
            torch.accelerator.synchronize(device)
        return dict(self._buffers)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what `take` left out. `tensors` must not change meanwhile."""
        for name, value in tensors.items():
            if _is_here(value):
                self._buffers[name].copy_(value.detach())

    def _buffer(self, name: str, value: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
        return buffer
