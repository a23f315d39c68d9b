"""A checkpoint from elsewhere is JSON and safetensors: nothing in it runs, and what is senseless is one sentence."""

import json
import pickle
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import DATA, TINY
from safetensors.torch import load_file, save_file

import lerobot
from lerobot.checkpoint.pretrained import load_policy
from lerobot.errors import ConfigError

PEER = DATA / "peer_checkpoints/act_state/pretrained_model"
DATASET = f"dataset.root={DATA / 'metaworld_push_state'}"
WEIGHTS = "model.safetensors"


class Mark:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return Path(shutil.copytree(PEER, tmp_path / "pretrained_model"))


def edit(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_step(file: Path, name: str, settings=None, **changes) -> None:
    content = json.loads(file.read_text())
    step = next(step for step in content["steps"] if step["registry_name"] == name)
    step.update(changes)
    step["config"].update(settings or {})
    file.write_text(json.dumps(content))


def refused(path: Path, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        load_policy(path)
    assert "\n" not in str(error.value)


def raw(header: dict | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "policy_preprocessor.json",
                                  "policy_preprocessor_step_3_normalizer_processor.safetensors"])  # fmt: skip
def test_a_pickle_under_another_name_is_not_opened(checkpoint, tmp_path, name):
    (checkpoint / name).write_bytes(pickle.dumps(Mark(tmp_path / "ran")))
    refused(checkpoint, rf"{name} cannot be read")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "policy.ckpt"])
def test_weights_that_are_a_pickle_are_refused_by_name(checkpoint, tmp_path, name):
    (checkpoint / WEIGHTS).unlink()
    (checkpoint / name).write_bytes(pickle.dumps(Mark(tmp_path / "ran")))
    refused(checkpoint, rf"has its weights as {name}, which can run any program and is never opened")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [
    raw(b"", length=100 * 2**20), raw(b"{" + b" " * 20, length=2**62), b"\x00", b"",
    raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)),
    raw({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, bytes(8)),
    raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
    raw({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)),
    raw({"a": {"dtype": "PICKLE", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
])  # fmt: skip
def test_a_header_that_lies_is_refused(checkpoint, content):
    (checkpoint / WEIGHTS).write_bytes(content)
    refused(checkpoint, rf"{WEIGHTS} cannot be read \(")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float8_e4m3fn])
def test_weights_of_another_kind_of_number_are_refused(checkpoint, kind):
    weights = load_file(checkpoint / WEIGHTS)
    save_file({name: value.to(kind) for name, value in weights.items()}, checkpoint / WEIGHTS)
    refused(checkpoint, r"which loses what was trained: give a checkpoint whose weights are one of F64, F32")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_other_floats_are_read(checkpoint, kind):
    weights = load_file(checkpoint / WEIGHTS)
    save_file({name: value.to(kind) for name, value in weights.items()}, checkpoint / WEIGHTS)
    assert next(load_policy(checkpoint).parameters()).dtype == torch.float32


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(checkpoint, bad):
    weights = load_file(checkpoint / WEIGHTS)
    weights["model.action_head.weight"][0, 0] = bad
    save_file(weights, checkpoint / WEIGHTS)
    refused(checkpoint, r"has weights that are not finite \(model.action_head.weight\)")


@pytest.mark.parametrize(("changes", "said"), [
    ({"dim_model": 10**9}, r"policy\.dim_model=1000000000 is more than the weights"),
    ({"chunk_size": 10**12}, r"policy\.chunk_size=1000000000000 is more"),
    ({"n_encoder_layers": 10**5}, r"policy\.n_encoder_layers=100000 is more"),
    ({"dim_feedforward": 10**400}, r"holds no settings of a policy \(int too large"),
    ({"input_features": {"observation.state": {"type": "STATE", "shape": [2**27]}}}, "does not fit config.json"),
    ({"input_features": {"observation.state": {"type": "STATE", "shape": [2**40]}}}, "under input_features"),
    ({"input_features": {"observation.state": {"type": "STATE", "shape": [-3]}}}, "under input_features"),
    ({"input_features": {"observation.images.a": {"type": "VISUAL", "shape": [3, 10**6, 10**6]}}}, "under input_features"),
    ({"vision_backbone": "${oc.env:HOME}"}, "vision_backbone: a reference is no value"),
])  # fmt: skip
def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_made(checkpoint, changes, said):
    edit(checkpoint / "config.json", **changes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(checkpoint, said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # in KB


@pytest.mark.parametrize("content", [
    "[" * 40 + "]" * 40, "[" * 100_000, '{"type": "act", "a": ' + "[" * 40 + "]" * 40 + "}",
    '{"type": "act", "dropout": NaN}', '{"type": "act", "kl_weight": Infinity}', "[1, 2]", "3", "", "\x00\xff",
    '{"a": "' + "x" * 17_000_000 + '"}', '{"type": ' + "9" * 10_000 + "}",
])  # fmt: skip
@pytest.mark.parametrize("name", ["config.json", "policy_postprocessor.json"])
def test_json_that_makes_no_sense_is_refused(checkpoint, name, content):
    (checkpoint / name).write_text(content)
    refused(checkpoint, rf"{name} (cannot be read|holds a)")


@pytest.mark.parametrize(
    "name", ["../../../../etc/passwd", "/etc/passwd", "../model.safetensors", "sub/x.safetensors", "config.json"]
)
def test_statistics_lie_beside_the_file_that_names_them(checkpoint, name):
    edit_step(checkpoint / "policy_preprocessor.json", "normalizer_processor", state_file=name)
    refused(checkpoint, r"as the tensors of its step 'normalizer_processor', which is no safetensors file beside it")


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "/etc"])
@pytest.mark.parametrize(
    "name", [WEIGHTS, "config.json", "policy_postprocessor_step_0_unnormalizer_processor.safetensors"]
)
def test_a_link_to_what_is_no_part_of_a_checkpoint_tells_nothing_of_it(checkpoint, name, target):
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to(target)
    with pytest.raises(ConfigError) as error:
        load_policy(checkpoint)
    assert "root:" not in str(error.value) and "\n" not in str(error.value)


def test_links_into_a_store_are_how_the_hubs_cache_keeps_files(checkpoint, tmp_path):
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(list(checkpoint.iterdir())):
        file.rename(tmp_path / f"blobs/{number}")
        file.symlink_to(f"../blobs/{number}")
    assert load_policy(checkpoint).config.chunk_size == 16


STRANGE = "strange_code_of_somebody"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    return lerobot.run(lerobot.compose("train", [*TINY, "steps=1", f"output_dir={folder}"]))


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A run whose stored config a test may spoil, and a module on the path that leaves a file where it is imported."""
    (tmp_path / f"{STRANGE}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    assert not (tmp_path / "ran").exists() and STRANGE not in sys.modules


@pytest.mark.parametrize(
    "target", [f"{STRANGE}.Config", "os.system", "subprocess.Popen", "lerobot.runner.Training", "x", 3, None]
)
@pytest.mark.parametrize("group", ["policy", "dataset", "optimizer"])
@pytest.mark.parametrize("way", ["resume", "config_path"])
def test_a_stored_config_names_no_code_of_others(run, tmp_path, group, target, way):
    file = run / "checkpoints/last/pretrained_model/train_config.json"
    stored = json.loads(file.read_text())
    stored[group]["_target_"] = target
    file.write_text(json.dumps(stored))
    with pytest.raises(
        ConfigError, match=rf"names {target} as its {group}, which is no .* of this package: type {group}="
    ):
        lerobot.compose(
            "train", [f"{way}={run}", "steps=2", *([f"output_dir={tmp_path}/new"] if way != "resume" else [])]
        )


def test_a_reference_in_a_stored_config_is_not_followed(run, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    file = run / "checkpoints/last/pretrained_model/train_config.json"
    edit(file, job_name="${oc.env:SECRET}")
    for way in ("resume", "config_path"):
        with pytest.raises(ConfigError, match=r"has a reference .* in place of a value"):
            lerobot.compose("train", [f"{way}={run}"])


def test_hydras_own_settings_in_a_stored_config_have_no_effect(run, tmp_path, caplog):
    """What runs code in Hydra are callbacks, launchers and logging: none of them comes from a file of somebody else."""
    mark = tmp_path / "called"
    evil = {
        "hydra": {
            "callbacks": {
                "x": {"_target_": "pathlib.Path.touch", "self": {"_target_": "pathlib.Path", "_args_": [str(mark)]}}
            },
            "job_logging": {"handlers": {"x": {"()": "os.mkdir", "path": str(mark)}}},
        },
        "defaults": [{"/dataset": "../../evil"}],
    }
    ours = run / "checkpoints/last/pretrained_model/train_config.json"
    edit(ours, **evil)
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps({
        **evil, "policy": {"type": "act"}, "dataset": {"root": str(DATA / "metaworld_push_state"), "_target_": f"{STRANGE}.Config"},
        "+hydra": {"run": {"dir": str(mark)}}, "env": {"type": "../../evil"}, "tf32": None,
    }))  # fmt: skip
    for file in (ours, theirs):
        words = [f"config_path={file}", f"output_dir={tmp_path}/{file.stem}", *TINY, "steps=1"]
        command = [sys.executable, "-m", "lerobot.train", "--cfg", "job", *words[:1]]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "evil" not in shown and STRANGE not in shown and "callbacks" not in shown
        assert lerobot.compose("train", words).policy.type == "act"
    assert "unknown keys have no effect: hydra.callbacks" in caplog.text and "dataset._target_" in caplog.text
    assert not mark.exists()


def test_yaml_of_a_run_is_never_read(run, tmp_path):
    (run / ".hydra").mkdir(exist_ok=True)
    (run / ".hydra/config.yaml").write_text(f"!!python/object/apply:os.mkdir ['{tmp_path}/ran']\n")
    config = lerobot.compose("train", [f"resume={run / '.hydra/config.yaml'}", "steps=2"])
    assert config.policy.type == "act"
