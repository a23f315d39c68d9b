"""Policies come from the Hub pinned and go there whole; what is on this machine needs no Hub."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub.constants
import pytest
import yaml
from hub_server import TOKEN, serving
from runs import DATA, TINY

import lerobot
from lerobot.checkpoint.hub import find_policy, named_repo
from lerobot.checkpoint.pretrained import load_policy
from lerobot.errors import ConfigError, RunError

PEER = DATA / "peer_checkpoints/act_state/pretrained_model"
DATASET = f"dataset.root={DATA / 'metaworld_push_state'}"
START = ["policy.path=me/pusher", DATASET, "steps=1", "batch_size=2", "num_workers=0", "device=cpu", "wandb=disabled"]
UPLOAD = [*TINY, "steps=2", "policy.push_to_hub=true", "policy.repo_id=me/pusher"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with one policy, `me/pusher`, an empty cache, and nobody logged in."""
    with serving() as (hub, address):
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_DISABLE_XET": True,  # another protocol, against another server
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        hub.push_folder("me/pusher", PEER, **{"evil.py": b"raise SystemExit", "pytorch_model.bin": b"\x80\x04."})
        yield hub


def test_a_policy_is_fetched_as_json_and_safetensors_alone(hub):
    commit = hub.repos["me/pusher"][0][0]
    folder, found = find_policy("me/pusher")
    assert found == commit
    assert {file.name for file in folder.iterdir()} == {file.name for file in PEER.iterdir()}
    asked = [request.rpartition("/")[2] for request in hub.requests if "/resolve/" in request]
    assert "evil.py" not in asked and "pytorch_model.bin" not in asked
    mine, theirs = (load_policy(path).state_dict() for path in ("me/pusher", PEER))
    assert all((value == theirs[name]).all() for name, value in mine.items())


def test_what_is_cached_needs_no_network_where_it_is_pinned_or_offline(hub, monkeypatch):
    commit = hub.repos["me/pusher"][0][0]
    first, _ = find_policy("me/pusher")
    hub.requests.clear()
    assert find_policy("me/pusher", commit) == (first, commit)
    assert find_policy(f"me/pusher@{commit}") == (first, commit)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
        assert find_policy("me/pusher") == (first, commit)
        with pytest.raises(ConfigError, match=r"there is no me/other on this machine.*HF_HUB_OFFLINE is set: unset it"):
            find_policy("me/other")
        monkeypatch.delenv(name)
    assert not hub.requests


def test_a_pinned_revision_is_what_is_trained_on_and_a_repeat_gets_the_same(hub, tmp_path, caplog):
    old = hub.repos["me/pusher"][0][0]
    hub.tags["me/pusher", "v1"] = old
    hub.push("me/pusher", {"config.json": b"{}", "model.safetensors": b""})  # what a branch has become since
    caplog.set_level("INFO", "lerobot")
    run = lerobot.run(lerobot.compose("train", [*START, "policy.pretrained_revision=v1", f"output_dir={tmp_path}/run"]))
    assert f"weights and statistics come from me/pusher at {old}" in caplog.text
    stored = json.loads((run / "checkpoints/last/pretrained_model/train_config.json").read_text())["policy"]
    assert (stored["pretrained_path"], stored["pretrained_revision"]) == ("me/pusher", old)
    again = lerobot.compose("train", [f"config_path={run}", f"output_dir={tmp_path}/again"])
    assert again.policy.pretrained_revision == old
    hub.requests.clear()
    lerobot.run(again)
    assert not hub.requests
    hub.tags["me/pusher", "v1"] = "moved"
    on = lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2"]))
    assert json.loads((on / "status.json").read_text())["step"] == 2


def test_an_upload_is_not_taken_over_from_what_is_fetched(hub):
    files = dict(hub.repos["me/pusher"][0][1])
    files["config.json"] = json.dumps(
        json.loads(files["config.json"]) | {"push_to_hub": True, "repo_id": "x/y"}
    ).encode()
    hub.push("me/pusher", files)
    config = lerobot.compose("train", START)
    assert config.policy.push_to_hub is False and config.policy.repo_id is None


def test_evaluation_takes_a_repo_too(hub):
    config = lerobot.compose("eval", ["policy.path=me/pusher@main", "env=metaworld", "env.task=push-v3"])
    assert config.policy.pretrained_path == "me/pusher"
    assert config.policy.pretrained_revision == hub.repos["me/pusher"][0][0]
    with pytest.raises(ConfigError, match="lerobot-eval uploads nothing"):
        lerobot.run(lerobot.compose("eval", ["policy.path=me/pusher", "policy.push_to_hub=true"]))


@pytest.mark.parametrize(("words", "said"), [
    (["policy.path=me/none"], r"me/none is neither a folder here nor a repo that the Hub shows you"),
    (["policy.path=me/pusher", "policy.pretrained_revision=v9"], r"me/pusher has no revision v9: type a commit"),
    (["policy.path=me/pusher@v1", "policy.pretrained_revision=v9"], r"differ: leave one revision out"),
    (["policy.pretrained_revision=v9"], r"pins a Hub repo and none is named: add policy\.path=<user>/<name>"),
    (["policy.path=me/closed"], r"me/closed is gated: accept its conditions"),
    (["policy.path=me/pickled"], r"me/pickled has no model\.safetensors: .*pickles.*never opened"),
    (["policy.path=me/down"], r"the Hub did not answer for me/down .*500"),
    ([f"policy.path={PEER}", "policy.pretrained_revision=v1"], r"=v1 is one of a Hub repo and .* is none: leave it out"),
])  # fmt: skip
def test_what_cannot_be_fetched_is_said_in_one_sentence(hub, words, said):
    hub.push("me/closed", {})
    hub.gated.add("me/closed")
    hub.push("me/pickled", {"config.json": b"{}", "pytorch_model.bin": b""})
    hub.broken = "me/down"
    with pytest.raises(ConfigError, match=said) as error:
        lerobot.compose("train", [*words, DATASET])
    assert "\n" not in str(error.value)


def test_without_an_answer_it_is_said_within_bounds(hub, monkeypatch):
    monkeypatch.setattr("lerobot.checkpoint.hub._TIMEOUT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(ConfigError, match="the Hub did not answer for me/pusher"):
            find_policy("me/pusher")
    with pytest.raises(ConfigError, match="the Hub did not answer for me/pusher"):  # nobody listens any more
        find_policy("me/pusher")
    assert time.monotonic() - started < 5


def test_what_is_on_this_machine_wins_and_imports_no_hub(hub, tmp_path):
    (tmp_path / "me").mkdir()
    (tmp_path / "me/pusher").symlink_to(PEER)
    folder, commit = find_policy("me/pusher")
    assert (folder.resolve(), commit) == (PEER.resolve(), None)
    assert named_repo("me/pusher") is None
    code = (
        "import sys; sys.argv = ['x']; import lerobot; "
        f"lerobot.compose('train', ['policy.path={PEER}', '{DATASET}']); "
        "assert not {'huggingface_hub', 'torch', 'httpx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    assert not hub.requests


def test_a_look_asks_no_hub_and_shows_what_would_be_fetched(hub):
    words = ["--cfg", "job", "policy.path=me/pusher@v1", DATASET]
    result = subprocess.run([sys.executable, "-m", "lerobot.train", *words], capture_output=True, text=True, check=True)
    policy = yaml.safe_load(result.stdout)["policy"]
    assert (policy["pretrained_path"], policy["pretrained_revision"]) == ("me/pusher", "v1")
    assert not hub.requests


def log_in(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def test_the_last_checkpoint_is_uploaded_whole_with_a_card(hub, train, monkeypatch):
    log_in(monkeypatch)
    run = train(*UPLOAD, "policy.repo_id=us/new", "policy.license=mit", "policy.tags=[push]", base=[])
    commit, files = hub.repos["us/new"][-1]
    folder = run / "checkpoints/last/pretrained_model"
    assert {name: files[name] for name in files.keys() - {"README.md"}} == {
        f.name: f.read_bytes() for f in folder.iterdir()
    }
    head, _, text = files["README.md"].decode().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head) == {
        "library_name": "lerobot", "pipeline_tag": "robotics", "license": "mit", "tags": ["push", "lerobot", "robotics", "act"],
    }  # fmt: skip
    assert "lerobot-eval policy.path=us/new" in text and "metaworld_push_state" in text
    assert find_policy("us/new")[1] == commit
    assert load_policy("us/new").config.chunk_size == 8


@pytest.mark.parametrize(("change", "said"), [
    ({"words": ["policy.repo_id=null"]}, "needs a repo to upload to: type policy.repo_id=<user>/<name>"),
    ({"words": ["policy.repo_id=pusher"]}, "needs a repo to upload to"),
    ({"words": ["save_checkpoint=false"]}, "drop save_checkpoint=false"),
    ({"words": ["policy.repo_id=them/pusher"]}, "not yours to write to: type one of me, us"),
    ({"env": {"HF_TOKEN": ""}}, "needs a token: type `hf auth login`"),
    ({"env": {"HF_TOKEN": "wrong"}}, "the Hub did not answer for me/pusher .*log in anew"),
    ({"env": {"HF_HUB_OFFLINE": "1"}}, "HF_HUB_OFFLINE is set"),
    ({"role": "read"}, "may only read"),
])  # fmt: skip
def test_an_upload_that_cannot_be_is_refused_before_training(hub, train, monkeypatch, change, said):
    log_in(monkeypatch)
    hub.role = change.get("role", "write")
    for name, value in change.get("env", {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        train(*UPLOAD, *change.get("words", []), base=[])
    assert len(hub.repos["me/pusher"]) == 1


def test_an_upload_that_fails_loses_nothing_and_can_be_made_up_for(hub, train, tmp_path, monkeypatch):
    log_in(monkeypatch)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # it tries again five times
    hub.broken = "/preupload/"
    run = tmp_path / "run"
    with pytest.raises(
        RunError, match=r"trained and saved, its upload to me/pusher failed .*`hf upload me/pusher .*resume="
    ):
        train(*UPLOAD, base=[])
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("failed", 2)
    hub.broken = ""
    lerobot.run(lerobot.compose("train", [f"resume={run}"]))
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert hub.repos["me/pusher"][-1][1].keys() >= {"model.safetensors", "README.md"}


def test_a_finished_run_can_be_uploaded_afterwards(hub, train, monkeypatch):
    log_in(monkeypatch)
    run = train("steps=2")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "policy.push_to_hub=true", "policy.repo_id=me/late"]))
    assert "model.safetensors" in hub.repos["me/late"][-1][1]
