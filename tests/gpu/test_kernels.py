"""The card computes what the processor computes, in each dtype, forward and backward."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import conv2d, layer_norm, scaled_dot_product_attention

from lerobot.accelerator.stack import open_stack
from lerobot.config import AcceleratorConfig
from lerobot.errors import ConfigError

# Relative to the norm: a few roundings of each dtype, with room for another order of summation.
TOLERANCE = {"no": 1e-5, "bf16": 2e-2, "fp16": 3e-3}


def product(x, w):
    return x.flatten(1) @ w


def convolution(x, w):
    return conv2d(x, w, padding=1)


def attention(x, w):
    return scaled_dot_product_attention(x, x, x) * w


def normalisation(x, w):
    return layer_norm(x, x.shape[-1:], weight=w)


WEIGHTS = {product: (16 * 16 * 32, 64), convolution: (16, 16, 3, 3), attention: (32,), normalisation: (32,)}


def gradients(kernel, x, w, autocast):
    """Output and both gradients of a weighted sum of it, in float64 on the processor."""
    x, w = (t.detach().clone().requires_grad_() for t in (x, w))
    with autocast():
        out = kernel(x, w)
    pull = torch.linspace(-1, 2, out.numel(), device=out.device, dtype=torch.float32).reshape(out.shape)
    (out * pull.to(out.dtype)).sum().backward()
    return [t.detach().to("cpu", torch.float64) for t in (out, x.grad, w.grad)]


def relative(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("kernel", WEIGHTS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_agrees_with_float64_on_the_processor(card, kernel, precision):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 16, 16, 32, generator=generator)
    w = torch.randn(WEIGHTS[kernel], generator=generator) / 8
    wanted = gradients(kernel, x.double(), w.double(), nullcontext)
    try:
        with open_stack(AcceleratorConfig(precision), card.word, False) as stack:
            found = gradients(kernel, x.to(card.device), w.to(card.device), stack.autocast)
    except ConfigError as refusal:
        pytest.skip(str(refusal))

    errors = [relative(f, t) for f, t in zip(found, wanted, strict=True)]
    assert max(errors) < TOLERANCE[precision], errors
