"""A small computation that tells a device that computes from one that only says so.

A convolution, a matrix product and their gradients, compared with the processor's float32. Cards whose kernels are
missing in this build of PyTorch, broken drivers and integrated graphics that are listed and fail are all found by it.
"""

import functools
import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"no": 0.01, "bf16": 0.05, "fp16": 0.01}
"""Largest norm of the difference from the processor, as a part of its norm. float32 may be TF32, with the 10 bits of
float16. Two roundings differ by 0.006 in bf16 and 0.0007 in fp16."""
REPEATS = 4
TIMEOUT_S = 180.0
"""The first use of a card may compile kernels."""


@dataclass(frozen=True)
class Result:
    """What came of one precision (no, bf16 or fp16) on one device."""

    precision: str
    ms: float | None = None
    """Of the fastest time; the first loads kernels."""
    problem: str = ""


def check(device: torch.device, precision: str) -> Result:
    """Compute on `device` in `precision` and compare; whatever PyTorch raises becomes the problem."""
    try:
        starts = [time.perf_counter()]
        for _ in range(REPEATS):
            found = _compute(device, precision)
            starts.append(time.perf_counter())
    except (RuntimeError, AssertionError) as error:  # PyTorch raises the second where a backend is not built in.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Result(precision, problem=lines[0].strip().rstrip("."))
    ms = 1000 * min(stop - start for start, stop in itertools.pairwise(starts))
    return Result(precision, ms=round(ms, 3), problem=_difference(found, precision))


@functools.cache
def problem(device: torch.device, precision: str) -> str:
    """Why `device` does not compute in float32 and in `precision`; empty where it does. Tried once a process."""
    if device.type == "cpu":
        return ""
    for word in dict.fromkeys(("no", precision)):
        if found := check(device, word).problem:
            return f"{_in_words(word)}: {found}"
    return ""


def check_apart(device: torch.device, precisions: list[str]) -> list[Result]:
    """`check` in a process of its own, since a broken driver may end it or never answer."""
    command = [sys.executable, "-m", "lerobot.accelerator.smoke", str(device), *precisions]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = error.stdout or b"", None
    results = [Result(**json.loads(line)) for line in output.decode().splitlines() if line.startswith("{")]
    return results + [Result(word, problem=_ending(code)) for word in precisions[len(results) :]]


def _ending(code: int | None) -> str:
    if code is None:
        return f"no answer within {TIMEOUT_S:g} s"
    name = signal.Signals(-code).name if code < 0 else f"status {code}"
    return f"the driver ended the process ({name})"


def _compute(device: torch.device, precision: str) -> list[Tensor]:
    """The output and the gradients of a convolution and a product, in float32 on the processor."""
    images, kernels, weights = (tensor.to(device, copy=True).requires_grad_() for tensor in _inputs())
    with torch.autocast(device.type, DTYPES[precision], enabled=precision != "no"):
        output = F.linear(F.conv2d(images, kernels, padding=1).flatten(1), weights)
    if output.dtype != DTYPES[precision]:
        raise RuntimeError(f"it computed in {str(output.dtype).removeprefix('torch.')}")
    output.float().square().mean().backward()
    tensors = [output, images.grad, kernels.grad, weights.grad]
    return [tensor.detach().float().cpu() for tensor in tensors if tensor is not None]


@functools.cache
def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Images, convolution kernels and weights whose output is about 1."""
    draw = torch.Generator().manual_seed(0)
    shapes_and_sizes = [((4, 3, 16, 16), 1.0), ((8, 3, 3, 3), 0.2), ((32, 8 * 16 * 16), 0.02)]
    images, kernels, weights = (size * torch.randn(shape, generator=draw) for shape, size in shapes_and_sizes)
    return images, kernels, weights


@functools.cache
def _reference() -> list[Tensor]:
    return _compute(torch.device("cpu"), "no")


def _difference(found: list[Tensor], precision: str) -> str:
    names = ("output", "gradient of the input", "gradient of the convolution", "gradient of the product")
    for name, tensor, expected in zip(names, found, _reference(), strict=True):
        share = ((tensor - expected).norm() / expected.norm()).item()
        if not share <= TOLERANCE[precision]:  # so that NaN counts
            return f"the {name} differs from the processor's by {share:.2g} of its size"
    return ""


def _in_words(precision: str) -> str:
    return str(DTYPES[precision]).removeprefix("torch.")


def main(device: str, precisions: list[str]) -> None:
    """One JSON object a line, written as soon as it is known."""
    for word in precisions:
        print(json.dumps(asdict(check(torch.device(device), word))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
