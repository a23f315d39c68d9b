"""Randomness as a function of (seed, step, rank), so that a resumed run draws what the uninterrupted one would have."""

import hashlib
import random

import numpy as np
import torch


def mix(*numbers: int) -> int:
    """A 63-bit seed that depends on every number and differs for neighbouring ones."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_run(seed: int) -> None:
    """Seed python, numpy and every torch device: the policy's first weights depend on `seed` alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed torch on every device for one update: dropout, the CVAE's draw and noise need no saved state."""
    torch.manual_seed(mix(seed, step, rank))
