"""What an evaluation touches in the process, put back when it ends."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from lerobot.policies.base import Policy


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Leave every generator (python, numpy, torch on the cpu and on `device`) as it was, also after an error."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    module = None if device.type == "cpu" else torch.get_device_module(device)
    state = module.get_rng_state(device) if module else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if module:
            module.set_rng_state(state, device)


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Dropout and batch statistics off and no gradients inside; each module's own mode is back afterwards.

    What the policy predicted ahead is forgotten on both sides.
    """
    modes = [(module, module.training) for module in policy.modules()]
    policy.eval()
    policy.reset()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training
        policy.reset()
