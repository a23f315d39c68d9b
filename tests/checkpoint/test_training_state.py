"""What a run goes on from: restored whole, or refused in one sentence that names the file."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lerobot.accelerator.config import GradScalerConfig
from lerobot.checkpoint.pretrained import load_policy
from lerobot.checkpoint.rng import restore_rng
from lerobot.checkpoint.training_state import Progress, load_checkpoint, take_snapshot, write_checkpoint
from lerobot.errors import ConfigError

PEER = Path(__file__).parents[1] / "data/peer_checkpoints/act_state"
OPTIMIZER = "training_state/optimizer_state.safetensors"


@pytest.fixture(scope="module")
def policy():
    return load_policy(PEER / "pretrained_model")


def save_checkpoint(run_dir, *parts):
    """A checkpoint of this moment, at once."""
    return write_checkpoint(run_dir, take_snapshot(*parts))


def adam(policy):
    return torch.optim.AdamW(policy.parameter_groups(), lr=1e-4)


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=64.0)


@pytest.fixture
def step_folder(tmp_path):
    """LeRobot's checkpoint of step 50, with a loss scale beside it."""
    folder = Path(shutil.copytree(PEER, tmp_path / "run/checkpoints/000050"))
    state = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 3}
    (folder / "training_state/scaler_state.json").write_text(json.dumps(state))
    return folder


def refusal(step_folder, policy, optimizer=None):
    with pytest.raises(ConfigError) as error:
        load_checkpoint(step_folder, optimizer or adam(policy), scaler(), GradScalerConfig())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_whole_one_is_restored(step_folder, policy):
    optimizer, scale = adam(policy), scaler()
    progress, warning = load_checkpoint(step_folder, optimizer, scale, GradScalerConfig())
    assert (progress, warning) == (Progress(step=50, batch_size=16), "")
    assert scale.state_dict()["scale"] == 8.0
    assert {float(entry["step"]) for entry in optimizer.state.values()} == {50.0}


@pytest.mark.parametrize("keep", [None, 0, 60, -8])
def test_a_torn_or_missing_optimizer_is_named(step_folder, policy, keep):
    file = step_folder / OPTIMIZER
    data = file.read_bytes()[:keep]
    file.unlink()
    if keep is not None:
        file.write_bytes(data)
    assert f"{file} cannot be read (" in refusal(step_folder, policy)


@pytest.mark.parametrize("change", ["lost", "lost name", "odd name", "unknown parameter", "shape"])
def test_the_optimizer_of_another_policy_is_refused(step_folder, policy, change):
    state = load_file(step_folder / OPTIMIZER)
    moment = state["state/3/exp_avg"]
    if change == "lost":
        state = {name: value for name, value in state.items() if not name.startswith("state/3/")}
    elif change == "lost name":
        state = {name: value for name, value in state.items() if not name.endswith("exp_avg_sq")}
    else:
        name = {"odd name": "moment", "unknown parameter": "state/999/exp_avg", "shape": "state/3/exp_avg"}[change]
        state[name] = moment[:1].clone()
    save_file(state, step_folder / OPTIMIZER)
    assert f"{step_folder / OPTIMIZER} does not fit this policy and its AdamW in " in refusal(step_folder, policy)


def test_the_state_of_another_optimizer_is_refused(step_folder, policy):
    sgd = torch.optim.SGD(policy.parameter_groups(), lr=0.1, momentum=0.9)
    assert "does not fit this policy and its SGD" in refusal(step_folder, policy, sgd)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lands", [False, True])
def test_what_sgd_keeps_comes_back(tmp_path, policy, momentum, lands):
    """Without momentum, and before any update landed, there is nothing to keep."""
    sgd = torch.optim.SGD(policy.parameter_groups(), lr=0.0, momentum=momentum)
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter) if lands else None
    sgd.step()
    folder = save_checkpoint(tmp_path, Progress(7, skipped_steps=7), policy, sgd, None, {})
    again = torch.optim.SGD(policy.parameter_groups(), lr=0.0, momentum=momentum)
    progress, _ = load_checkpoint(folder, again, None, GradScalerConfig())
    assert progress == Progress(7, skipped_steps=7)
    kept = [entry["momentum_buffer"] for entry in again.state.values() if entry]
    assert len(kept) == (len(list(policy.parameters())) if momentum and lands else 0)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"step": "x"}', '{"step": -1}', '{"step": true}', '{"step": 0}', '{"step": 49}',
                '{"step": 50, "skipped_steps": "x"}', '{"step": 50, "batch_size": -1}'],
)  # fmt: skip
def test_a_damaged_step_is_refused(step_folder, policy, content):
    (step_folder / "training_state/training_step.json").write_text(content)
    assert f"{step_folder}/training_state/training_step.json" in refusal(step_folder, policy)


@pytest.mark.parametrize(
    "content", ["", "{", "3", "{}", '{"scale": 8.0}', '{"scale": 0, "_growth_tracker": 0}',
                '{"scale": "x", "_growth_tracker": 0}', '{"scale": NaN, "_growth_tracker": 0}',
                '{"scale": 8.0, "_growth_tracker": -1}'],
)  # fmt: skip
def test_a_damaged_scale_is_refused(step_folder, policy, content):
    (step_folder / "training_state/scaler_state.json").write_text(content)
    assert f"{step_folder}/training_state/scaler_state.json" in refusal(step_folder, policy)


def test_what_a_killed_save_left_goes_with_the_next(tmp_path, policy):
    root = tmp_path / "checkpoints"
    (root / ".000141.tmp/pretrained_model").mkdir(parents=True)
    (root / ".last.tmp").symlink_to("000140")
    (root / "mine.tmp").mkdir()
    save_checkpoint(tmp_path, Progress(150), policy, adam(policy), None, {})
    assert sorted(path.name for path in root.iterdir()) == ["000150", "last", "mine.tmp"]


def test_the_scheduler_is_in_lerobots_form(tmp_path, policy):
    """What torch's `LambdaLR` has after as many steps, key for key: LeRobot takes no more and no less."""
    optimizer = adam(policy)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(3):
        optimizer.step()
        schedule.step()
    folder = save_checkpoint(tmp_path, Progress(3), policy, optimizer, None, {})
    stored = json.loads((folder / "training_state/scheduler_state.json").read_text())
    assert stored == schedule.state_dict()


def test_a_scale_survives_to_the_digit(tmp_path, policy):
    """CKPT-01: exactly the five numbers, in strict JSON."""
    scale = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    scale.load_state_dict({**scale.state_dict(), "scale": 96.0, "_growth_tracker": 5})
    folder = save_checkpoint(tmp_path, Progress(3), policy, adam(policy), scale, {})
    stored = json.loads((folder / "training_state/scaler_state.json").read_text(), parse_constant=pytest.fail)
    assert stored == {
        "scale": 96.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "_growth_tracker": 5,
    }  # fmt: skip


def test_loading_the_optimizer_leaves_the_scale_alone(tmp_path, policy):
    """CKPT-05: a helper took an optimizer step through accelerate's wrapper and moved scale and count."""
    from accelerate.optimizer import AcceleratedOptimizer

    from lerobot.accelerator.stack import open_stack
    from lerobot.config import AcceleratorConfig

    scale = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scale.load_state_dict({**scale.state_dict(), "_growth_tracker": 1})
    optimizer = adam(policy)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    folder = save_checkpoint(tmp_path, Progress(3), policy, optimizer, scale, {})
    again = torch.amp.GradScaler("cpu", init_scale=8.0)
    with open_stack(AcceleratorConfig(), "cpu", None):
        wrapped = AcceleratedOptimizer(adam(policy), scaler=again)
        load_checkpoint(folder, wrapped, again, GradScalerConfig(growth_interval=2))
    assert (again.state_dict()["scale"], again.state_dict()["_growth_tracker"]) == (1024.0, 1)


def test_a_pickle_is_never_loaded(step_folder, policy):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    (step_folder / OPTIMIZER).write_bytes(pickle.dumps(Bomb()))
    assert "optimizer_state.safetensors cannot be read" in refusal(step_folder, policy)
    (step_folder / "training_state/rng_state.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ConfigError, match=r"rng_state\.safetensors cannot be read"):
        restore_rng(step_folder / "training_state", torch.device("cpu"))
