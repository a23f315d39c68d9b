"""What a signal, a full disk or a kill costs: at most the work since the last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import DATA, TINY

import lerobot
import lerobot.errors
from lerobot.command import _new_folder


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_ends_the_run_with_a_checkpoint_of_the_update_at_hand(train, rows, monkeypatch, name):
    """HYD-16: preempted jobs started from zero."""
    from lerobot.policies.act import ACTPolicy

    real, calls = ACTPolicy.loss, []

    def loss(self, batch):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(getattr(signal, name))
        return real(self, batch)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    run = train("steps=6")

    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("stopped", 3)
    assert (run / "checkpoints" / "last").resolve().name == "000003"
    lerobot.run(lerobot.compose("train", [*TINY, "steps=6", "resume=auto", f"output_dir={run}"]))
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_resume_auto_starts_anew_where_there_is_nothing_to_go_on_from(train, tmp_path):
    run = train("steps=1", "resume=auto", name="fresh")

    assert (run / "checkpoints" / "000001").is_dir()


def test_the_command_leaves_with_75_when_it_was_stopped(tmp_path):
    words = [word for word in TINY if not word.startswith("steps=")]
    process = subprocess.Popen(
        [sys.executable, "-m", "lerobot.train", *words, "steps=1000000", "log_freq=1", "output_dir=run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 75, said
    assert "Traceback" not in said
    step = json.loads((tmp_path / "run" / "status.json").read_text())["step"]
    assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == f"{step:06d}"


@pytest.mark.parametrize("fails_at", range(1, 10))
def test_a_full_disk_while_saving_leaves_the_checkpoint_before(train, monkeypatch, tmp_path, fails_at):
    """CKPT-12: half-written files were picked as the newest."""
    from lerobot.checkpoint import pretrained, training_state

    writes = []

    def full(write):
        def attempt(*args, **kwargs):
            if (tmp_path / "run" / "checkpoints" / "last").exists():  # the first checkpoint is there
                writes.append(1)
                if len(writes) == fails_at:
                    raise OSError(28, "No space left on device")
            return write(*args, **kwargs)

        return attempt

    for module, name in (
        (pretrained, "save_file"),
        (pretrained, "_write_json"),
        (training_state, "save_file"),
        (training_state, "write_json"),
    ):
        monkeypatch.setattr(module, name, full(getattr(module, name)))
    with pytest.raises(OSError, match="No space left"):
        train("steps=4", "save_freq=2")
    monkeypatch.undo()

    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000002", "last"]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
    config = lerobot.compose("train", [f"resume={tmp_path / 'run'}"])
    lerobot.run(config)
    assert (checkpoints / "last").resolve().name == "000004"


def test_two_runs_of_the_same_second_get_two_folders(tmp_path):
    """HYD-11: they shared one."""
    made = [_new_folder(str(tmp_path / "12-00-00_act")) for _ in range(3)]

    assert len(set(made)) == 3
    assert all(Path(folder).is_dir() for folder in made)


def test_a_policy_is_evaluated_without_its_dataset_and_says_in_what(train, tmp_path):
    """CKPT-15, EVAL-08: statistics are in the checkpoint; the evaluated precision is stated."""
    import shutil

    from lerobot.checkpoint import load_policy

    shutil.copytree(DATA / "metaworld_push_state", tmp_path / "moved")
    run = train(f"dataset.root={tmp_path / 'moved'}", "precision=bf16", "steps=2")
    shutil.rmtree(tmp_path / "moved")
    words = [
        f"policy.path={run}",
        "eval.n_episodes=1",
        "env.episode_length=5",
        "eval.videos=0",
        "wandb=disabled",
        "device=cpu",
    ]
    for precision, dtype in (("no", "float32"), ("bf16", "bfloat16")):
        folder = lerobot.run(
            lerobot.compose("eval", [*words, f"precision={precision}", f"output_dir={tmp_path / precision}"])
        )
        facts = json.loads((folder / "run.json").read_text())
        assert (facts["forward_dtype"], facts["parameter_dtype"]) == (dtype, "float32")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["eval/n_episodes"] for row in rows] == [1]
    assert load_policy(str(run)).normalizer is not None


def test_a_run_that_died_before_its_first_checkpoint_starts_anew_in_its_folder(train, rows, monkeypatch, tmp_path):
    """HYD-16: the same line, typed again by a cluster."""
    from lerobot.policies.act import ACTPolicy

    real, calls = ACTPolicy.loss, []

    def loss(self, batch):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the node is gone")
        return real(self, batch)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    with pytest.raises(RuntimeError, match="the node is gone"):
        train("steps=4", "resume=auto")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["step"] == 2
    with pytest.raises(lerobot.errors.ConfigError, match="type resume=auto output_dir="):
        train("steps=4")

    run = train("steps=4", "resume=auto")

    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_a_run_goes_on_with_its_own_data_alone_wherever_that_is_now(train, tmp_path):
    import shutil

    run = train("steps=1")
    shutil.copytree(DATA / "metaworld_push_state", tmp_path / "moved")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2", f"dataset.root={tmp_path / 'moved'}"]))
    other = DATA / "metaworld_drawer_open_state"
    with pytest.raises(lerobot.errors.ConfigError, match="holds other actions than the run was trained on"):
        lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=3", f"dataset.root={other}"]))


def test_resume_auto_never_starts_over_beside_checkpoints(train, rows, caplog):
    """A lost link is no reason to train over what it pointed to."""
    run = train("steps=2")
    (run / "checkpoints" / "last").unlink()
    caplog.set_level("INFO")
    train("steps=3", "resume=auto")
    assert "going on after step 2" in caplog.text
    assert [row["step"] for row in rows(run)] == [1, 2, 3]

    for step in ("000002", "000003"):
        (run / "checkpoints" / step / "pretrained_model" / "model.safetensors").unlink()
    with pytest.raises(lerobot.errors.ConfigError, match=r"lacks model\.safetensors"):
        train("steps=4", "resume=auto")
