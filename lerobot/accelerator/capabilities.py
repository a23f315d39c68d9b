"""What a device of each kind can do, and from which version on: the one table that everything else reads.

No other code compares kinds of devices. Imports no torch. The rows were read from the sources of PyTorch and
accelerate; `docs/accelerators.md` says which of them have been run on real hardware.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

BACKENDS = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "mps": "mps", "xpu": "xpu"}
"""The words for a device to PyTorch's own type: a ROCm build shows AMD cards as cuda."""
TITLES = {"cpu": "the processor", "cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple", "xpu": "Intel"}


@dataclass(frozen=True)
class Facts:
    """What the abilities of a device depend on. What does not apply to its kind is left out."""

    torch: tuple[int, ...] = (2, 9)
    macos: tuple[int, ...] = ()
    compute: tuple[int, int] = (0, 0)
    """NVIDIA's compute capability: 8.0 is Ampere, 7.5 is Turing (T4), 7.0 is Volta (V100)."""
    arch: str = ""
    """AMD's name for a generation of cards, such as gfx942."""
    units: frozenset[str] = frozenset()
    """What a processor or an Intel card says that it has in hardware: bf16, tf32, fp64."""


@dataclass(frozen=True)
class Rule:
    """When an ability is there, and what it is where the rule does not hold."""

    torch: tuple[int, int] = (0, 0)
    macos: tuple[int, int] = (0, 0)
    compute: tuple[int, int] = (0, 0)
    archs: tuple[str, ...] = ("",)
    """Prefixes, one of which must fit."""
    unit: str = ""
    never: str = ""
    """Why no device of this kind has it."""
    otherwise: str = "no"
    lacks: str = ""
    """Why it is missing where a card lacks the unit."""

    def missing(self, facts: Facts) -> str:
        """Why the rule does not hold; empty where it does."""
        if self.never:
            return self.never
        if facts.torch < self.torch:
            return f"it needs PyTorch {_dotted(self.torch)} there and this is {_dotted(facts.torch)}"
        if facts.macos < self.macos and self.macos != (0, 0):
            return f"it needs macOS {self.macos[0]} and this is {_dotted(facts.macos)}"
        if facts.compute < self.compute:
            return f"it needs compute capability {_dotted(self.compute)} and this is {_dotted(facts.compute)}"
        if not facts.arch.startswith(self.archs):
            return f"it needs {' or '.join(self.archs)} and this is {facts.arch or 'another'}"
        if self.unit and self.unit not in facts.units:
            return self.lacks or f"it has no {self.unit} in hardware"
        return ""


YES = Rule()
NO_TF32 = Rule(never="it has no TF32")

TABLE: dict[str, dict[str, Rule]] = {
    "cpu": {
        # Without units of its own a processor converts: no gain in time, and nothing that is refused.
        "bf16": Rule(unit="bf16", otherwise="software"),
        "fp16": YES,
        "scaler": Rule(never="accelerate builds no loss scaler there"),
        "tf32": NO_TF32,
        "fp64": YES,
        "pinned_memory": Rule(never="batches are not copied"),
        "non_blocking": Rule(never="batches are not copied"),
        "fused": YES,
        "fused_skips": YES,
    },
    "cuda": {
        # PyTorch itself calls bf16 supported on older cards too, where it converts and is slower than float32.
        "bf16": Rule(compute=(8, 0), otherwise="emulated"),
        "fp16": YES,
        "scaler": YES,
        "tf32": Rule(compute=(8, 0)),
        "fp64": YES,
        "pinned_memory": YES,
        "non_blocking": YES,
        "fused": YES,
        "fused_skips": YES,
    },
    "rocm": {
        "bf16": YES,
        "fp16": YES,
        "scaler": YES,
        "tf32": Rule(archs=("gfx94", "gfx95")),
        "fp64": YES,
        "pinned_memory": YES,
        "non_blocking": YES,
        "fused": YES,
        "fused_skips": YES,
    },
    "mps": {
        "bf16": Rule(torch=(2, 6), macos=(14, 0)),
        "fp16": Rule(torch=(2, 5)),
        "scaler": Rule(torch=(2, 8)),
        "tf32": NO_TF32,
        "fp64": Rule(never="Apple's GPU has no float64"),
        "pinned_memory": Rule(never="it shares its memory with the processor"),
        "non_blocking": Rule(never="a copy from memory that is not pinned may be read too early"),
        "fused": Rule(torch=(2, 5)),
        # Before pytorch pull request 186360 (June 2026) the fused kernels applied an update that had overflowed.
        "fused_skips": Rule(torch=(2, 14)),
    },
    "xpu": {
        "bf16": Rule(unit="bf16", otherwise="emulated"),
        "fp16": YES,
        # PyTorch takes the reciprocal of the scale in float64, which Arc A cards lack.
        "scaler": Rule(unit="fp64", lacks="it has no float64, which loss scaling needs"),
        "tf32": Rule(unit="tf32"),
        "fp64": Rule(unit="fp64"),
        "pinned_memory": YES,
        "non_blocking": YES,
        "fused": YES,
        "fused_skips": YES,
    },
}

MEMORY = {"cpu": "process", "cuda": "allocator", "rocm": "allocator", "mps": "driver", "xpu": "allocator"}
"""Where the memory metric comes from: the peak of PyTorch's allocator, what the driver has given now (Apple tells no
peak), or the peak of the process."""


@dataclass(frozen=True)
class Capabilities:
    """What one device can do. The defaults compute in every precision and know no transfer tricks."""

    bf16: str = "hardware"
    """hardware; software (a processor converts, allowed); emulated (a card converts, refused); or no."""
    fp16: bool = True
    """Autocast in float16."""
    scaler: bool = True
    """Loss scaling, without which float16 does not train."""
    tf32: bool = False
    fp64: bool = True
    pinned_memory: bool = False
    """Batches wait in memory from which they are copied while the device computes."""
    non_blocking: bool = False
    """A copy to the device need not be waited for."""
    fused: bool = True
    """Optimizers with one kernel for all parameters."""
    fused_skips: bool = True
    """Those leave everything as it is when the scaler found an overflow."""
    memory: str = "process"
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Ability to the reason why it is missing."""

    def why_not(self, precision: str) -> str:
        """Why the device does not train in `precision` (no, bf16, fp16); empty where it does."""
        if precision == "fp16" and not (self.fp16 and self.scaler):
            return self.lacks.get("fp16") or self.lacks.get("scaler") or "it has no loss scaling"
        if precision == "bf16" and self.bf16 in ("emulated", "no"):
            return self.lacks.get("bf16") or "it has no bfloat16"
        return ""


def capabilities(backend: str, facts: Facts) -> Capabilities:
    """Look a device up: `backend` is one of `BACKENDS`."""
    lacks = {name: why for name, rule in TABLE[backend].items() if (why := rule.missing(facts))}
    has = {name: name not in lacks for name in TABLE[backend] if name != "bf16"}
    bf16 = TABLE[backend]["bf16"].otherwise if "bf16" in lacks else "hardware"
    return Capabilities(bf16=bf16, memory=MEMORY[backend], lacks=lacks, **has)


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 15, 0) of `2.15.0+cu132`."""
    numbers: list[int] = []
    for part in text.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers[:2]))
