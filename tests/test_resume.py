"""Stopped anywhere and resumed, a run is the one that was not stopped: to the bit, in every precision."""

import hashlib
import json
import signal

import numpy as np
import pytest
import torch
from runs import DATA, TINY, weights

import lerobot
from lerobot import runner
from lerobot.errors import ConfigError, RunError
from lerobot.resume_check import differences
from lerobot.runner import Training

STEPS = 8
SMALL = ["dataset.episodes=[2]", "batch_size=28"]  # 84 frames, so that an epoch is 3 updates
SMALL += ["policy.dropout=0.1", "policy.use_vae=true", "policy.latent_dim=4"]
SMALL += [f"steps={STEPS}", "log_freq=3", "scheduler=cosine", "scheduler.num_warmup_steps=2"]
SCALING = [
    "precision=fp16",
    "device=auto",
    "accelerator.grad_scaler.init_scale=1048576",
    "accelerator.grad_scaler.growth_interval=3",
]
UNFUSED = [*SCALING, "optimizer.fused=false"]
MOMENTUM = ["optimizer=sgd", "optimizer.momentum=0.9", "optimizer.lr=1e-2"]
ACCUMULATION = ["batch_size=14", "accelerator.gradient_accumulation.steps=2"]


@pytest.fixture
def seen(monkeypatch):
    """What each update was given, by run and step: digests of its batches and of the random state before it."""
    real, found = runner.train_step, {}

    def train_step(model, batches, *rest):
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for batch in batches:
            for key in sorted(batch):
                digest.update(np.ascontiguousarray(batch[key].numpy()).tobytes())
        found.setdefault("now", []).append(digest.hexdigest())
        return real(model, batches, *rest)

    monkeypatch.setattr(runner, "train_step", train_step)
    return found


@pytest.fixture
def stop_in(monkeypatch):
    """Sends the signal of a cluster in the middle of the updates named, once each."""
    real, due = Training.update, set()

    def update(self, step):
        real(self, step)
        if step in due:
            due.remove(step)
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Training, "update", update)
    return due.update


@pytest.fixture
def compare(train, seen, stop_in):
    """Trains straight on, and with stops and resumes; asserts that data, randomness and all that is left are equal."""

    def compare(words, stops, on_resume=()):
        straight = train(*SMALL, *words, name="straight")
        expected = seen.pop("now")
        for name, stops_of_one in stops.items():
            stop_in(stops_of_one)
            run = train(*SMALL, *words, name=name)
            for _ in stops_of_one:
                assert json.loads((run / "status.json").read_text())["state"] == "stopped"
                lerobot.run(lerobot.compose("train", [f"resume={run}", *on_resume]))
            assert seen.pop("now") == expected
            assert differences(straight, run) == []
            assert json.loads((run / "status.json").read_text())["state"] == "done"
        return straight, run

    return compare


def test_wherever_it_is_stopped_it_goes_on_as_if_it_was_not(compare):
    """CKPT-07: in the middle of an epoch, at its end (update 3 and 6), in a log window, at its end, and twice."""
    compare([], {"log_window": [1], "epoch_end": [3], "both_twice": [5, 6]})


def test_so_it_does_in_bf16_with_micro_batches(compare):
    compare(["precision=bf16", *ACCUMULATION], {"once": [4]})


def test_so_it_does_in_fp16_while_the_scale_calibrates_and_grows(compare, fp16_on_cpu, rows):
    """CKPT-01: a window with skipped updates is cut by the first stop."""
    straight, _ = compare(SCALING, {"in_a_skip": [1], "twice": [2, 5]})

    assert any("train/loss" not in row for row in rows(straight))


def test_a_bad_update_is_counted_across_a_stop(compare, spoiled_loss, train, stop_in, rows):
    spoiled_loss(call=2, factor=float("nan"))
    words = [*SMALL, "accelerator.skip_nonfinite=true"]
    stop_in([2])
    run = train(*words, name="cut")
    lerobot.run(lerobot.compose("train", [f"resume={run}"]))

    assert [(row["step"], row["train/skipped_steps"]) for row in rows(run)] == [(2, 1), (3, 1), (6, 1), (8, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (0, 2), (2, 0), (2, 1)])
@pytest.mark.parametrize("words", [[], ["precision=bf16"], ACCUMULATION])
def test_the_number_of_workers_plays_no_part(compare, words, before, after):
    """CKPT-07: also another number than before the stop."""
    compare([*words, f"num_workers={before}"], {"mid": [4], "epoch": [3]}, [f"num_workers={after}"])


@pytest.mark.slow
@pytest.mark.parametrize("micro", [[], ACCUMULATION])
@pytest.mark.parametrize("words", [[], ["precision=bf16"], SCALING, UNFUSED, MOMENTUM])
def test_every_stop_of_every_precision_is_exact(compare, fp16_on_cpu, words, micro):
    compare([*words, *micro], {f"at{step}": [step] for step in range(1, STEPS)})


@pytest.mark.slow
def test_a_camera_changes_nothing_about_it(train):
    words = [f"dataset.root={DATA / 'metaworld_push_cam'}", "policy.pretrained_backbone_weights=null", "batch_size=2"]
    straight = train(*words, "steps=4", name="straight")

    assert differences(straight, train(*words, "steps=4", "interrupt_after=2", name="cut")) == []


EVALUATED = ["env=metaworld", "env.episode_length=3", "eval.n_episodes=1", "eval.videos=0", "env_eval_freq=3"]


def test_an_evaluation_leaves_no_trace_in_the_training_and_is_made_up_for(compare, train, rows, caplog):
    """EVAL-01: the policy stayed in evaluation mode. The stop comes with the update that is followed by one."""
    straight, _ = compare(EVALUATED, {"before_one": [3]})
    alone = train(*SMALL, name="alone")

    assert [row["step"] for row in rows(straight) if "eval/success_rate" in row] == [3, 6, 8]
    assert all(torch.equal(weight, weights(alone)[name]) for name, weight in weights(straight).items())


def test_a_stop_in_an_evaluation_leaves_it_to_the_resumed_run(train, rows, monkeypatch, caplog):
    caplog.set_level("INFO")
    real, calls = lerobot.evaluation.roll, []

    def roll(*arguments):
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr("lerobot.evaluation.roll", roll)
    for last in (False, True):
        calls.clear()
        words = [*EVALUATED[:-1], "env_eval_freq=0" if last else "env_eval_freq=3", "steps=4"]
        run = train(*words, name=f"last_{last}")
        assert (run / "checkpoints" / "last").resolve().name == ("000004" if last else "000003")
        assert json.loads((run / "status.json").read_text())["state"] == "stopped"
        assert not any("eval/success_rate" in row for row in rows(run))
        lerobot.run(lerobot.compose("train", [f"resume={run}"]))
        assert [row["step"] for row in rows(run) if "eval/success_rate" in row] == ([4] if last else [3, 4])
        assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert "cut short and not recorded" in caplog.text


def test_an_evaluation_that_is_stopped_again_while_it_is_made_up_for_is_still_owed(train, rows, monkeypatch):
    """HYD-16: two preemptions in a row lost it for good, and the run went on by an update for each."""
    real, calls = lerobot.evaluation.roll, []

    def roll(*arguments):
        calls.append(1)
        if len(calls) <= 2:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr("lerobot.evaluation.roll", roll)
    run = train(*EVALUATED[:-1], "env_eval_freq=3", "steps=4")
    lerobot.run(lerobot.compose("train", [f"resume={run}"]))

    assert json.loads((run / "status.json").read_text())["state"] == "stopped"
    assert (run / "checkpoints" / "last").resolve().name == "000003"
    lerobot.run(lerobot.compose("train", [f"resume={run}"]))
    assert [row["step"] for row in rows(run) if "eval/success_rate" in row] == [3, 4]


def test_a_user_can_prove_it_for_a_config_on_a_machine(tmp_path, caplog):
    caplog.set_level("INFO")
    run = lerobot.run(lerobot.compose("train", [*TINY, "debug=resume_check", "output_dir=run"]))

    assert "resume is exact: 6 updates with a stop after 3 gave the bits of 6 without one" in caplog.text
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert [path.name for path in run.iterdir() if path.is_dir()] == []


def test_so_for_the_config_of_a_run(train, caplog):
    caplog.set_level("INFO")
    run = train("steps=1")
    words = [f"--config_path={run}", "debug=resume_check", "resume_check=2", "output_dir=check"]
    lerobot.run(lerobot.compose("train", words))

    assert "resume is exact: 2 updates with a stop after 1" in caplog.text


def test_what_is_not_exact_is_named_with_how_much(monkeypatch, tmp_path):
    from lerobot import resume

    real = resume.load_checkpoint

    def forgets(folder, optimizer, scaler, settings):
        found = real(folder, optimizer, scaler, settings)
        optimizer.state.clear()
        return found

    monkeypatch.setattr(resume, "load_checkpoint", forgets)
    with pytest.raises(RunError) as error:
        lerobot.run(lerobot.compose("train", [*TINY, "debug=resume_check", "output_dir=run"]))
    said = str(error.value)
    assert said.startswith("resume is not exact: weights differs in ")
    assert "optimizer differs in " in said
    assert "metrics of update 6 differs: train/" in said
    assert "neither is a run without a stop" not in said
    assert (tmp_path / "run" / "straight" / "checkpoints").is_dir()


def test_a_machine_that_never_gives_the_same_bits_is_told_apart(monkeypatch):
    from lerobot.policies.act import ACTPolicy

    real, noise = ACTPolicy.loss, iter(range(1000))
    monkeypatch.setattr(ACTPolicy, "loss", lambda self, batch: (real(self, batch)[0] * (1 + 1e-3 * next(noise)), {}))
    with pytest.raises(RunError, match=r"neither is a run without a stop the same twice .*cudnn_deterministic=true"):
        lerobot.run(lerobot.compose("train", [*TINY, "debug=resume_check", "output_dir=run"]))


def test_a_check_of_a_run_that_goes_on_is_refused(train):
    run = train("steps=1")
    with pytest.raises(ConfigError, match="leave out resume"):
        lerobot.run(lerobot.compose("train", [f"resume={run}", "debug=resume_check"]))
