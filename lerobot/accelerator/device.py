"""What this machine has, and which of it a run gets: never another device than the one asked for.

Facts about the machine come in as one value, `Machine`, so that every refusal can be tested without the hardware.
"""

import logging
import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lerobot.accelerator import smoke
from lerobot.accelerator.capabilities import BACKENDS, TITLES, Capabilities, Facts, capabilities, version
from lerobot.accelerator.fit import REINSTALL, misfits, variables
from lerobot.accelerator.hardware import Card, find_cards
from lerobot.errors import ConfigError

log = logging.getLogger(__name__)

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One device and what it can do."""

    backend: str
    """cpu, cuda (NVIDIA), rocm (AMD), mps (Apple) or xpu (Intel)."""
    index: int | None = None
    """None where there can be only one."""
    name: str = ""
    memory_gb: float | None = None
    can: Capabilities = field(default_factory=Capabilities)
    integrated: bool = False
    """Shares the processor's memory. `auto` prefers a card of its own."""
    arch: str = ""
    """The maker's name for the generation, such as sm_90 or gfx942."""
    driver: str = ""
    """Where PyTorch tells it; see `Card.driver` for the others."""

    @property
    def type(self) -> str:
        """PyTorch's word for the backend."""
        return BACKENDS[self.backend]

    @property
    def word(self) -> str:
        """What to type after `device=`."""
        return self.backend if self.index is None else f"{self.backend}:{self.index}"

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, so that nothing lands on another card of the same kind."""
        return torch.device(self.type) if self.index is None else torch.device(self.type, self.index)


@dataclass(frozen=True)
class Machine:
    """Everything about this machine that decides what runs where."""

    devices: tuple[Device, ...]
    """What this PyTorch build finds, the processor last."""
    torch_version: str = torch.__version__
    build: str = "cpu"
    """The backend that PyTorch was built for."""
    build_version: str = ""
    """Of CUDA, ROCm or oneAPI."""
    cards: tuple[Card, ...] = ()
    """What is in the machine, whether or not PyTorch finds it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    said: str = ""
    """What PyTorch itself warned of while it looked."""
    problem_of: Callable[[Device, str], str] = lambda _device, _precision: ""
    """Why a device does not compute in a precision; empty where it does."""

    def of(self, backend: str) -> list[Device]:
        """The devices of a backend; cuda means AMD cards too, rocm means those alone."""
        return [d for d in self.devices if d.backend == backend or (backend == "cuda" and d.type == "cuda")]

    def misfits(self) -> list[str]:
        """What keeps PyTorch from the cards that are here, a sentence each with its repair."""
        seen = any(device.type != "cpu" for device in self.devices)
        return misfits(self.build, self.build_version, self.cards, seen, self.environment)


def machine() -> Machine:
    """Look at this machine: some small files and what PyTorch tells. Touches no device's memory."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        devices = (*_cuda(), *_xpu(), *_mps(), _cpu())
    build, build_version = _build()
    said = str(caught[-1].message).strip().splitlines()[0] if caught else ""
    return Machine(
        devices,
        build=build,
        build_version=build_version,
        cards=find_cards(),
        environment=variables(os.environ),
        said=said,
        problem_of=_problem_of,
    )


def _problem_of(device: Device, precision: str) -> str:
    return smoke.problem(device.torch_device, "no" if device.can.why_not(precision) else precision)


def _build() -> tuple[str, str]:
    for backend, found in (("rocm", torch.version.hip), ("cuda", torch.version.cuda), ("xpu", torch.version.xpu)):
        if found:
            return backend, found
    return ("mps", "") if torch.backends.mps.is_built() else ("cpu", "")


def _facts(**more: object) -> Facts:
    return Facts(torch=version(torch.__version__), **more)  # type: ignore[arg-type]


def _cpu() -> Device:
    name, units = platform.processor() or platform.machine(), frozenset[str]()
    if hasattr(torch.cpu, "get_capabilities"):  # PyTorch 2.11 or so
        told = torch.cpu.get_capabilities()
        name = told.get("cpu_name") or name
        units = frozenset({"bf16"} if any(key.endswith("bf16") and value for key, value in told.items()) else ())
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)):
        name = match[1]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return Device("cpu", None, name, pages / GIB if pages else None, capabilities("cpu", _facts(units=units)))


def _cuda() -> list[Device]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        told = torch.cuda.get_device_properties(index)
        backend = "cuda" if torch.version.hip is None else "rocm"
        arch = told.gcnArchName.partition(":")[0] if backend == "rocm" else f"sm_{told.major}{told.minor}"
        can = capabilities(backend, _facts(compute=(told.major, told.minor), arch=arch))
        integrated = bool(getattr(told, "is_integrated", False))
        found.append(Device(backend, index, told.name, told.total_memory / GIB, can, integrated, arch))
    return found


def _xpu() -> list[Device]:
    if not (hasattr(torch, "xpu") and torch.xpu.is_available()):
        return []
    found = []
    for index in range(torch.xpu.device_count()):
        told = torch.xpu.get_device_properties(index)
        # An older PyTorch tells of no units; the smoke kernel then finds out.
        units = {
            "fp64": told.has_fp64,
            "bf16": getattr(told, "has_bfloat16_conversions", True),
            "tf32": getattr(told, "has_subgroup_matrix_multiply_accumulate_tensor_float32", True),
        }
        can = capabilities("xpu", _facts(units=frozenset(name for name, has in units.items() if has)))
        integrated = bool(getattr(told, "is_integrated_gpu", False))
        driver = str(getattr(told, "driver_version", ""))
        found.append(Device("xpu", index, told.name, told.total_memory / GIB, can, integrated, driver=driver))
    return found


def _mps() -> list[Device]:
    if not torch.backends.mps.is_available():
        return []
    can = capabilities("mps", _facts(macos=version(platform.mac_ver()[0] or "0")))
    return [Device("mps", None, platform.processor() or "Apple", torch.mps.recommended_max_memory() / GIB, can)]


def resolve(request: str | None, facts: Machine, precision: str = "no") -> Device:
    """The device that `request` names (`auto`, `cuda`, `rocm`, `cuda:1`, ...), or a refusal that says what is there.

    Only `auto` may pass over a card, and says so. The device has computed something in `precision` when this returns.
    """
    word = request or "auto"
    if word == "auto":
        return _best(facts, precision)
    device = _named(word, facts)
    if problem := facts.problem_of(device, precision):
        raise ConfigError(
            f"device={word} ({device.name}) does not compute, {problem}: type another device or device=auto, "
            "`lerobot-info` shows what works"
        )
    return device


def in_order(facts: Machine) -> list[Device]:
    """Devices as `auto` tries them: cards of their own, integrated ones, the processor."""
    return sorted(facts.devices, key=lambda device: (device.type == "cpu", device.integrated))


def _best(facts: Machine, precision: str) -> Device:
    for sentence in facts.misfits():
        log.warning("device=auto: %s", sentence)
    *accelerators, processor = in_order(facts)
    for device in accelerators:
        problem = facts.problem_of(device, precision)
        if not problem:
            return device
        log.warning("device=auto passes over %s (%s), which does not compute, %s", device.word, device.name, problem)
    return processor


def _named(word: str, facts: Machine) -> Device:
    match = re.fullmatch(r"(\w+)(?::(\d+))?", word)
    if match is None or match[1] not in BACKENDS:
        raise ConfigError(
            f"device={word} is not one of auto, {', '.join(BACKENDS)}, or one with an index such as cuda:1"
        )
    backend, index = match[1], match[2]
    present = facts.of(backend)
    if not present:
        raise ConfigError(f"device={word} is absent: {_found(facts)}; type device=auto, or {_repair(backend, facts)}")
    if index is None:
        return present[0]
    for device in present:
        if (device.index or 0) == int(index):
            return device
    raise ConfigError(
        f"device={word} is absent: there are {len(present)} {backend} devices, counted from 0; {_found(facts)}"
    )


def _found(facts: Machine) -> str:
    names = ", ".join(d.word if d.index is None else f"{d.word} ({d.name})" for d in facts.devices)
    built_for = f"{facts.build} {facts.build_version}".strip()
    return f"PyTorch {facts.torch_version}, built for {built_for}, finds {names} on this machine"


def why_absent(backend: str, facts: Machine) -> str:
    """Why there is no device of `backend`, in a few words; empty where there is one."""
    if facts.of(backend):
        return ""
    if backend not in (facts.build, "cpu") and not (backend == "cuda" and facts.build == "rocm"):
        return f"this build of PyTorch is for {TITLES[facts.build]}"
    if facts.misfits():
        return facts.misfits()[0]
    return f"no {TITLES[backend]} card is found"


def _repair(backend: str, facts: Machine) -> str:
    """What to do about an absent device: another build of PyTorch, or a look at the driver."""
    if backend == "mps":
        return "go to a machine with Apple silicon and macOS 13 or newer"
    if facts.build != backend:
        return f"get a build of PyTorch for {backend} with `{REINSTALL}`"
    if facts.misfits():
        return f"repair this: {facts.misfits()[0]}"
    look = {"cuda": "nvidia-smi", "rocm": "rocminfo", "xpu": "clinfo"}.get(backend, "lerobot-info")
    return f"look for the card with `{look}`: this build is made for {backend} and no card is found"
