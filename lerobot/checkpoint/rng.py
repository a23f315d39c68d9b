"""Where the generators of python, numpy and torch stand, in LeRobot's form: `rng_state.safetensors`, one a rank."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lerobot.checkpoint.tensors import read_tensors
from lerobot.errors import ConfigError


def file_name(rank: int = 0) -> str:
    """The file of one process; LeRobot knows that of the first."""
    return f"rng_state_{rank}.safetensors" if rank else "rng_state.safetensors"


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Where every generator of this process stands, that of `device` too."""
    version, words, _ = random.getstate()
    _, values, index, has_gauss, gauss = np.random.get_state()
    state = {
        "py_rng_version": torch.tensor([version]),
        "py_rng_state": torch.tensor(words),
        "np_rng_state_values": torch.from_numpy(np.asarray(values, np.int64)),
        "np_rng_state_index": torch.tensor([int(index)]),
        "np_rng_has_gauss": torch.tensor([int(has_gauss)]),
        "np_rng_cached_gaussian": torch.tensor([float(gauss)], dtype=torch.float64),  # LeRobot rounds it to float32
        "torch_rng_state": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state[_of(device)] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore_rng(folder: Path, device: torch.device, rank: int = 0) -> str:
    """Put the generators where the file in `folder` has them; return a warning where there is none, else nothing.

    The file of a run on another kind of device says nothing of this one, whose numbers follow from seed and step.
    Raises `ConfigError`.
    """
    file = folder / file_name(rank)
    if not file.is_file():
        return f"{file} is not there: the random numbers of python and numpy start from the seed again"
    state = read_tensors(file)
    try:
        _set_python_and_numpy(state)
        torch.set_rng_state(state["torch_rng_state"])
        if device.type != "cpu" and _of(device) in state:
            torch.get_device_module(device).set_rng_state(state[_of(device)], device)
    except (LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file} holds no state of random numbers ({' '.join(str(error).split())}): go on from another checkpoint "
            "of the run, or remove the file to start them from the seed"
        ) from error
    return ""


def _set_python_and_numpy(state: Mapping[str, Tensor]) -> None:
    words, values = state["py_rng_state"].tolist(), state["np_rng_state_values"].tolist()
    index = int(state["np_rng_state_index"])
    # Neither checks all of it, and an index too high reads beyond the state.
    if len(values) != 624 or not 0 <= index <= 624 or not all(0 <= value < 2**32 for value in (*values, *words)):
        raise ValueError("no Mersenne Twister's")
    random.setstate((int(state["py_rng_version"]), tuple(words), None))
    gauss = float(state["np_rng_cached_gaussian"])
    np.random.set_state(("MT19937", np.array(values, np.uint32), index, int(state["np_rng_has_gauss"]), gauss))


def _of(device: torch.device) -> str:
    return f"torch_{device.type}_rng_state"
