"""Whole runs, in process, on recorded data: what the command does."""

import json
from pathlib import Path

import pytest
import torch
from runs import DATA, TINY, losses, weights

import lerobot
from lerobot.errors import ConfigError, RunError

DATASETS = sorted(path.name for path in DATA.iterdir() if (path / "meta").is_dir())


@pytest.mark.parametrize("name", DATASETS)
def test_it_trains_on_every_dataset_and_leaves_the_files_of_the_contract(name, train, rows):
    run = train(f"dataset.root={DATA / name}", "steps=2", "batch_size=2", "seed=3")

    step = run / "checkpoints" / "000002"
    assert {"config.json", "model.safetensors", "train_config.json", "policy_preprocessor.json"} <= {
        path.name for path in (step / "pretrained_model").iterdir()
    }
    assert {"training_step.json", "optimizer_state.safetensors"} <= {
        p.name for p in (step / "training_state").iterdir()
    }
    assert (run / "checkpoints" / "last").resolve() == step
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    facts = json.loads((run / "run.json").read_text())
    assert (facts["device"], facts["forward_dtype"], facts["scaler"]) == ("cpu", "float32", None)
    row = rows(run)[-1]
    wanted = ["loss", "grad_norm", "lr", "samples_per_s", "step_s", "data_s", "update_s"]
    assert {"step", "time_s", "device/peak_mem_gb", *(f"train/{word}" for word in wanted)} <= row.keys()
    assert "train/scale" not in row
    assert "train/skipped_steps" not in row
    assert not (step / "training_state" / "scaler_state.json").exists()


def test_training_lowers_the_loss(train, rows):
    history = losses(rows(train("steps=60", "log_freq=20", "batch_size=32")))

    assert history[60] < 0.7 * history[20]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(train, rows):
    first, again, other = (
        losses(rows(train(f"seed={seed}", name=name))) for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )

    assert first == again
    assert first != other


def test_a_run_that_is_resumed_with_workers_repeats_the_uninterrupted_one_without(train, rows):
    """CKPT-07, CKPT-08: data order and random numbers go on; `test_resume.py` has the rest."""
    words = ["precision=bf16", "policy.dropout=0.1", "scheduler=cosine"]
    straight = train(*words, name="straight")
    cut = train(*words, "interrupt_after=4", "num_workers=2", name="cut")

    assert losses(rows(cut)) == losses(rows(straight))
    for name, weight in weights(straight).items():
        torch.testing.assert_close(weights(cut)[name], weight, rtol=0, atol=0)


def test_resume_goes_on_in_the_runs_own_folder_with_what_may_change(train, rows, caplog):
    """CKPT-09: what was typed had no effect, or replaced everything."""
    caplog.set_level("INFO")
    run = train("steps=3")

    config = lerobot.compose("train", [f"resume={run}", "steps=5", "optimizer.lr=1e-6", "log_freq=1"])
    assert lerobot.run(config) == run

    said = caplog.text
    assert "changed on resume: steps=5, was 3" in said
    assert "changed on resume: optimizer.lr=1e-06, was 0.001" in said
    assert said.count("changed on resume") == 2
    history = rows(run)
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5]
    assert [row["train/lr"] for row in history] == [1e-3] * 3 + [1e-6] * 2
    times = [row["time_s"] for row in history]
    assert times == sorted(times)
    assert json.loads((run / "status.json").read_text())["step"] == 5


@pytest.mark.parametrize(
    "form", ["", "checkpoints", "checkpoints/last", "checkpoints/000003", "checkpoints/last/pretrained_model"]
)
def test_every_way_to_name_a_checkpoint_resumes_it(train, form):
    """CKPT-06: which path do I give?"""
    run = train("steps=3")

    config = lerobot.compose("train", [f"resume={run / form}", "steps=4"])

    assert config.resume == str(run / "checkpoints" / "000003")
    assert config.output_dir == str(run)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("policy.dim_model=64", "policy.dim_model=64 cannot change when a run goes on (it was 32)"),
        ("policy=act", "policy.chunk_size=100 cannot change"),
        ("dataset.episodes=[1]", "dataset.episodes=[1] cannot change"),
        ("env=metaworld", "env=metaworld cannot change when a run goes on (it was None)"),
        ("batch_size=4", "batch_size=4 cannot change"),
        ("seed=1", "seed=1 cannot change"),
        ("accelerator.gradient_accumulation.steps=2", "accelerator.gradient_accumulation.steps=2 cannot change"),
    ],
)
def test_what_would_make_it_another_run_is_refused_on_resume(train, word, named):
    run = train("steps=1")

    with pytest.raises(ConfigError) as error:
        lerobot.compose("train", [f"resume={run}", word])
    assert str(error.value).startswith(named)


@pytest.mark.parametrize("form", ["resume={run}", "resume=auto"])
def test_the_words_that_started_a_run_go_on_with_it_too(train, rows, form):
    """A cluster that restarts a job types the same line again."""
    train("steps=2", "seed=5", name="run", base=[*TINY, "policy=act_small"])
    lerobot.run(
        lerobot.compose(
            "train",
            [
                *TINY,
                "policy=act_small",
                "steps=3",
                "seed=5",
                f"output_dir={Path('run').resolve()}",
                form.format(run="run"),
            ],
        )
    )

    assert [row["step"] for row in rows(Path("run"))] == [1, 2, 3]


def test_a_folder_that_holds_a_run_is_not_trained_in_again(train):
    run = train("steps=1")

    with pytest.raises(ConfigError, match="holds a run: type resume="):
        train("steps=1")
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_the_logged_norm_is_that_before_clipping(train, rows):
    free = rows(train("steps=1", "optimizer.grad_clip_norm=0", name="free"))[0]["train/grad_norm"]
    clipped = rows(train("steps=1", "optimizer.grad_clip_norm=0.01", name="clipped"))[0]["train/grad_norm"]

    assert free == clipped > 0.01


def test_first_weights_come_from_a_checkpoint_of_the_neighbour(train, rows):
    peer = DATA / "peer_checkpoints" / "act_state"

    fresh = [word for word in TINY if not word.startswith("policy.")]
    run = train(f"policy.path={peer}", "steps=1", "policy.dropout=0", base=fresh)

    config = json.loads((run / "checkpoints" / "last" / "pretrained_model" / "config.json").read_text())
    assert (config["chunk_size"], config["dim_model"], config["device"]) == (16, 64, "cpu")
    assert (
        rows(run)[0]["train/loss"] < 0.8
    )  # 0.71 on the golden batch after the neighbour's 50 updates; fresh weights: above 1


def test_weights_that_are_not_finite_are_never_saved(train, rows, spoiled_loss, tmp_path):
    """PREC-07: the run went on doing nothing, and its last checkpoint was useless."""
    spoiled_loss(call=4, factor=float("nan"))

    with pytest.raises(RunError, match="the weights are not finite at step 4"):
        train("steps=6", "save_freq=2")

    assert [row.get("train/nonfinite_steps") for row in rows(tmp_path / "run")] == [None, None, None, 1]
    assert rows(tmp_path / "run")[-1]["train/loss"] is None
    assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == "000002"


def test_a_folder_belongs_to_one_process(train, tmp_path):
    """HYD-11: two runs wrote into one folder."""
    from filelock import FileLock

    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(ConfigError, match="in use by another process"):
        train("steps=1")
    assert not (tmp_path / "run" / "status.json").exists()


def test_running_a_config_twice_makes_two_runs():
    config = lerobot.compose("train", [*TINY, "steps=1"])

    first, second = lerobot.run(config), lerobot.run(config)

    assert first != second
    assert config.output_dir is None


def test_a_refused_resume_leaves_the_runs_status_as_it_was(train, monkeypatch):
    from lerobot.command import main
    from lerobot.train import work

    run = train("steps=1")
    before = (run / "status.json").read_text()
    monkeypatch.setattr("sys.argv", ["lerobot-train", f"resume={run}", "policy.dim_model=64"])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    assert left.value.code == 2
    assert (run / "status.json").read_text() == before


def test_the_random_state_of_the_caller_is_as_before(train):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    train("steps=1")

    assert torch.rand(1) == expected


def test_a_stopped_recording_is_not_taken_for_the_whole(monkeypatch, tmp_path):
    words = [
        "experiment=demo",
        "demos.num_episodes=3",
        "steps=1",
        "eval.n_episodes=1",
        "eval.baselines=[]",
        "eval.videos=0",
    ]
    words += ["wandb=disabled", "picture=false", "device=cpu", "env.episode_length=150"]
    from lerobot.data.writer import DatasetWriter

    real = DatasetWriter.add_episode

    def add_and_signal(self, *args, **kwargs):
        import signal

        real(self, *args, **kwargs)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(DatasetWriter, "add_episode", add_and_signal)
    run = lerobot.run(lerobot.compose("train", words))

    assert json.loads((run / "status.json").read_text())["state"] == "stopped"
    assert not (tmp_path / "outputs" / "demos" / "push-v3").exists()
    assert not (run / "checkpoints").exists()


def test_a_recording_with_too_few_episodes_is_refused():
    words = ["experiment=demo", f"dataset.root={DATA / 'metaworld_push_state'}", "wandb=disabled", "device=cpu"]

    with pytest.raises(ConfigError, match=r"holds 30 of 60 episodes.*demos\.num_episodes=30"):
        lerobot.run(lerobot.compose("train", words))


def test_waiting_for_data_is_said_once(train, monkeypatch, caplog):
    """DATA-08: users compare precisions while the device waits for frames."""
    import time

    from lerobot.data.reader import LeRobotDataset

    real = LeRobotDataset.__getitems__
    monkeypatch.setattr(LeRobotDataset, "__getitems__", lambda self, indices: time.sleep(0.2) or real(self, indices))
    train("steps=3")

    assert caplog.text.count("of a step is waiting for data") == 1


def test_the_recorder_records_through_its_command(tmp_path, monkeypatch):
    from lerobot.command import main
    from lerobot.data.meta import load_meta
    from lerobot.demos import work

    words = ["env.task=drawer-open-v3", "dataset.root=my drawer", "dataset.num_episodes=2"]
    for status in (0, 2):  # the second time the folder is there
        monkeypatch.setattr("sys.argv", ["lerobot-demos", *words])
        with pytest.raises(SystemExit) as left:
            main("demos", work)
        assert left.value.code == status

    assert load_meta(tmp_path / "my drawer").num_episodes == 2
