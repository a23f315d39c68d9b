"""What this machine has, and which of it a run gets: never another device than the one asked for.

Facts about the machine come in as one value, `Machine`, so that every refusal can be tested without the hardware.
"""

import platform
import re
from dataclasses import dataclass

import torch

from lerobot.errors import ConfigError

BACKENDS = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "mps": "mps", "xpu": "xpu"}
"""The words for a device to PyTorch's own type: a ROCm build shows AMD cards as cuda."""
REINSTALL = "uv pip install --reinstall torch torchvision --torch-backend=auto"


@dataclass(frozen=True)
class Device:
    """One device and what it can compute."""

    backend: str
    """cpu, cuda (NVIDIA), rocm (AMD), mps (Apple) or xpu (Intel)."""
    index: int | None = None
    """None where there can be only one."""
    name: str = ""
    memory_gb: float | None = None
    bf16: bool = True
    """In hardware. PyTorch runs it on older cards too, emulated and slower than float32."""
    fp16: bool = True
    """Autocast and a loss scaler both work."""
    tf32: bool = False
    fp64: bool = True

    @property
    def type(self) -> str:
        """PyTorch's word for the backend."""
        return BACKENDS[self.backend]

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, so that nothing lands on another card of the same kind."""
        return torch.device(self.type) if self.index is None else torch.device(self.type, self.index)


@dataclass(frozen=True)
class Machine:
    """The devices that this PyTorch build finds, best first, the processor last."""

    devices: tuple[Device, ...]
    torch_version: str = torch.__version__

    def of(self, backend: str) -> list[Device]:
        """The devices of a backend; cuda means AMD cards too, rocm means those alone."""
        return [d for d in self.devices if d.backend == backend or (backend == "cuda" and d.type == "cuda")]


def machine() -> Machine:
    """Look at this machine. Cheap, and touches no device's memory."""
    return Machine((*_cuda(), *_xpu(), *_mps(), _cpu()))


def _cpu() -> Device:
    # accelerate builds no loss scaler on the processor, so fp16 would silently be float32 there.
    return Device("cpu", name=platform.processor() or platform.machine(), fp16=False)


def _cuda() -> list[Device]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        is_rocm = torch.version.hip is not None
        found.append(
            Device(
                "rocm" if is_rocm else "cuda",
                index,
                facts.name,
                facts.total_memory / 2**30,
                bf16=is_rocm or facts.major >= 8,
                tf32=facts.gcnArchName.startswith(("gfx94", "gfx95")) if is_rocm else facts.major >= 8,
            )
        )
    return found


def _xpu() -> list[Device]:
    if not (hasattr(torch, "xpu") and torch.xpu.is_available()):
        return []
    found = []
    for index in range(torch.xpu.device_count()):
        facts = torch.xpu.get_device_properties(index)
        fp64 = bool(facts.has_fp64)
        # The scaler divides by the scale in float64, which Arc cards lack.
        found.append(Device("xpu", index, facts.name, facts.total_memory / 2**30, fp16=fp64, tf32=True, fp64=fp64))
    return found


def _mps() -> list[Device]:
    if not torch.backends.mps.is_available():
        return []
    macos = int((platform.mac_ver()[0] or "0").split(".")[0])
    memory = torch.mps.recommended_max_memory() / 2**30
    return [Device("mps", None, platform.processor() or "Apple", memory, bf16=macos >= 14, fp64=False)]


def resolve(request: str | None, facts: Machine) -> Device:
    """The device that `request` names (`auto`, `cuda`, `rocm`, `cuda:1`, ...), or a refusal that says what is there."""
    word = request or "auto"
    if word == "auto":
        return facts.devices[0]
    match = re.fullmatch(r"(\w+)(?::(\d+))?", word)
    if match is None or match[1] not in BACKENDS:
        raise ConfigError(
            f"device={word} is not one of auto, {', '.join(BACKENDS)}, or one with an index such as cuda:1"
        )
    backend, index = match[1], match[2]
    present = facts.of(backend)
    if not present:
        raise ConfigError(f"device={word} is absent: {_found(facts)}; type device=auto, {_how_to_get(backend, facts)}")
    if index is None:
        return present[0]
    for device in present:
        if (device.index or 0) == int(index):
            return device
    raise ConfigError(
        f"device={word} is absent: there are {len(present)} {backend} devices, counted from 0; {_found(facts)}"
    )


def _found(facts: Machine) -> str:
    names = ", ".join(d.backend if d.index is None else f"{d.backend}:{d.index} ({d.name})" for d in facts.devices)
    return f"PyTorch {facts.torch_version} finds {names} on this machine"


def _how_to_get(backend: str, facts: Machine) -> str:
    """What to do about an absent device: another build of PyTorch, or a look at the driver."""
    build = facts.torch_version.partition("+")[2]
    fits = {"cuda": build.startswith("cu"), "rocm": build.startswith("rocm"), "xpu": build.startswith("xpu")}
    if backend == "mps":
        return "mps needs Apple silicon with macOS 13 or newer"
    if fits.get(backend):
        look = {"cuda": "nvidia-smi", "rocm": "rocminfo", "xpu": "clinfo"}[backend]
        return f"or check the driver with `{look}`: this build is made for {backend} and sees no card"
    return f"or get a build of PyTorch for {backend} with `{REINSTALL}`"
