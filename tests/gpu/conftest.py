"""Where the checks of a card run: on the card, or on a processor that stands in for one.

Each test runs twice. `make gpu-check` runs it on the card and skips it where there is none; `make test-slow` runs the
same lines on the processor, with float16 and loss scaling switched on there, so that they never rot.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

MEASURED = pytest.StashKey[list[dict]]()


@dataclass(frozen=True)
class Card:
    """The device under test."""

    device: torch.device
    word: str
    """What to type after `device=`."""
    is_real: bool = True

    @property
    def name(self):
        if not self.is_real:
            return "processor standing in for a card"
        if self.device.type in ("cuda", "xpu"):
            return torch.get_device_module(self.device.type).get_device_name(self.device)
        return self.device.type

    @property
    def has_tf32(self):
        """By the maker's tables, not by what the product believes; None where they say nothing."""
        if self.device.type != "cuda":
            return None if self.device.type == "xpu" else False
        if torch.version.hip:
            return torch.cuda.get_device_properties(self.device).gcnArchName.startswith(("gfx94", "gfx95"))
        return torch.cuda.get_device_capability(self.device) >= (8, 0)

    def size(self, on_card, on_processor):
        """A length for a test: as long as needed where it is fast, and short on the stand-in."""
        return on_card if self.is_real else on_processor

    @contextmanager
    def no_waiting(self) -> Iterator[None]:
        """Fail where the processor waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        else:
            with _Reads() as reads:
                yield
            assert not reads.seen


class _Reads(TorchDispatchMode):
    """Notes the operations that need a value or a size from the device; other devices have no debug mode for it."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.NAMES:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(
    params=[pytest.param("card", marks=pytest.mark.gpu), pytest.param("stand-in", marks=pytest.mark.slow)],
)
def card(request):
    """The first card, or the stand-in."""
    if request.param == "stand-in":
        request.getfixturevalue("fp16_on_cpu")
        return Card(torch.device("cpu"), "auto", is_real=False)
    if not torch.accelerator.is_available():
        pytest.skip(f"no card: PyTorch {torch.__version__} finds none on this machine")
    kind = torch.accelerator.current_accelerator().type
    device = torch.device(kind) if kind == "mps" else torch.device(kind, 0)
    return Card(device, str(device))


@pytest.fixture
def train_there(train, card):
    """Trains with the tiny overrides and those given, on the card; a precision that it lacks skips the test."""
    from lerobot.errors import ConfigError

    def run(*words, **keywords):
        precision = next((word.partition("=")[2] for word in words if word.startswith("precision=")), "no")
        try:
            return train(f"device={card.word}", *words, **keywords)
        except ConfigError as refusal:
            if f"precision={precision}" in str(refusal):
                pytest.skip(str(refusal))
            raise

    return run


@pytest.fixture
def measured(request, card):
    """Rows for the table at the end: dicts of column to value."""
    rows = request.config.stash.setdefault(MEASURED, [])

    def add(**row):
        rows.append({"device": card.name, **row})

    return add


def pytest_terminal_summary(terminalreporter, config):
    """What was skipped and why, a line for each reason; the measured numbers as a table for docs/accelerators.md."""
    for reason in sorted({report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])}):
        terminalreporter.write_line(reason.removeprefix("Skipped: "))
    rows = config.stash.get(MEASURED, [])
    if not rows:
        return
    terminalreporter.section(f"measured with PyTorch {torch.__version__}")
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    for line in lines:
        terminalreporter.write_line("| " + " | ".join(line) + " |")
