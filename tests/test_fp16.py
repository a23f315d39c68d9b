"""Loss scaling with the real code, on the processor: what a card would do."""

import json

import pytest
import torch
from runs import losses, weights

FP16 = ["precision=fp16", "device=auto"]
LOW = "accelerator.grad_scaler.init_scale=1024"  # no overflow from the first update on


@pytest.fixture(autouse=True)
def _hook(fp16_on_cpu):
    pass


def state(run):
    return json.loads((run / "checkpoints" / "last" / "training_state" / "scaler_state.json").read_text())


def test_the_forward_pass_computes_in_float16_and_the_weights_stay_float32(train, rows):
    """PREC-02, PREC-03: fp16 was accepted with nothing behind it."""
    run = train(*FP16, LOW, "steps=3")

    facts = json.loads((run / "run.json").read_text())
    assert (facts["forward_dtype"], facts["scaler"]) == ("float16", "GradScaler")
    assert {weight.dtype for weight in weights(run).values()} == {torch.float32}
    assert [row["train/scale"] for row in rows(run)] == [1024.0] * 3


def test_a_scale_that_starts_too_high_calibrates_down_and_each_skip_has_its_row(train, rows, caplog):
    caplog.set_level("INFO")
    run = train(*FP16, f"accelerator.grad_scaler.init_scale={2.0**34}", "steps=200", "log_freq=200")

    history = rows(run)
    skips, final = history[:-1], history[-1]
    assert len(skips) >= 10  # from 2**34 to where float16's 65504 is not exceeded
    assert [row["step"] for row in skips] == sorted({row["step"] for row in skips})
    assert [row["train/scale"] for row in skips] == [2.0 ** (33 - i) for i in range(len(skips))]
    assert [row["train/skipped_steps"] for row in skips] == list(range(1, len(skips) + 1))
    assert final["train/skipped_steps"] == len(skips)
    assert (
        caplog.text.count("is skipped: its gradient is not finite (model.") == 3
    )  # the first ones, each with its place
    assert final["train/consecutive_skips"] == 0
    assert final["train/grad_norm"] is not None and 0 < final["train/grad_norm"] < 1e3


@pytest.mark.parametrize("fused", ["true", "false"])
def test_an_overflow_skips_one_update_and_halves_the_scale(train, rows, spoiled_loss, fused):
    """PREC-04: with a fused optimizer the skip was not noticed."""
    spoiled_loss(call=3, factor=float("inf"))
    run = train(*FP16, f"optimizer.fused={fused}", LOW, "steps=4")

    history = rows(run)
    skip = [row for row in history if "train/loss" not in row]
    assert [(row["step"], row["train/scale"]) for row in skip] == [(3, 512.0)]
    whole = [row for row in history if "train/loss" in row]
    assert [row["train/skipped_steps"] for row in whole] == [0, 0, 1, 1]
    assert whole[2]["train/grad_norm"] is None  # every update of this window was skipped


def test_the_scaler_grows_as_it_was_told(train, rows):
    """PREC-03: the settings reach the scaler."""
    run = train(*FP16, LOW, "accelerator.grad_scaler.growth_interval=2", "steps=4")

    assert [row["train/scale"] for row in rows(run)] == [1024.0, 2048.0, 2048.0, 4096.0]


def test_the_scaler_state_is_five_numbers_and_a_resumed_run_goes_on_from_them(train, rows):
    """CKPT-01: every resume calibrated anew."""
    words = [
        *FP16,
        "accelerator.grad_scaler.init_scale=1048576",
        "accelerator.grad_scaler.growth_interval=3",
        "steps=8",
    ]
    straight = train(*words, name="straight")
    cut = train(*words, "interrupt_after=5", name="cut")

    assert state(straight).keys() == {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
    assert state(cut) == state(straight)
    assert losses(rows(cut)) == losses(rows(straight))
    scales = [[row["train/scale"] for row in rows(run) if "train/loss" in row] for run in (straight, cut)]
    assert scales[0] == scales[1]


def test_the_logged_norm_is_unscaled(train, rows):
    """PREC-10: charts showed norms 65536 times too big."""
    plain = rows(train("steps=1", name="plain"))[0]["train/grad_norm"]
    scaled = rows(train(*FP16, LOW, "steps=1", name="scaled"))[0]["train/grad_norm"]

    assert scaled == pytest.approx(plain, rel=0.02)  # not 1024 times it


def test_the_learning_rate_follows_the_step_whatever_was_skipped(train, rows):
    """PREC-06: a schedule ran ahead of the updates."""
    words = ["scheduler=cosine", "steps=10"]
    plain = rows(train(*words, name="plain"))
    skipping = rows(train(*words, *FP16, f"accelerator.grad_scaler.init_scale={2.0**20}", name="skipping"))

    assert any("train/loss" not in row for row in skipping)
    assert [row["train/lr"] for row in plain] == [row["train/lr"] for row in skipping if "train/lr" in row]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_bad_gradient_is_skipped_in_other_precisions_if_asked(train, rows, spoiled_loss, precision):
    spoiled_loss(call=2, factor=float("nan"))
    run = train(f"precision={precision}", "accelerator.skip_nonfinite=true", "steps=3")

    assert all(weight.isfinite().all() for weight in weights(run).values())
    assert [row["step"] for row in rows(run) if "train/loss" not in row] == [2]
    assert "train/scale" not in rows(run)[-1]


@pytest.mark.parametrize("words", [FP16, ["precision=no", "accelerator.skip_nonfinite=true"]])
def test_a_run_in_which_no_update_lands_any_more_stops_and_names_the_place(train, monkeypatch, tmp_path, words):
    """PREC-07: torch halves the scale for ever."""
    from lerobot.errors import RunError
    from lerobot.policies.act import ACT

    real, calls = ACT.forward, []

    def forward(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            self.action_head.weight.data[0, 0] = float("nan")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(ACT, "forward", forward)
    with pytest.raises(RunError) as error:
        train(*words, "accelerator.grad_scaler.max_consecutive_skips=10", "steps=40", "save_freq=2")

    assert "action_head" in str(error.value)
    assert len(calls) < 5 + 10 + 1  # and one forward pass to find the module
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "action_head" in status["error"]
    step = (tmp_path / "run" / "checkpoints" / "last").resolve().name
    assert int(step) < 15


def test_a_scale_below_its_floor_stops_the_run(train):
    from lerobot.errors import RunError

    with pytest.raises(RunError, match="loss scale"):
        train(
            *FP16,
            f"accelerator.grad_scaler.init_scale={2.0**30}",
            f"accelerator.grad_scaler.min_scale={2.0**28}",
            "steps=20",
        )


def test_an_overflow_in_one_micro_batch_is_one_skip_of_its_update(train, rows, spoiled_loss):
    """PREC-05: the flag kept an old value between micro-batches."""
    calls = spoiled_loss(call=10, factor=float("inf"))  # the second of four in update 3
    run = train(*FP16, LOW, "accelerator.gradient_accumulation.steps=4", "batch_size=2", "steps=4")

    assert len(calls) == 16
    assert [row["step"] for row in rows(run) if "train/loss" not in row] == [3]
    assert rows(run)[-1]["train/skipped_steps"] == 1


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_constant_dimensions_train_in_float16_and_come_back_exactly(train, rows, tmp_path, mode):
    """PREC-13: 0/0 in the statistics; the usual guard of 1e-8 is 0 in float16."""
    import numpy as np

    from lerobot.checkpoint import load_policy
    from lerobot.data.writer import DatasetWriter

    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
    }
    random = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "constant", fps=10, features=features) as writer:
        for _ in range(3):
            state, action = random.normal(size=(20, 3)), random.normal(size=(20, 2))
            state[:, 1], action[:, 0] = 0.3, -0.7
            writer.add_episode({"observation.state": state.astype("f4"), "action": action.astype("f4")}, "hold")
    modes = f"policy.normalization_mapping={{VISUAL: {mode}, STATE: {mode}, ENV: {mode}, ACTION: {mode}}}"
    run = train(*FP16, LOW, f"dataset.root={tmp_path / 'constant'}", modes, "steps=3")

    assert all(row["train/loss"] is not None for row in rows(run) if "train/loss" in row)
    chunk = load_policy(run).predict_action_chunk({"observation.state": torch.tensor([[0.1, 0.3, -2.0]])})
    assert chunk.isfinite().all()
    torch.testing.assert_close(chunk[..., 0], torch.full((1, 8), -0.7), rtol=0, atol=0)
