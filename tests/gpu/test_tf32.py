"""TF32 is on where it was asked for and off where it was not, seen in the numbers."""

import pytest
import torch
from torch.nn.functional import conv2d

from lerobot.accelerator.stack import open_stack
from lerobot.config import AcceleratorConfig


def error(card, compute, *shapes):
    """Relative error of `compute` on the card in float32 against float64 on the processor."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    wanted = compute(*(t.double() for t in tensors))
    found = compute(*(t.to(card.device) for t in tensors)).to("cpu", torch.float64)
    return float((found - wanted).norm() / wanted.norm())


def product_error(card):
    return error(card, torch.matmul, (1024, 1024), (1024, 1024))


def convolution_error(card):
    return error(card, lambda x, w: conv2d(x, w, padding=1), (8, 64, 32, 32), (64, 64, 3, 3))


def errors(card, use_tf32):
    with open_stack(AcceleratorConfig(), card.word, use_tf32):
        return product_error(card), convolution_error(card)


def test_without_tf32_products_and_convolutions_are_float32(card):
    product, convolution = errors(card, False)

    assert product < 1e-5
    assert convolution < 1e-5


def test_with_tf32_both_are_less_exact_where_the_card_has_it(card):
    product, convolution = errors(card, True)

    if card.has_tf32 is None:
        pytest.skip(f"whether {card.name} has TF32 is not known; errors {product:.1e} and {convolution:.1e}")
    if not card.has_tf32:
        assert max(product, convolution) < 1e-5  # and nothing else than float32 hides behind the word
        if card.is_real:
            pytest.skip(f"{card.name} has no TF32: its float32 was checked instead")
        return
    assert 1e-5 < product < 1e-2
    assert 1e-5 < convolution < 1e-2


def test_a_run_leaves_the_next_one_its_own_choice(card):
    first = errors(card, False)[0]
    errors(card, True)

    assert errors(card, False)[0] == pytest.approx(first, rel=0.5)


def test_tf32_changes_nothing_in_float16(train_there, rows):
    """The products of such a run are no float32 products."""
    words = ["precision=fp16", "accelerator.grad_scaler.init_scale=1024", "steps=3"]
    found = [rows(train_there(*words, f"tf32={word}", name=word))[0]["train/loss"] for word in ("true", "false")]

    assert found[0] == pytest.approx(found[1], rel=1e-3)
