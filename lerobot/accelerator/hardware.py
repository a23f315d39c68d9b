"""Which cards a machine has and what drives them, found without PyTorch: an install that does not fit sees none."""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VENDORS = {"0x10de": "cuda", "0x1002": "rocm", "0x8086": "xpu"}
"""PCI vendor numbers."""
DISPLAY_CLASSES = ("0x03", "0x12")
"""PCI classes: display controllers, and processing accelerators (AMD Instinct)."""
INTEL_GPUS = ("0x56", "0xe2", "0x0b6", "0x0bd", "0x0be", "0x7d", "0x64", "0xb0")
"""Device numbers of what PyTorch's xpu runs on: Arc, Flex, Max, and the graphics of Core Ultra. Not older graphics."""
ROCM_WHEELS = (
    *("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102"),
    *("gfx1150", "gfx1151", "gfx1200", "gfx1201"),
)
"""AMD's generations that PyTorch's ROCm wheels have kernels for."""


@dataclass(frozen=True)
class Card:
    """One accelerator that is in the machine, whether or not PyTorch can use it."""

    backend: str
    """The PyTorch build that it wants: cuda (NVIDIA), rocm (AMD), xpu (Intel) or mps (Apple)."""
    name: str
    driver: str = ""
    """Name and version of the kernel driver; empty where none is loaded."""
    problem: str = ""
    """What keeps every program on this machine from using it, and the repair."""
    arch: str = ""
    """AMD's name for the generation, such as gfx942, where its driver tells."""

    @property
    def has_build(self) -> bool:
        """Whether there is a build of PyTorch for it."""
        return self.backend != "rocm" or not self.arch or self.arch in ROCM_WHEELS


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@dataclass(frozen=True)
class Probe:
    """Where the facts about cards are read; tests give a folder and answers of their own."""

    root: Path = Path("/")
    system: str = platform.system()
    machine: str = platform.machine()
    run: Callable[[Sequence[str]], str] = _run
    """Standard output of a command; empty where there is none or where it fails."""
    can_open: Callable[[Path], bool] = lambda path: os.access(path, os.R_OK | os.W_OK)

    def read(self, path: str | Path) -> str:
        """The text of a file below `root`; empty where there is none."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return ""


def find_cards(probe: Probe | None = None) -> tuple[Card, ...]:
    """Every accelerator of this machine. A few small files on Linux; `nvidia-smi` on Windows and in WSL."""
    probe = probe or Probe()
    if probe.system == "Darwin":
        is_apple = probe.machine == "arm64"
        name = probe.run(["sysctl", "-n", "machdep.cpu.brand_string"]).strip() or "Apple silicon"
        return (Card("mps", name, "Metal"),) if is_apple else ()
    if probe.system == "Windows" or (probe.root / "dev/dxg").exists():
        return tuple(_from_nvidia_smi(probe))
    found = tuple(_on_pci(probe))
    kinds = {card.backend for card in found}
    # A board without PCI, or a container that hides the bus.
    if "cuda" not in kinds and any((probe.root / "dev").glob("nvidia[0-9]*")):
        found += (Card("cuda", "NVIDIA card", _driver("nvidia", probe)),)
    if "rocm" not in kinds:
        amd = _amd_architectures(probe).values()
        found += tuple(Card("rocm", f"AMD card {arch}", _driver("amdgpu", probe), arch=arch) for arch in amd)
    return found


def nvidia_driver(cards: Sequence[Card]) -> tuple[int, ...]:
    """The version of NVIDIA's driver; empty where there is none."""
    for card in cards:
        if card.backend == "cuda" and (match := re.match(r"nvidia (\d+)\.(\d+)", card.driver)):
            return int(match[1]), int(match[2])
    return ()


def _from_nvidia_smi(probe: Probe) -> Iterator[Card]:
    query = ["--query-gpu=name,driver_version", "--format=csv,noheader"]
    text = probe.run(["nvidia-smi", *query]) or probe.run(["/usr/lib/wsl/lib/nvidia-smi", *query])
    for line in text.splitlines():
        name, _, driver = line.partition(",")
        if driver:
            yield Card("cuda", name.strip(), f"nvidia {driver.strip()}")


def _on_pci(probe: Probe) -> Iterator[Card]:
    amd = _amd_architectures(probe)
    folders = {
        path.resolve(): None
        for pattern in ("sys/bus/pci/devices/*", "sys/class/drm/card*/device")
        for path in sorted(probe.root.glob(pattern))
    }
    for folder in folders:
        backend = VENDORS.get(probe.read(folder / "vendor"))
        number = probe.read(folder / "device")
        if backend is None or not probe.read(folder / "class").startswith(DISPLAY_CLASSES):
            continue
        if backend == "xpu" and not number.startswith(INTEL_GPUS):
            continue
        module = (folder / "driver").resolve().name if (folder / "driver").exists() else ""
        problem = _problem(backend, module, probe)
        yield Card(backend, _name(backend, folder, probe), _driver(module, probe), problem, amd.get(folder.name, ""))


def _amd_architectures(probe: Probe) -> dict[str, str]:
    """PCI address to generation, of every card that AMD's compute driver has."""
    found = {}
    for file in sorted(probe.root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")):
        told = dict(line.split() for line in probe.read(file).splitlines() if len(line.split()) == 2)
        number, place = int(told.get("gfx_target_version", 0)), int(told.get("location_id", 0))
        if number:  # processors are nodes too; 90402 is gfx942, and places are bus, device and function
            address = f"{int(told.get('domain', 0)):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}"
            found[address] = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
    return found


def _name(backend: str, folder: Path, probe: Probe) -> str:
    told = probe.read(folder / "product_name")
    if backend == "cuda":
        match = re.search(r"Model:\s*(.+)", probe.read(f"proc/driver/nvidia/gpus/{folder.name}/information"))
        told = match[1].strip() if match else ""
    maker = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}[backend]
    return told or f"{maker} card {probe.read(folder / 'device').removeprefix('0x')}"


def _driver(module: str, probe: Probe) -> str:
    version = probe.read(f"sys/module/{module}/version") if module else ""
    if module == "nvidia" and (
        match := re.search(r"Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", probe.read("proc/driver/nvidia/version") + " ")
    ):
        version = match[1]
    return f"{module} {version}".strip()


def _problem(backend: str, module: str, probe: Probe) -> str:
    """What stands between this card and any program, with the repair."""
    if module == "vfio-pci":
        return "it is given to a virtual machine (vfio-pci)"
    if backend == "cuda" and module != "nvidia" and not any((probe.root / "dev").glob("nvidia[0-9]*")):
        return f"{module or 'no driver'} drives it: install NVIDIA's driver"
    wants = {"cuda": "nvidia[0-9]*", "rocm": "kfd", "xpu": "dri/renderD*"}[backend]
    files = sorted((probe.root / "dev").glob(wants))
    if not files:
        in_docker = {"cuda": "--gpus all", "rocm": "--device=/dev/kfd --device=/dev/dri", "xpu": "--device=/dev/dri"}
        return f"there is no /dev/{wants}: load its driver, or start the container with {in_docker[backend]}"
    if not any(probe.can_open(path) for path in files):
        names = f"/{files[0].relative_to(probe.root)}"
        return f"you may not open {names}: add your user to its group with `sudo usermod -aG render,video $USER`"
    return ""
