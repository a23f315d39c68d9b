"""Checkpoints in LeRobot's format: found by any name, loaded on any device, the same policy to the last bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lerobot.checkpoint import paths
from lerobot.checkpoint.paths import find_pretrained, read_policy_config
from lerobot.checkpoint.pretrained import load_policy, save_pretrained
from lerobot.errors import ConfigError
from lerobot.features import Feature
from lerobot.policies.config import ACTConfig

DATA = Path(__file__).parents[1] / "data"
PEER = DATA / "peer_checkpoints/act_state/pretrained_model"
STATS_FILE = "policy_preprocessor_step_3_normalizer_processor.safetensors"
UNNORMALIZER_FILE = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
FILES = {
    "config.json",
    "model.safetensors",
    "policy_preprocessor.json",
    STATS_FILE,
    "policy_postprocessor.json",
    UNNORMALIZER_FILE,
    "train_config.json",
}


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A copy of LeRobot's checkpoint that a test may spoil."""
    return Path(shutil.copytree(PEER, tmp_path / "pretrained_model"))


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with the checkpoints 50 and 100, of which 100 is `last`, and one that was never finished."""
    for step in ("000050", "000100"):
        shutil.copytree(PEER, tmp_path / "run/checkpoints" / step / "pretrained_model")
    (tmp_path / "run/checkpoints/.000150.tmp/pretrained_model").mkdir(parents=True)
    (tmp_path / "run/checkpoints/000150/pretrained_model").mkdir(parents=True)
    (tmp_path / "run/checkpoints/last").symlink_to("000100")
    (tmp_path / "run/.hydra").mkdir()
    (tmp_path / "run/.hydra/config.yaml").touch()
    return tmp_path / "run"


def edit(file: Path, **changes) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | changes))


def observe(policy, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.rand(2, *feature.shape, generator=generator) for key, feature in policy.inputs.items()}


@pytest.mark.parametrize("name", [
    "", "checkpoints", "checkpoints/last", "checkpoints/000100", "checkpoints/000100/pretrained_model",
    "checkpoints/000100/pretrained_model/config.json", "checkpoints/last/pretrained_model/train_config.json",
    ".hydra/config.yaml",
])  # fmt: skip
def test_every_name_for_a_checkpoint_is_understood_ckpt_06(run, name):
    assert find_pretrained(run / name) == (run / "checkpoints/000100/pretrained_model").resolve()


def test_without_last_the_newest_complete_checkpoint_counts_ckpt_06(run):
    (run / "checkpoints/last").unlink()
    assert find_pretrained(run).parent.name == "000100"
    assert find_pretrained(run / "checkpoints/000050").parent.name == "000050"
    (run / "checkpoints/last").symlink_to("gone")
    assert find_pretrained(run).parent.name == "000100"


def test_last_need_not_be_the_highest_number_ckpt_06(run):
    (run / "checkpoints/last").unlink()
    (run / "checkpoints/last").symlink_to("000050")
    assert find_pretrained(run).parent.name == "000050"


def test_a_folder_without_a_checkpoint_says_what_is_missing_ckpt_06(tmp_path, run, checkpoint):
    with pytest.raises(ConfigError, match=r"there is no checkpoint at .*/nowhere: give a run"):
        find_pretrained(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no checkpoint .no checkpoints/"):
        find_pretrained(tmp_path / "empty")
    for number in range(2):
        shutil.copytree(run, tmp_path / f"sweep/{number}_run", symlinks=True)
    with pytest.raises(ConfigError, match=r"holds runs: give one of .*/sweep/0_run, .*/sweep/1_run"):
        find_pretrained(tmp_path / "sweep")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks model.safetensors"):
        find_pretrained(checkpoint)


def test_a_checkpoint_without_statistics_is_named_as_such_ckpt_15(checkpoint):
    (checkpoint / "policy_preprocessor.json").unlink()
    with pytest.raises(ConfigError, match=r"lacks policy_preprocessor.json, and its weights hold no statistics"):
        load_policy(checkpoint)


@pytest.mark.parametrize("stored", ["cuda:0", "xpu:1", "mps", "warp:9", None])
def test_a_stored_device_plays_no_part_dev_01(checkpoint, stored):
    edit(checkpoint / "config.json", device=stored)
    for file in ("policy_preprocessor.json", "policy_postprocessor.json"):
        content = json.loads((checkpoint / file).read_text())
        for step in content["steps"]:
            if step["registry_name"] == "device_processor":
                step["config"]["device"] = stored
        (checkpoint / file).write_text(json.dumps(content))
    policy = load_policy(checkpoint)
    assert policy.device.type == "cpu"
    assert policy.config.device == "cpu"
    original = load_policy(PEER)
    assert torch.equal(policy.select_action(observe(policy)), original.select_action(observe(policy)))


def test_weights_are_read_onto_the_cpu_whatever_the_device_dev_11(checkpoint, monkeypatch):
    devices = []

    def spy(file, device):
        devices.append(str(device))
        return load_file(file, device)

    monkeypatch.setattr("lerobot.checkpoint.tensors.load_file", spy)
    assert load_policy(checkpoint, "meta").device.type == "meta"
    assert set(devices) == {"cpu"}


def test_unknown_and_missing_keys_are_warned_of_once_and_it_goes_on_ckpt_10(checkpoint, caplog):
    paths._warn_once.cache_clear()
    content = json.loads((checkpoint / "config.json").read_text())
    del content["use_peft"], content["dropout"]
    (checkpoint / "config.json").write_text(json.dumps(content | {"hindsight": 1, "use_lookahead": True}))
    for _ in range(2):
        policy = load_policy(checkpoint)
    assert policy.config.dropout == ACTConfig().dropout
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].endswith("unknown keys have no effect: hindsight, use_lookahead")
    assert messages[1].endswith("take their defaults: dropout, use_peft")


def test_a_complete_config_is_read_without_a_word(caplog):
    config = read_policy_config(PEER)
    assert not caplog.records
    assert config.input_features["observation.environment_state"] == Feature("ENV", [6])
    assert "ENV" not in config.normalization_mapping  # as the stored processor has it, not our default
    assert set(vars(config)) == set(json.loads((PEER / "config.json").read_text()))


def test_a_policy_of_another_type_is_refused(checkpoint):
    edit(checkpoint / "config.json", type="pi0")
    with pytest.raises(ConfigError, match=r"of type 'pi0': give a checkpoint of one of act"):
        load_policy(checkpoint)


def test_a_torn_file_is_named(checkpoint):
    (checkpoint / "config.json").write_text('{"type": "act",')
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        load_policy(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", STATS_FILE, UNNORMALIZER_FILE])
@pytest.mark.parametrize("keep", [0, 60, -8])
def test_torn_tensors_are_named(checkpoint, name, keep):
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:keep])
    with pytest.raises(ConfigError, match=rf"{name} cannot be read .*: give a checkpoint that has it whole") as error:
        load_policy(checkpoint)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("changes", "said"), [
    ({"dim_model": "abc"}, "dim_model: "),
    ({"n_heads": 0}, r"policy\.n_heads=0: type a whole number"),
    ({"kl_weight": None}, "kl_weight: "),
    ({"tags": 3}, "tags: "),
    ({"repo_id": "${nothing}"}, "repo_id: "),
    ({"input_features": [1]}, "under input_features"),
    ({"input_features": {"observation.state": 3}}, "under input_features"),
    ({"output_features": {"action": {"type": "ACTION", "shape": ["x"]}}}, "under output_features"),
])  # fmt: skip
def test_a_config_that_makes_no_sense_is_named_with_its_key(checkpoint, changes, said):
    edit(checkpoint / "config.json", **changes)
    with pytest.raises(ConfigError, match=rf"/config\.json .*{said}") as error:
        read_policy_config(checkpoint)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("steps", [
    3,
    [3],
    [{"registry_name": "normalizer_processor"}],
    [{"registry_name": "normalizer_processor", "config": {"norm_map": {"STATE": 3}}}],
    [{"registry_name": "normalizer_processor", "config": {}, "state_file": 3}],
])  # fmt: skip
def test_a_processor_that_makes_no_sense_is_refused(checkpoint, steps):
    edit(checkpoint / "policy_preprocessor.json", steps=steps)
    with pytest.raises(ConfigError, match=r"normalizer_processor'.*: give a checkpoint"):
        load_policy(checkpoint)


def test_weights_of_another_policy_are_refused(checkpoint):
    edit(checkpoint / "config.json", dim_feedforward=64)
    with pytest.raises(ConfigError, match=r"model.safetensors does not fit config.json beside it in 9 tensors"):
        load_policy(checkpoint)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_placeholder_statistics_are_refused_by_name_ckpt_15(checkpoint, bad):
    stats = load_file(checkpoint / STATS_FILE)
    stats["observation.state.std"][1] = bad
    save_file(stats, checkpoint / STATS_FILE)
    with pytest.raises(ConfigError, match=r"'std' of 'observation.state' is not finite"):
        load_policy(checkpoint)


def test_absent_statistics_are_refused_ckpt_15(checkpoint):
    (checkpoint / STATS_FILE).unlink()
    with pytest.raises(ConfigError, match=r"lacks the statistics of its 'normalizer_processor'"):
        load_policy(checkpoint)


def test_statistics_are_applied_to_the_bit_as_the_weights_were_trained_behind_them(checkpoint):
    # LeRobot's deviation of a constant is off by rounding, and its networks have seen what comes of that.
    stats = load_file(checkpoint / STATS_FILE)
    for name, value in {"mean": 0.5000001, "std": 3e-8, "min": 0.5, "max": 0.5}.items():
        stats[f"observation.state.{name}"][2] = value
    save_file(stats, checkpoint / STATS_FILE)
    mean, std = stats["observation.state.mean"], stats["observation.state.std"]
    normalised = load_policy(checkpoint).normalizer.normalize("observation.state", torch.full((1, 4), 0.5))
    torch.testing.assert_close(normalised[0], (0.5 - mean) / (std + 1e-8))
    assert normalised[0, 2] < -2


def test_weights_that_would_be_replaced_are_not_downloaded(checkpoint, monkeypatch):
    seen = []
    monkeypatch.setattr(ACTConfig, "build", _spy_on_build(ACTConfig.build, seen))
    edit(checkpoint / "config.json", pretrained_backbone_weights="ResNet18_Weights.IMAGENET1K_V1")
    policy = load_policy(checkpoint)
    assert set(seen) == {None}
    assert policy.config.pretrained_backbone_weights == "ResNet18_Weights.IMAGENET1K_V1"


def _spy_on_build(build, seen):
    def spy(self, stats):
        seen.append(self.pretrained_backbone_weights)
        return build(self, stats)

    return spy


def test_a_typed_config_replaces_the_stored_one():
    config = read_policy_config(PEER)
    config.n_action_steps = 2
    policy = load_policy(PEER, config=config)
    assert policy.config.n_action_steps == 2
    assert not policy.training


def fresh_policy(seed: int = 0):
    """A policy of every kind of parameter, with statistics in float64 that float32 has to round."""
    state, camera = Feature("STATE", [3]), Feature("VISUAL", [3, 32, 32])
    config = ACTConfig(
        input_features={"observation.state": state, "observation.images.top": camera},
        output_features={"action": Feature("ACTION", [2])},
        normalization_mapping={"STATE": "MIN_MAX", "VISUAL": "MEAN_STD", "ACTION": "MEAN_STD"},
        chunk_size=4,
        n_action_steps=2,
        dim_model=16,
        n_heads=2,
        dim_feedforward=16,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
    )
    generator = torch.Generator().manual_seed(seed)

    def stats(*shape):
        low, width = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        return {"min": low, "max": low + width, "mean": low + width / 2, "std": width / 4, "count": torch.tensor([7])}

    torch.manual_seed(seed)
    return config.build(
        {"observation.state": stats(3), "observation.images.top": stats(3, 1, 1), "action": stats(2), "index": stats(1)}
    ).eval()


def test_a_round_trip_keeps_every_bit(tmp_path):
    policy = fresh_policy()
    policy.rename_map = {"observation.qpos": "observation.state"}
    save_pretrained(tmp_path / "saved", policy, train_config={"steps": 3})
    assert {file.name for file in (tmp_path / "saved").iterdir()} == FILES
    assert json.loads((tmp_path / "saved/train_config.json").read_text()) == {"steps": 3}
    loaded = load_policy(tmp_path / "saved")
    assert {key: (value.dtype, value.shape) for key, value in loaded.state_dict().items()} == {
        key: (value.dtype, value.shape) for key, value in policy.state_dict().items()
    }
    assert all(torch.equal(value, policy.state_dict()[key]) for key, value in loaded.state_dict().items())
    for (name, mine), theirs in zip(policy.normalizer.named_buffers(), loaded.normalizer.buffers(), strict=True):
        assert torch.equal(mine, theirs), name
    assert loaded.rename_map == policy.rename_map
    assert torch.equal(loaded.predict_action_chunk(observe(policy)), policy.predict_action_chunk(observe(policy)))
    save_pretrained(tmp_path / "again", loaded, train_config={"steps": 3})
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes(), name


def test_what_is_saved_has_lerobots_keys_and_steps(tmp_path):
    policy = load_policy(PEER)
    save_pretrained(tmp_path, policy)
    assert not (tmp_path / "train_config.json").exists()
    for name in ("config.json", "policy_preprocessor.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((PEER / name).read_text()), name
    ours, theirs = (json.loads((folder / "policy_postprocessor.json").read_text()) for folder in (tmp_path, PEER))
    assert ours == theirs
    for file in FILES - {"train_config.json"}:
        if file.endswith(".safetensors"):
            ours, theirs = load_file(tmp_path / file), load_file(PEER / file)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_weights_gathered_elsewhere_are_what_is_saved(tmp_path):
    policy = fresh_policy()
    gathered = {key: torch.zeros_like(value) for key, value in policy.state_dict().items()}
    save_pretrained(tmp_path, policy, weights=gathered)
    assert not any(value.any() for value in load_policy(tmp_path).state_dict().values())


def test_a_saved_policy_needs_no_dataset_and_no_index_of_a_device(tmp_path):
    save_pretrained(tmp_path, fresh_policy())
    assert json.loads((tmp_path / "config.json").read_text())["device"] == "cpu"
    assert load_policy(tmp_path).select_action(observe(fresh_policy())).isfinite().all()


def test_paths_and_configs_are_read_without_torch():
    code = (
        "import sys; from lerobot.checkpoint.paths import find_pretrained, read_policy_config; "
        f"config = read_policy_config(find_pretrained({str(PEER)!r})); "
        "assert config.chunk_size == 16; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_typed_architecture_that_does_not_fit_the_weights_is_named():
    config = read_policy_config(PEER)
    config.dim_model = 32

    with pytest.raises(ConfigError, match=r"do not fit policy\.dim_model=32: leave out"):
        load_policy(PEER, config=config)
