"""Tensors to files and back; and the host memory in which they wait to be written."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lerobot.errors import ConfigError


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors in the safetensors `file`, on the processor, whatever they were on. Raises `ConfigError`."""
    try:
        return load_file(file, device="cpu")
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split()).removesuffix(f": {file}")
        raise ConfigError(f"{file} cannot be read ({reason}): give a checkpoint that has it whole") from error


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` as safetensors, with the one word that readers look for. Raises `OSError`."""
    here = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(here, file, {"format": "pt"})
    except SafetensorError as error:  # a full disk, in the words of the library
        raise OSError(f"{file}: {error}") from error


class Staging:
    """Copies of tensors in host memory, the same memory every time: training goes on while they are written.

    pinned: in memory that the device writes to by itself; all copies then go at once and are waited for at the end.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What `tensors` hold now; the copies of the call before are overwritten."""
        staged = {name: self._buffer(name, value) for name, value in tensors.items()}
        for name, value in tensors.items():
            staged[name].copy_(value.detach(), non_blocking=self._pinned)
        if self._pinned:
            torch.accelerator.synchronize()
        self._buffers = staged  # no more than these
        return dict(staged)

    def _buffer(self, name: str, value: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=self._pinned)
        return buffer
