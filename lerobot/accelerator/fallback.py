"""Names what runs on the processor in a run on Apple's GPU.

PyTorch decides when it is loaded: with PYTORCH_ENABLE_MPS_FALLBACK=1 every operation that the GPU lacks runs on the
processor, else all but a few raise. accelerate would set the variable where it chooses a device, and it is given one.
So the variable is on where the user exported it, and what it does is said.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger(__name__)

VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
_WARNING = re.compile(r"operator '(.+?)' is not currently supported on the MPS backend")


@contextmanager
def named_fallbacks(backend: str) -> Iterator[None]:
    """On `mps`, say each operation that falls back, once; PyTorch alone would name the first."""
    if backend != "mps":
        yield
        return
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        log.warning("%s=%s: what Apple's GPU lacks runs on the cpu, named as it comes", VARIABLE, os.environ[VARIABLE])
    was_always, show = torch.is_warn_always_enabled(), warnings.showwarning
    named: set[str] = set()

    def look(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        match = _WARNING.search(str(message))
        if match is None:
            show(message, category, *where, **more)
        elif match[1] not in named:
            named.add(match[1])
            log.warning("%s runs on the cpu: Apple's GPU lacks it in this version of PyTorch", match[1])

    torch.set_warn_always(True)
    warnings.showwarning = look
    try:
        yield
    finally:
        warnings.showwarning = show
        torch.set_warn_always(was_always)
