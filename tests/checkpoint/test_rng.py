"""Where the generators stand goes into a checkpoint and comes out again, or is refused in one sentence."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import lerobot
from lerobot.checkpoint.rng import file_name, restore_rng, rng_state
from lerobot.checkpoint.tensors import write_tensors
from lerobot.envs.scope import preserved_rng
from lerobot.errors import ConfigError

PEER = Path(__file__).parents[1] / "data/peer_checkpoints/act_state/training_state"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _put_back():
    with preserved_rng(CPU):
        yield


def draws():
    return [random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(1).item()]


def test_the_numbers_go_on(tmp_path):
    """CKPT-08: generators were restored in part. A normal draw is pending in numpy's, to all its bits."""
    np.random.randn()
    write_tensors(tmp_path / file_name(), rng_state(CPU))
    expected = draws()
    draws()
    assert restore_rng(tmp_path, CPU) == ""
    assert draws() == expected


def test_each_rank_has_its_own(tmp_path):
    """CKPT-08: all ranks drew the same noise."""
    drawn = []
    for rank in (0, 1):
        random.seed(rank)
        write_tensors(tmp_path / file_name(rank), rng_state(CPU))
        drawn.append(random.random())
    for rank in (0, 1):
        restore_rng(tmp_path, CPU, rank)
        assert random.random() == drawn[rank]
    assert [file_name(0), file_name(1)] == ["rng_state.safetensors", "rng_state_1.safetensors"]


def test_it_is_lerobots_file(tmp_path):
    """Names, types (but for one that LeRobot rounds) and shapes; and LeRobot's own is taken."""
    theirs, ours = load_file(PEER / file_name()), rng_state(CPU)
    assert {name: value.shape for name, value in ours.items()} == {name: value.shape for name, value in theirs.items()}
    assert {name for name in ours if ours[name].dtype != theirs[name].dtype} == {"np_rng_cached_gaussian"}
    assert restore_rng(PEER, CPU) == ""
    assert torch.equal(torch.get_rng_state(), theirs["torch_rng_state"])


def test_without_the_file_the_numbers_start_from_the_seed(tmp_path):
    assert "rng_state.safetensors is not there" in restore_rng(tmp_path, CPU)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("np_rng_state_index", torch.tensor([10**6])),
        ("np_rng_state_index", torch.tensor([-1])),
        ("np_rng_state_values", torch.zeros(3, dtype=torch.int64)),
        ("np_rng_state_values", torch.full((624,), -1)),
        ("np_rng_cached_gaussian", torch.zeros(2)),
        ("py_rng_state", torch.zeros(625)),
        ("py_rng_state", torch.tensor(3)),
        ("py_rng_version", torch.tensor([99])),
        ("torch_rng_state", torch.zeros(7, dtype=torch.uint8)),
        ("torch_rng_state", torch.zeros(5056)),
        ("torch_rng_state", None),
        ("py_rng_state", None),
    ],
)
def test_a_state_that_is_none_is_refused(tmp_path, name, value):
    state = {**rng_state(CPU), name: value}
    save_file({key: entry for key, entry in state.items() if entry is not None}, tmp_path / file_name())
    with pytest.raises(ConfigError, match=r"rng_state\.safetensors holds no state of random numbers") as error:
        restore_rng(tmp_path, CPU)
    assert "\n" not in str(error.value)


def test_a_torn_file_is_refused(tmp_path):
    shutil.copy(PEER / file_name(), tmp_path)
    data = (tmp_path / file_name()).read_bytes()
    (tmp_path / file_name()).write_bytes(data[:-100])
    with pytest.raises(ConfigError, match=r"rng_state\.safetensors cannot be read"):
        restore_rng(tmp_path, CPU)


@pytest.mark.parametrize("lost", [False, True])
def test_what_draws_from_python_and_numpy_goes_on_in_a_resumed_run(train, rows, monkeypatch, tmp_path, caplog, lost):
    """CKPT-08: an augmentation that drew from numpy repeated itself."""
    from lerobot.policies.act import ACTPolicy

    real = ACTPolicy.loss

    def loss(self, batch):
        value, parts = real(self, batch)
        drawn = torch.tensor(random.random() + np.random.randn())
        return value, {**parts, "drawn": drawn}

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    whole = [row["train/drawn"] for row in rows(train("steps=6", name="whole"))]
    run = train("steps=3")
    if lost:
        (run / "checkpoints" / "000003" / "training_state" / file_name()).unlink()
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=6"]))
    assert ([row["train/drawn"] for row in rows(run)] == whole) != lost
    assert ("start from the seed again" in caplog.text) == lost
