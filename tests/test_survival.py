"""What a signal, a full disk or a kill costs: at most the work since the last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import small_disk
from runs import DATA, TINY

import lerobot
import lerobot.checkpoint
import lerobot.errors
import lerobot.train
from lerobot.command import _new_folder
from lerobot.status import write_status


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


@pytest.mark.parametrize("background", ["true", "false"])
@pytest.mark.parametrize("fails_at", [1, 3, 7])
def test_a_full_disk_while_saving_leaves_the_checkpoint_before(
    train, monkeypatch, tmp_path, caplog, fails_at, background
):
    """CKPT-12: half-written files were picked as the newest. (All moments: tests/checkpoint/test_writer.py.)"""
    writes = []

    checkpoints = tmp_path / "run" / "checkpoints"

    def full(handle):
        of_checkpoints = str(checkpoints) in str(Path(f"/proc/self/fd/{handle}").readlink())
        if of_checkpoints and (checkpoints / "last").exists():  # the first checkpoint is there
            writes.append(1)
            if len(writes) == fails_at:
                raise OSError(28, "No space left on device")
        return fsync(handle)

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(lerobot.errors.RunError, match=r"checkpoints cannot be written to \(No space left on device\)"):
        train("steps=4", "save_freq=2", f"checkpoint.background={background}")
    monkeypatch.undo()

    assert sorted(path.name for path in checkpoints.iterdir()) == ["000002", "last"]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], "No space left" in status["error"]) == ("failed", True)
    caplog.set_level("INFO")
    lerobot.run(lerobot.compose("train", [f"resume={tmp_path / 'run'}"]))
    assert f"going on after step 2 from {checkpoints / '000002'}" in caplog.text
    assert (checkpoints / "last").resolve().name == "000004"


@pytest.mark.parametrize("command", ["train", "eval", "demos"])
def test_a_folder_with_a_checkpoint_is_not_written_into(train, command):
    """CKPT-12: whatever else is lost of a run, or of LeRobot's, which has no status."""
    run = train("steps=1")
    (run / "status.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")}
    words = {"train": TINY, "eval": [f"policy.path={run}", "env=metaworld"], "demos": ["env=metaworld"]}[command]
    with pytest.raises(lerobot.errors.ConfigError, match="holds a run: type resume="):
        lerobot.compose(command, [*words, f"output_dir={run}"])
    assert {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")} == before


def test_training_changes_no_weights_that_are_still_being_copied(train, monkeypatch):
    from lerobot.checkpoint.tensors import Staging

    fill = Staging.fill

    def slow(self, tensors):
        time.sleep(0.3)
        fill(self, tensors)

    monkeypatch.setattr(Staging, "fill", slow)
    words = ["steps=4", "save_freq=1"]
    beside = train(*words, name="beside") / "checkpoints"
    plain = train(*words, "checkpoint.background=false", name="plain") / "checkpoints"
    for step in ("000001", "000002", "000003", "000004"):
        for file in ("pretrained_model/model.safetensors", "training_state/optimizer_state.safetensors"):
            assert (beside / step / file).read_bytes() == (plain / step / file).read_bytes()


def test_a_run_ends_only_when_its_checkpoint_is_whole(train, monkeypatch, tmp_path, caplog):
    from lerobot.checkpoint import writer

    real = writer.write_checkpoint

    def slow(run_dir, snapshot):
        time.sleep(0.5)
        assert json.loads((run_dir / "status.json").read_text())["state"] == "running"
        assert "go on with it" not in caplog.text and "train it longer" not in caplog.text
        return real(run_dir, snapshot)

    monkeypatch.setattr(writer, "write_checkpoint", slow)
    caplog.set_level("INFO")
    run = train("steps=3", "interrupt_after=2")
    assert "going on after step 2" in caplog.text
    assert (run / "checkpoints" / "last").resolve().name == "000003"
    assert "train it longer" in caplog.text


def test_the_best_checkpoint_is_kept_and_known_after_a_resume(train, rows, tmp_path):
    words = ["save_freq=1", "checkpoint.keep=1", "checkpoint.best=train/lr", "scheduler=cosine"]
    run = train(*words, "steps=4")
    checkpoints = run / "checkpoints"
    assert (checkpoints / "best").resolve().name == "000001"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000001", "000004", "best", "last"]

    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=6"]))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000001", "000004", "000006", "best", "last"]

    assert lerobot.checkpoint.load_policy(str(checkpoints / "best")).config.type == "act"
    lerobot.run(lerobot.compose("train", [f"resume={checkpoints / 'best'}", "steps=2"]))
    assert [row["step"] for row in rows(run)] == [1, 2]
    assert (checkpoints / "best").resolve().name == "000001"


def test_an_evaluation_that_beats_all_others_is_worth_a_checkpoint(train, monkeypatch, tmp_path, caplog):
    from lerobot.evaluation import SimEvaluator

    rates = {1: 0.2, 2: 0.1, 3: 0.8, 4: 0.8, 5: 0.3}

    def evaluate(self, policy, step, tracker, autocast, stop):
        tracker.log(step, {"eval/success_rate": rates[step]})

    monkeypatch.setattr(SimEvaluator, "evaluate", evaluate)
    run = train("steps=5", "env=metaworld", "env_eval_freq=1", "checkpoint.best=eval/success_rate")
    checkpoints = run / "checkpoints"
    assert (checkpoints / "best").resolve().name == "000003"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000001", "000003", "000005", "best", "last"]
    assert "nothing of that name" not in caplog.text


def test_a_best_metric_that_does_not_come_is_said_once_and_at_the_first_save(train, caplog, monkeypatch):
    from lerobot.runner import Training

    real, said = Training.update, []

    def update(self, step):
        said.append(caplog.text.count("checkpoint.best=train/los: nothing of that name was logged"))
        real(self, step)

    monkeypatch.setattr(Training, "update", update)
    run = train("steps=3", "log_freq=1", "save_freq=1", "checkpoint.best=train/los")

    assert said == [0, 1, 1]
    assert not (run / "checkpoints" / "best").exists()
    assert "train/loss" in caplog.text


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoint.keep=0"],
        ["checkpoint.best_is=up"],
        ["checkpoint.best=train/loss", "save_checkpoint=false"],
        ["checkpoint.best=eval/success_rate", "env=null"],
    ],
)
def test_senseless_ways_to_keep_checkpoints_are_refused(words):
    with pytest.raises(lerobot.errors.ConfigError, match="checkpoint"):
        lerobot.compose("train", [*TINY, *words])


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
        train("steps=4", "resume=auto", "wandb=offline")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["step"] == 2
    with pytest.raises(lerobot.errors.ConfigError, match="add resume=auto to the line that began it, output_dir="):
        train("steps=4")

    run = train("steps=4", "resume=auto", "wandb=offline")

    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    charts = [path.name for path in (run / "wandb").glob("offline-run-*/run-*.wandb")]
    assert len(charts) == 2
    assert len(set(charts)) == 1  # it was another run in the charts


def test_a_run_goes_on_with_its_own_data_alone_wherever_that_is_now(train, tmp_path):
    import shutil

    run = train("steps=1")
    shutil.copytree(DATA / "metaworld_push_state", tmp_path / "moved")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2", f"dataset.root={tmp_path / 'moved'}"]))
    other = DATA / "metaworld_drawer_open_state"
    with pytest.raises(lerobot.errors.ConfigError, match="holds other actions than the run was trained on"):
        lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=3", f"dataset.root={other}"]))


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors", "policy_preprocessor.json"])
def test_a_checkpoint_that_is_passed_over_is_named_with_what_it_lacks(train, caplog, lost):
    """CKPT-12: the run went on from an older one without a word."""
    run = train("steps=4", "save_freq=2")
    (run / "checkpoints" / "000004" / "pretrained_model" / lost).unlink()
    caplog.set_level("INFO")

    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=5"]))

    assert "going on after step 2" in caplog.text
    assert f"checkpoint 000004 lacks {lost}: passed over" in caplog.text


@pytest.mark.parametrize(
    "lost",
    [
        "training_state/optimizer_state.safetensors",
        "training_state/training_step.json",
        "pretrained_model/train_config.json",
        "pretrained_model/policy_postprocessor.json",
    ],
)
def test_so_is_one_that_has_a_policy_and_not_all_that_a_run_goes_on_from(train, caplog, lost):
    """CKPT-12: an older one was whole, and the run was told to start over from the weights."""
    run = train("steps=4", "save_freq=2")
    newest = run / "checkpoints" / "000004"
    (newest / lost).unlink()
    caplog.set_level("INFO")
    with pytest.raises(
        lerobot.errors.ConfigError, match=rf"000004 lacks {lost}: resume=.*/000002 goes on from another"
    ):
        lerobot.compose("train", [f"resume={newest}"])

    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=5"]))

    assert "going on after step 2" in caplog.text
    assert f"checkpoint 000004 lacks {lost}: passed over" in caplog.text
    assert (run / "checkpoints.1" / "000004" / "training_state").is_dir()  # kept, and in nobody's way


def test_a_job_of_a_sweep_passes_it_over_too(train):
    from lerobot.sweep.halt import go_on

    run = train("steps=4", "save_freq=2")
    write_status(run, state="stopped")
    (run / "checkpoints" / "000004" / "training_state" / "training_step.json").unlink()
    config = lerobot.compose("train", [*TINY, "steps=5"])

    go_on(config, run)

    assert Path(config.resume).name == "000002"


def test_going_back_leaves_the_later_part_as_a_whole_before_the_first_update(train, rows, monkeypatch):
    """CKPT-12: its rows moved and its checkpoints stayed; a kill later, the run went on from those without the rows."""
    from lerobot.runner import Training

    run = train("steps=6", "save_freq=2", "checkpoint.best=train/loss")
    (run / "checkpoints" / "best").unlink()
    (run / "checkpoints" / "best").symlink_to("000006")
    real = Training.update

    def killed(self, step):
        if step == 4:
            raise RuntimeError("killed")
        real(self, step)

    back = lerobot.compose("train", [f"resume={run / 'checkpoints' / '000002'}", "policy.optimizer_lr=1e-2"])
    monkeypatch.setattr(Training, "update", killed)
    with pytest.raises(RuntimeError, match="killed"):
        lerobot.run(back)
    monkeypatch.setattr(Training, "update", real)

    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "best", "last"]
    assert sorted(path.name for path in (run / "checkpoints.1").iterdir()) == ["000004", "000006"]
    lerobot.run(lerobot.compose("train", [f"resume={run}"]))
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
    assert [row["train/lr"] for row in rows(run)] == [1e-3] * 6
    with pytest.raises(lerobot.errors.ConfigError, match="is in no run's checkpoints folder: start a new run"):
        lerobot.compose("train", [f"resume={run / 'checkpoints.1' / '000006'}", "steps=9"])


@pytest.mark.parametrize("how", ["torn", "nothing to do", "too few", "last is a folder", "a broken row"])
def test_going_back_that_is_refused_changes_nothing(train, how):
    """CKPT-12: rows had moved, and the run that was done was one that is refused at no step."""
    run = train("steps=4", "save_freq=2")
    words = [f"resume={run / 'checkpoints' / '000002'}"]
    if how == "torn":
        (run / "checkpoints" / "000002" / "training_state" / "rng_state.safetensors").write_bytes(b"torn")
    elif how == "a broken row":
        lines = (run / "metrics.jsonl").read_text().splitlines()
        (run / "metrics.jsonl").write_text("\n".join([lines[0], "garbage", *lines[2:]]))
    elif how == "last is a folder":
        (run / "checkpoints" / "last").unlink()
        (run / "checkpoints" / "last").mkdir()
    else:
        words.append("steps=2" if how == "nothing to do" else "steps=1")
    names = ("status.json", "metrics.jsonl")
    before = [(run / name).read_text() for name in names], sorted((run / "checkpoints").iterdir())

    with pytest.raises(lerobot.errors.ConfigError):
        lerobot.run(lerobot.compose("train", words))

    assert before == ([(run / name).read_text() for name in names], sorted((run / "checkpoints").iterdir()))


def test_a_refusal_leaves_a_stopped_run_stopped(train, monkeypatch):
    from lerobot.runner import Training

    real = Training.update

    def update(self, step):
        real(self, step)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "update", update)
        run = train("steps=4")
    before = (run / "status.json").read_text()
    other = f"dataset.root={DATA / 'metaworld_drawer_open_state'}"
    with pytest.raises(lerobot.errors.ConfigError, match="holds other actions"):
        lerobot.run(lerobot.compose("train", [f"resume={run}", other, "steps=9"]))
    assert (run / "status.json").read_text() == before
    assert json.loads(before)["state"] == "stopped"


def test_a_full_disk_while_going_back_leaves_the_run_as_it_was(train, monkeypatch):
    run = train("steps=4", "save_freq=2")
    before = (run / "metrics.jsonl").read_text()

    def full(handle):
        if ".jsonl" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(28, "No space left on device")
        return fsync(handle)

    fsync = os.fsync
    config = lerobot.compose("train", [f"resume={run / 'checkpoints' / '000002'}"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(lerobot.errors.RunError, match="make room, then type the line again"):
        lerobot.run(config)
    monkeypatch.undo()
    assert (run / "metrics.jsonl").read_text() == before
    assert sorted(path.name for path in run.glob("metrics*")) == ["metrics.jsonl"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "000004", "last"]


def test_checkpoints_may_be_on_another_disk(train, tmp_path, rows):
    """A link in place of the folder: the run went on in the other place."""
    big = tmp_path / "big"
    (tmp_path / "run").mkdir()
    big.mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(big)
    train("steps=2", "resume=auto")
    run = train("steps=3", "resume=auto")
    lerobot.run(lerobot.compose("train", [f"resume={run / 'checkpoints' / '000003'}", "steps=4"]))

    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]
    assert sorted(path.name for path in big.iterdir()) == ["000002", "000003", "000004", "last"]


def test_a_folder_that_is_no_step_in_a_readers_digits_is_none(train):
    run = train("steps=1")
    (run / "checkpoints" / "²").mkdir()
    assert lerobot.compose("train", [f"resume={run}", "steps=2"]).resume.endswith("000001")


def test_a_folder_in_use_is_not_said_to_be_free_to_go_on_in(train):
    from lerobot.claim import claimed

    run = train("steps=1")
    with claimed(run, goes_on=True), pytest.raises(lerobot.errors.ConfigError, match="in use by another process"):
        lerobot.compose("train", [*TINY, f"output_dir={run}"])


def test_a_full_disk_at_the_first_save_promises_no_checkpoint(train, monkeypatch, tmp_path):
    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("lerobot.checkpoint.training_state.put", full)
        with pytest.raises(lerobot.errors.RunError, match="nothing is saved: make room, then add resume=auto"):
            train("steps=1")
    train("steps=1", "resume=auto")
    assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == "000001"

    (tmp_path / "sweep.json").touch()  # the run is a job, and resume=auto is refused with -m
    with monkeypatch.context() as patched:
        patched.setattr("lerobot.checkpoint.training_state.put", full)
        with pytest.raises(lerobot.errors.RunError, match=r"make room, then type -m sweep\.resume="):
            train("steps=1", name="0_job")


def test_a_folder_in_which_a_run_was_refused_is_free(train, tmp_path):
    """The line is typed again, mended."""
    with pytest.raises(lerobot.errors.ConfigError, match="episode 900"):
        train("dataset.episodes=[900]")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "refused"

    run = train("steps=1")

    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_a_run_in_a_folder_that_cannot_be_written_is_refused_before_anything_is_opened(train, monkeypatch):
    run = train("steps=1")
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != run and real(path, mode)
    )  # as root may write all

    with pytest.raises(lerobot.errors.ConfigError, match="cannot be written to"):
        lerobot.compose("train", [f"resume={run}", "steps=2"])


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


def test_a_full_disk_takes_rows_and_status_for_a_while_and_ends_no_run(train, rows, monkeypatch, tmp_path, caplog):
    """It ended with a traceback, or two."""
    from lerobot.policies.act import ACTPolicy

    disk, real, calls = tmp_path / "disk", ACTPolicy.loss, []
    with small_disk(disk) as fill:
        if fill is None:
            pytest.skip("mounting a disk takes root")

        def loss(self, batch):
            calls.append(1)
            if len(calls) == 3:
                fill()
            if len(calls) == 6:
                (disk / "ballast").unlink()
            return real(self, batch)

        monkeypatch.setattr(ACTPolicy, "loss", loss)
        run = train("save_checkpoint=false", "steps=6", name="disk/run")

        assert [row["step"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
        status = json.loads((run / "status.json").read_text())
        assert (status["state"], status["step"]) == ("done", 6)
        assert sum("cannot be written to (No space left on device)" in line for line in caplog.messages) == 1


def test_a_disk_that_stays_full_ends_no_run_and_its_state_is_known_here(train, monkeypatch, tmp_path, capfd):
    from lerobot.policies.act import ACTPolicy
    from lerobot.status import read_status

    disk, real = tmp_path / "disk", ACTPolicy.loss
    with small_disk(disk) as fill:
        if fill is None:
            pytest.skip("mounting a disk takes root")

        def loss(self, batch):
            fill()
            return real(self, batch)

        monkeypatch.setattr(ACTPolicy, "loss", loss)
        monkeypatch.setattr("sys.argv", ["lerobot-train", *TINY, "save_checkpoint=false", f"output_dir={disk / 'run'}"])
        with pytest.raises(SystemExit) as left:
            lerobot.command.main("train", lerobot.train.work)

        said = capfd.readouterr().err
        assert left.value.code == 0
        assert said.count("cannot be written to") == 1
        assert "Traceback" not in said  # logging prints one for each line that a full disk does not take
        assert read_status(disk / "run")["state"] == "done"


def test_a_full_disk_before_a_run_has_begun_is_one_sentence(monkeypatch, tmp_path, capfd):
    disk = tmp_path / "disk"
    with small_disk(disk) as fill:
        if fill is None:
            pytest.skip("mounting a disk takes root")
        fill()
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *TINY, "seed=0,1", f"output_dir={disk / 'sweep'}"])
        with pytest.raises(SystemExit) as left:
            lerobot.command.main("train", lerobot.train.work)

        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert left.value.code != 0
        assert len(said) == 1
        assert "No space left on device" in said[0]
