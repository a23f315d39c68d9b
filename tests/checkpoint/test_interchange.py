"""LeRobot's checkpoints of every version give their actions here, or are refused by the name of what is not built."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import DATA, TINY
from safetensors.torch import load_file, save_file

import lerobot
from lerobot.checkpoint.paths import find_pretrained
from lerobot.checkpoint.pretrained import load_policy, save_pretrained
from lerobot.errors import ConfigError

PEER = DATA / "peer_checkpoints/act_vae_state/pretrained_model"
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
STATS = "policy_preprocessor_step_3_normalizer_processor.safetensors"
PUSH, DRAWER = (f"dataset.root={DATA / name}" for name in ("metaworld_push_state", "metaworld_drawer_open_state"))
START = [
    f"policy.path={PEER}",
    "steps=1",
    "batch_size=2",
    "num_workers=0",
    "device=cpu",
    "wandb=disabled",
    "picture=false",
]


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return Path(shutil.copytree(PEER, tmp_path / "pretrained_model"))


def add_step(file: Path, step, at: int = 0) -> None:
    content = json.loads(file.read_text())
    content["steps"].insert(at, step)
    file.write_text(json.dumps(content))


def set_in_step(file: Path, name: str, **settings) -> None:
    content = json.loads(file.read_text())
    next(step for step in content["steps"] if step["registry_name"] == name)["config"].update(settings)
    file.write_text(json.dumps(content))


def actions(policy) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return policy.predict_action_chunk(
        {key: torch.rand(2, *feature.shape, generator=generator) for key, feature in policy.inputs.items()}
    )


@pytest.mark.parametrize("file", [BEFORE, AFTER])
@pytest.mark.parametrize("step", [
    {"registry_name": "tokenizer_processor", "config": {"max_length": 48}},
    {"registry_name": "map_delta_action_to_robot_action", "config": {}},
    {"registry_name": "relative_actions_processor", "config": {"enabled": True}},
    {"registry_name": "observation_processor"},
    {"class": "somebody.ClipActions", "config": {}},
])  # fmt: skip
def test_a_step_that_is_not_built_is_refused_by_name(checkpoint, file, step):
    add_step(checkpoint / file, step)
    name = step.get("registry_name", step.get("class"))
    with pytest.raises(
        ConfigError, match=rf"{file} has the step '{name}', which is not built and would change the act"
    ):
        load_policy(checkpoint)


def test_a_step_that_is_switched_off_does_nothing(checkpoint):
    add_step(checkpoint / BEFORE, {"registry_name": "relative_actions_processor", "config": {"enabled": False}})
    assert torch.equal(actions(load_policy(checkpoint)), actions(load_policy(PEER)))


@pytest.mark.parametrize(("file", "step", "settings", "said"), [
    (BEFORE, "normalizer_processor", {"eps": 1e-2}, "sets eps=0.01 in its step 'normalizer_processor'"),
    (AFTER, "unnormalizer_processor", {"clip": True}, "sets clip=True in its step 'unnormalizer_processor'"),
    (BEFORE, "device_processor", {"float_dtype": "bfloat16"}, "sets float_dtype=bfloat16 in its step 'device_processor'"),
    (BEFORE, "to_batch_processor", {"axis": 1}, "sets axis=1 in its step 'to_batch_processor'"),
    (BEFORE, "normalizer_processor", {"normalize_observation_keys": []}, "has 'observation.state' as IDENTITY"),
    (BEFORE, "normalizer_processor", {"features": {}}, "has 'observation.state' as IDENTITY .* as MEAN_STD"),
    (AFTER, "unnormalizer_processor", {"norm_map": {"ACTION": "MIN_MAX"}}, "has 'action' as MIN_MAX .* as MEAN_STD"),
    (AFTER, "unnormalizer_processor", {"features": None}, "lists no features in its step 'unnormalizer_processor'"),
])  # fmt: skip
def test_a_setting_that_would_change_actions_is_refused_by_name(checkpoint, file, step, settings, said):
    set_in_step(checkpoint / file, step, **settings)
    with pytest.raises(ConfigError, match=said) as error:
        load_policy(checkpoint)
    assert "\n" not in str(error.value)


def test_settings_that_change_nothing_are_read(checkpoint):
    keys = ["observation.state", "observation.environment_state"]
    set_in_step(checkpoint / BEFORE, "normalizer_processor", normalize_observation_keys=keys, eps=1e-8)
    set_in_step(checkpoint / AFTER, "device_processor", float_dtype="float32")
    assert torch.equal(actions(load_policy(checkpoint)), actions(load_policy(PEER)))


def test_steps_in_an_order_that_changes_actions_are_refused(checkpoint):
    content = json.loads((checkpoint / BEFORE).read_text())
    content["steps"].append(content["steps"].pop(0))
    (checkpoint / BEFORE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="renames after it normalises"):
        load_policy(checkpoint)
    content["steps"] = [content["steps"][2]] * 2
    (checkpoint / BEFORE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"'normalizer_processor' 2 times"):
        load_policy(checkpoint)


@pytest.fixture
def old(checkpoint) -> Path:
    """The checkpoint as LeRobot wrote it before 0.4: statistics among the weights, no processors."""
    weights, stats = load_file(checkpoint / "model.safetensors"), load_file(checkpoint / STATS)
    for layer, keys in (("normalize_inputs", ["observation.state"]), ("normalize_targets", ["action"]),
                        ("unnormalize_outputs", ["action"])):  # fmt: skip
        for key in keys:
            for name in ("mean", "std"):
                weights[f"{layer}.buffer_{key.replace('.', '_')}.{name}"] = stats[f"{key}.{name}"].clone()
    for file in checkpoint.glob("policy_p*"):
        file.unlink()
    save_file(weights, checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    for newer in ("use_peft", "pretrained_path", "push_to_hub", "repo_id", "private", "tags", "license"):
        config.pop(newer, None)
    (checkpoint / "config.json").write_text(json.dumps(config))
    return checkpoint


def test_statistics_among_the_weights_are_read_ckpt_10(old, tmp_path):
    policy, new = load_policy(old), load_policy(PEER)
    torch.testing.assert_close(actions(policy), actions(new), atol=1e-6, rtol=0)
    assert policy.config.device == "cpu" and not any("buffer_" in name for name in policy.state_dict())
    save_pretrained(tmp_path / "new", policy)
    assert torch.equal(actions(load_policy(tmp_path / "new")), actions(policy))


def test_an_old_checkpoint_is_trained_on(old, tmp_path, caplog):
    words = [*START[1:], f"policy.path={old}", PUSH, f"output_dir={tmp_path}/run"]
    run = lerobot.run(lerobot.compose("train", words))
    assert (find_pretrained(run) / STATS).is_file()
    assert "far outside" not in caplog.text


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_placeholder_statistics_among_the_weights_are_refused_by_name_ckpt_15(old, bad):
    weights = load_file(old / "model.safetensors")
    weights["unnormalize_outputs.buffer_action.mean"][:] = bad
    save_file(weights, old / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'mean' of 'action' is not finite \(a placeholder\)"):
        load_policy(old)


def test_missing_statistics_among_the_weights_are_refused_by_name_ckpt_15(old):
    weights = load_file(old / "model.safetensors")
    save_file({name: value for name, value in weights.items() if "outputs.buffer" not in name and "targets.buffer" not in name},
              old / "model.safetensors")  # fmt: skip
    with pytest.raises(ConfigError, match=r"the statistics hold no 'mean' of 'action'"):
        load_policy(old)


def test_fine_tuning_says_whose_statistics_it_uses_and_takes_the_datasets_where_asked_ckpt_15(tmp_path, caplog):
    caplog.set_level("INFO", "lerobot")
    theirs = load_policy(PEER).normalizer.stats
    said = {}
    for choice in ("auto", "dataset"):
        caplog.clear()
        words = [*START, DRAWER, f"dataset.stats={choice}", f"output_dir={tmp_path / choice}"]
        run = lerobot.run(lerobot.compose("train", words))
        said[choice] = caplog.text
        mean = load_policy(run).normalizer.stats["action"]["mean"]
        assert torch.equal(mean, theirs["action"]["mean"]) is (choice == "auto")
        # what it goes on with is what it had, and its own data is no other
        run = lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2"]))
        assert torch.equal(mean, load_policy(run).normalizer.stats["action"]["mean"])
    assert (
        "weights and statistics come from" in said["auto"] and "type dataset.stats=dataset to normalise" in said["auto"]
    )
    assert "statistics from the dataset (dataset.stats=dataset)" in said["dataset"]
    # Pushing closes the gripper to 0.6 and opens it to 0; the drawer's expert opens it to -1.
    assert "in dimension 3, far outside what the checkpoint's statistics say (0 to 0.6)" in said["auto"]
    assert "far outside" not in said["dataset"]


def test_actions_far_outside_the_checkpoints_statistics_are_warned_of_ckpt_15(checkpoint, tmp_path, caplog):
    for file in checkpoint.glob("*.safetensors"):
        stats = load_file(file)
        if "action.max" in stats:
            for name in ("min", "max", "mean", "std"):
                stats[f"action.{name}"][1] *= 1e-2
            save_file(stats, file)
    words = [*START[1:], f"policy.path={checkpoint}", PUSH, f"output_dir={tmp_path}/run"]
    lerobot.run(lerobot.compose("train", words))
    assert "in dimension 1, far outside what the checkpoint's statistics say (-0.000776 to 0.01)" in caplog.text
    assert "type dataset.stats=dataset" in caplog.text


def test_a_choice_of_statistics_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"dataset\.stats=mine: type auto or dataset"):
        lerobot.compose("train", [*TINY, "dataset.stats=mine"])
