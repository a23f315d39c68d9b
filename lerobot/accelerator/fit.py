"""Whether this build of PyTorch fits the machine, which variables hide cards, and what to do about both."""

from collections.abc import Iterator, Mapping, Sequence

from lerobot.accelerator.capabilities import TITLES, version
from lerobot.accelerator.hardware import Card, nvidia_driver

REINSTALL = "uv pip install --reinstall torch torchvision --torch-backend=auto"

VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    "rocm": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    "xpu": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "mps": ("PYTORCH_ENABLE_MPS_FALLBACK",),
}
"""What each build obeys, the preferred one first."""

DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 0)}
"""CUDA's major version to the oldest NVIDIA driver that runs it (CUDA's release notes, Linux)."""


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in force that choose cards or change what they compute."""
    names = dict.fromkeys(name for names in VARIABLES.values() for name in names)
    return {name: environment[name] for name in names if name in environment}


def advice(build: str, environment: Mapping[str, str]) -> list[str]:
    """Sentences about variables: which one holds, which has no effect, which is preferred. `build` is a backend."""
    return list(_advice(build, variables(environment)))


def _advice(build: str, found: Mapping[str, str]) -> Iterator[str]:
    cuda, hip = found.get("CUDA_VISIBLE_DEVICES"), found.get("HIP_VISIBLE_DEVICES")
    for name, value in found.items():
        if name not in VARIABLES.get(build, ()):
            yield f"{name}={value} has no effect: this build of PyTorch is for {TITLES[build]}"
    if build == "rocm" and cuda is not None and hip is None:
        yield f"CUDA_VISIBLE_DEVICES={cuda} picks AMD cards too: HIP_VISIBLE_DEVICES={cuda} is preferred"
    if build == "rocm" and None not in (cuda, hip) and cuda != hip:
        yield (
            f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} disagree: HIP_VISIBLE_DEVICES holds, "
            "unset the other"
        )
    if build == "rocm" and hip is not None and "ROCR_VISIBLE_DEVICES" in found:
        yield "HIP_VISIBLE_DEVICES counts among the cards that ROCR_VISIBLE_DEVICES leaves: set one of them"
    if build == "mps" and found.get("PYTORCH_ENABLE_MPS_FALLBACK", "0") not in ("", "0"):
        yield "PYTORCH_ENABLE_MPS_FALLBACK is on: what Apple's GPU lacks runs on the cpu, and a run names it"


def hidden_by(build: str, environment: Mapping[str, str]) -> str:
    """The assignment that hides every card of this build, such as `CUDA_VISIBLE_DEVICES=-1`; empty where none does."""
    found = variables(environment)
    names = [name for name in VARIABLES.get(build, ()) if "VISIBLE" in name and name in found]
    hiding = [name for name in names[:1] if found[name].strip() == "" or found[name].strip().startswith("-")]
    return f"{hiding[0]}={found[hiding[0]]}" if hiding else ""


def misfits(
    build: str, build_version: str, cards: Sequence[Card], seen: bool, environment: Mapping[str, str]
) -> list[str]:
    """What keeps PyTorch from this machine's cards, a sentence each with its repair.

    `build` is what PyTorch was made for (cpu, cuda, ...), `seen` whether it finds any card.
    """
    own = [card for card in cards if card.backend == build]
    if seen:
        return []
    if not own:
        # Each maker once: a machine with eight equal cards needs one sentence.
        others = {card.backend: card for card in reversed(cards) if card.has_build}
        return [_other_build(build, card) for card in others.values()]
    if hiding := hidden_by(build, environment):
        return [f"{hiding} hides every card: unset it"]
    if problems := sorted({f"{card.name}: {card.problem}" for card in own if card.problem}):
        return problems
    if too_old := _old_driver(build, build_version, cards):
        return [too_old]
    tool = {"cuda": "nvidia-smi", "rocm": "rocminfo", "xpu": "clinfo"}.get(build, "system_profiler")
    return [f"PyTorch is built for {own[0].name} and sees no card: look at its driver with `{tool}`"]


def _other_build(build: str, card: Card) -> str:
    made_for = "has no support for any card" if build == "cpu" else f"is for {TITLES[build]}"
    if card.backend == "mps":
        return f"this build of PyTorch {made_for} and this is {card.name}: `{REINSTALL}` in a Python for arm64"
    return f"this build of PyTorch {made_for} and the machine has {card.name}: `{REINSTALL}` gets the one for it"


def _old_driver(build: str, build_version: str, cards: Sequence[Card]) -> str:
    driver, major = nvidia_driver(cards), version(build_version)[:1]
    if build != "cuda" or not driver or not major or driver >= DRIVERS.get(major[0], (0, 0)):
        return ""
    needs = DRIVERS[major[0]][0]
    return (
        f"NVIDIA's driver {driver[0]}.{driver[1]} is older than CUDA {build_version} of this build needs ({needs}): "
        f"update the driver, or `{REINSTALL}` gets a build that runs on it"
    )
