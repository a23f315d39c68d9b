"""How each backend says that memory ran out: the one place that knows."""

import re

import torch

from lerobot.errors import RunError

_SAYS = re.compile(
    r"out of memory|OUT_OF_(DEVICE|HOST)_MEMORY|_STATUS_ALLOC_FAILED"  # drivers and their libraries
    r"|Invalid buffer size"  # Apple's, of one tensor that is larger than the GPU takes
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that the device, or the machine, had no memory left. Our own sentences about it do not."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    own = isinstance(error, RunError)
    return isinstance(error, RuntimeError) and not own and _SAYS.search(str(error)) is not None
