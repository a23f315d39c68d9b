import json
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lerobot.errors import ConfigError
from lerobot.tracking.window import Window


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


def add_fp16(window: Window, step: int, loss: float, grad_norm: float, scale: float) -> None:
    skipped = scalar(float(not math.isfinite(grad_norm)))
    metrics = {"train/loss": scalar(loss), "train/grad_norm": scalar(grad_norm)}
    window.add(metrics, step=step, skipped=skipped, scale=scalar(scale))


def test_means_cover_the_window_and_nothing_before_it():
    window = Window(2)
    window.add({"train/loss": scalar(100.0), "train/data_s": 9.0}, step=1)
    window.pop()
    window.add({"train/loss": scalar(1.0), "train/data_s": 0.2}, step=2)
    window.add({"train/loss": scalar(2.0), "train/data_s": 0.4}, step=3)

    popped = window.pop()

    assert popped.metrics == pytest.approx({"train/loss": 1.5, "train/data_s": 0.3})
    assert popped.skipped == []


def test_a_skipped_update_leaves_a_row_and_the_means_to_the_others():  # PREC-10
    window = Window(10, skipped_steps=5)
    add_fp16(window, 1, loss=1.0, grad_norm=math.inf, scale=512.0)
    add_fp16(window, 2, loss=2.0, grad_norm=math.nan, scale=256.0)
    add_fp16(window, 3, loss=3.0, grad_norm=4.0, scale=256.0)
    add_fp16(window, 4, loss=6.0, grad_norm=6.0, scale=256.0)

    popped = window.pop()

    assert popped.metrics["train/loss"] == 3.0  # the loss of a skipped update is finite: (1 + 2 + 3 + 6) / 4
    assert popped.metrics["train/grad_norm"] == 5.0  # (4 + 6) / 2
    assert popped.metrics["train/scale"] == 256.0
    assert popped.metrics["train/skipped_steps"] == 7  # 5 before the resume
    assert popped.metrics["train/consecutive_skips"] == 0
    assert "train/nonfinite_steps" not in popped.metrics
    assert popped.skipped == [
        (1, {"train/scale": 512.0, "train/skipped_steps": 6}),
        (2, {"train/scale": 256.0, "train/skipped_steps": 7}),
    ]


def test_skips_in_a_row_are_counted_across_windows_and_a_resume():
    window = Window(1, consecutive_skips=3)
    counts = []
    for step, grad_norm in enumerate([math.inf, math.inf, 1.0, math.inf], start=1):
        add_fp16(window, step, loss=1.0, grad_norm=grad_norm, scale=2.0)
        counts.append(window.pop().metrics["train/consecutive_skips"])

    assert counts == [4, 5, 0, 1]


def test_totals_count_what_is_not_popped_yet():  # a checkpoint between two log rows
    window = Window(10, skipped_steps=5, consecutive_skips=2)
    assert window.totals() == (5, 2)
    add_fp16(window, 1, loss=1.0, grad_norm=math.inf, scale=2.0)
    assert window.totals() == (6, 3)
    window.pop()
    add_fp16(window, 2, loss=1.0, grad_norm=1.0, scale=2.0)
    assert window.totals() == (6, 0)


def test_a_window_of_skipped_updates_alone_has_no_grad_norm():
    window = Window(1)
    add_fp16(window, 1, loss=1.0, grad_norm=math.inf, scale=2.0)

    assert window.pop().metrics["train/grad_norm"] is None


@pytest.mark.parametrize("skipped", [None, scalar(0.0)])
def test_a_nan_that_landed_is_visible(skipped):
    window = Window(3)
    for step, loss in enumerate([1.0, math.nan, math.nan], start=1):
        window.add({"train/loss": scalar(loss), "train/grad_norm": scalar(1.0)}, step=step, skipped=skipped)

    popped = window.pop()

    assert math.isnan(popped.metrics["train/loss"])
    assert popped.metrics["train/grad_norm"] == 1.0
    assert popped.metrics["train/nonfinite_steps"] == 2
    assert popped.skipped == []


def test_without_a_scaler_a_skipped_update_leaves_a_row_without_scale():  # skip_nonfinite in bf16
    window = Window(2)
    window.add({"train/loss": scalar(math.nan)}, step=8, skipped=scalar(1.0))
    window.add({"train/loss": scalar(1.0)}, step=9, skipped=scalar(0.0))

    popped = window.pop()

    assert popped.metrics == {"train/loss": 1.0, "train/skipped_steps": 1, "train/consecutive_skips": 0}
    assert popped.skipped == [(8, {"train/skipped_steps": 1})]


def test_without_skips_no_skip_metric_exists():
    window = Window(1)
    window.add({"train/loss": scalar(1.0)}, step=1)

    assert window.pop().metrics == {"train/loss": 1.0}


def test_a_metric_that_comes_later_has_its_own_count():
    window = Window(2)
    window.add({"train/loss": scalar(1.0)}, step=1)
    window.add({"train/loss": scalar(3.0), "train/kld_loss": scalar(5.0)}, step=2)

    assert window.pop().metrics == pytest.approx({"train/loss": 2.0, "train/kld_loss": 5.0})


def held_bytes(window: Window) -> int:
    assert window._skips is not None
    tensors = [*window._device.values(), window._skips._counts, window._skips._rows]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_a_window_that_is_never_popped_does_not_grow():  # log_freq=0
    window = Window(0)
    add_fp16(window, 1, loss=1.0, grad_norm=1.0, scale=2.0)
    window.add({"train/data_s": 0.1}, step=1)
    before = held_bytes(window), len(window._host)
    for step in range(2, 500):
        add_fp16(window, step, loss=1.0, grad_norm=math.inf, scale=2.0)
        window.add({"train/data_s": 0.1}, step=step)

    assert (held_bytes(window), len(window._host)) == before
    assert window.pop().metrics["train/skipped_steps"] == 498  # rows are lost beyond the size, the count is not


class Reads(TorchDispatchMode):
    """Counts the operations that make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def test_add_reads_nothing_from_the_device():
    window = Window(100)
    with Reads() as reads:
        for step in range(1, 20):
            add_fp16(window, step, loss=1.0, grad_norm=math.inf if step < 5 else 1.0, scale=2.0)
        in_add = reads.count
        scalar(1.0).item()  # the counter counts

    assert in_add == 0
    assert reads.count == 1


class Transfers(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_pop_reads_once():
    window = Window(100)
    for step in range(1, 20):
        add_fp16(window, step, loss=1.0, grad_norm=math.inf if step < 5 else 1.0, scale=2.0)
        window.add({"train/kld_loss": scalar(1.0)}, step=step)
    with Transfers() as transfers, Reads() as reads:
        window.pop()

    assert transfers.names == ["tolist"]
    assert reads.count == 0


@pytest.mark.gpu
def test_add_never_waits_for_a_gpu():
    device = torch.device("cuda")
    loss, skipped, scale = (torch.ones((), device=device) for _ in range(3))
    window = Window(10)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 5):
            window.add({"train/loss": loss, "train/data_s": 0.1}, step=step, skipped=skipped, scale=scale)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert window.pop().metrics["train/skipped_steps"] == 4


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_window_that_is_cut_goes_on_to_the_bit(cut):
    values = [0.1, math.inf, 0.3, 0.7]
    skips, scales = [0.0, 1.0, 1.0, 0.0], [8.0, 4.0, 2.0, 2.0]

    def add(window, updates):
        for i in updates:
            numbers = {"a": torch.tensor(values[i]), "b": torch.tensor(math.nan), "s": 0.1}
            window.add(numbers, step=5 + i, skipped=torch.tensor(skips[i]), scale=torch.tensor(scales[i]))

    whole, first = Window(10, skipped_steps=3), Window(10, skipped_steps=3)
    add(whole, range(4))
    add(first, range(cut))
    skipped, in_a_row = first.totals()
    second = Window(10, skipped_steps=skipped, consecutive_skips=in_a_row)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)), torch.device("cpu"))
    add(second, range(cut, 4))

    assert second.totals() == whole.totals()
    assert repr(second.pop()) == repr(whole.pop())
    assert second.pop() == whole.pop()


@pytest.mark.parametrize("state", ["x", {}, {"first_step": 1, "host": {}, "device": [[["a"], [["y"]]]], "skips": None}])
def test_a_damaged_window_is_refused(state):
    with pytest.raises(ConfigError, match=r"training_step\.json cannot be read"):
        Window(10).restore(state, torch.device("cpu"))
