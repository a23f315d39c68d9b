"""What was asked for is what the card computes in, and loss scaling does on it what it does in the other tests."""

import json
from statistics import median

import pytest
import torch
from runs import DATA, losses, weights

DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}
PRECISIONS = list(DTYPES)
IMAGES = [f"dataset.root={DATA / 'metaworld_push_img'}", "batch_size=4"]
LOW = "accelerator.grad_scaler.init_scale=1024"  # no overflow from the first update on


def leave_out_what_takes_minutes(card, precision, words):
    if not card.is_real and precision == "fp16" and words is IMAGES:
        pytest.skip("float16 convolutions take a processor minutes")


def scaler_state(run):
    return json.loads((run / "checkpoints" / "last" / "training_state" / "scaler_state.json").read_text())


@pytest.mark.parametrize("words", [[], IMAGES], ids=["states", "images"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_forward_pass_computes_in_the_precision_asked_for(train_there, card, precision, words):
    leave_out_what_takes_minutes(card, precision, words)
    run = train_there(f"precision={precision}", "steps=3", *words)

    facts = json.loads((run / "run.json").read_text())
    assert facts["forward_dtype"] == DTYPES[precision]
    assert torch.device(facts["device"]) == card.device
    assert {weight.dtype for weight in weights(run).values() if weight.is_floating_point()} == {torch.float32}


def test_batches_from_workers_arrive_whole(train_there, card, rows):
    """Pinned memory and copies that do not wait give the same losses as plain ones."""
    words = ["steps=8", "batch_size=16"]
    plain = losses(rows(train_there(*words, "num_workers=0", name="plain")))
    workers = losses(rows(train_there(*words, "num_workers=1", name="workers")))

    assert workers == pytest.approx(plain, rel=1e-3)


def test_float16_calibrates_down_from_far_too_high_and_recovers(train_there, rows):
    run = train_there(
        "precision=fp16", f"accelerator.grad_scaler.init_scale={2.0**34}", "steps=60", "log_freq=20", "batch_size=16"
    )

    skips = [row for row in rows(run) if "train/loss" not in row]
    whole = [row for row in rows(run) if "train/loss" in row]
    assert len(skips) >= 10  # from 2**34 to where float16's 65504 is not exceeded
    assert [row["train/scale"] for row in skips] == [2.0 ** (33 - i) for i in range(len(skips))]
    assert whole[-1]["train/skipped_steps"] == len(skips)
    assert whole[-1]["train/consecutive_skips"] == 0
    assert whole[-1]["train/loss"] < whole[0]["train/loss"]
    assert all(weight.isfinite().all() for weight in weights(run).values())


@pytest.mark.parametrize("fused", ["true", "false"])
def test_an_overflow_in_the_middle_skips_one_update(train_there, rows, monkeypatch, fused):
    from lerobot.policies.act import ACTPolicy

    real, calls = ACTPolicy.loss, []

    def loss(self, batch):
        calls.append(1)
        value, parts = real(self, batch)
        return value * (float("inf") if len(calls) == 5 else 1.0), parts

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    run = train_there("precision=fp16", f"optimizer.fused={fused}", LOW, "steps=8")

    assert [(row["step"], row["train/scale"]) for row in rows(run) if "train/loss" not in row] == [(5, 512.0)]
    assert rows(run)[-1]["train/skipped_steps"] == 1


def test_a_resumed_run_goes_on_from_the_stored_scaler(train_there, rows):
    words = ["precision=fp16", LOW, "accelerator.grad_scaler.growth_interval=3", "steps=8"]
    straight = train_there(*words, name="straight")
    cut = train_there(*words, "interrupt_after=5", name="cut")

    assert scaler_state(straight).keys() == {
        "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"
    }  # fmt: skip
    assert scaler_state(cut) == scaler_state(straight)
    scales = [[row["train/scale"] for row in rows(run)] for run in (straight, cut)]
    assert scales[0] == scales[1] == [1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 4096.0, 4096.0, 4096.0]
    assert losses(rows(cut)) == pytest.approx(losses(rows(straight)), rel=1e-2)  # a card sums in any order


def test_half_precision_learns_what_float32_learns(train_there, rows):
    """Over 200 updates the mean loss of the last 50 agrees within 3 %."""
    last = {}
    for precision in PRECISIONS:
        run = train_there(f"precision={precision}", "steps=200", "log_freq=50", "batch_size=32", name=precision)
        last[precision] = rows(run)[-1]["train/loss"]

    assert last["bf16"] == pytest.approx(last["no"], rel=0.03)
    assert last["fp16"] == pytest.approx(last["no"], rel=0.03)


@pytest.mark.parametrize("words", [["policy.use_vae=true"], IMAGES], ids=["states", "images"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_update_does_not_wait_for_the_card(train_there, card, monkeypatch, precision, words):
    from lerobot import runner

    leave_out_what_takes_minutes(card, precision, words)
    real, calls = runner.train_step, []

    def train_step(*arguments):
        calls.append(1)
        if len(calls) < 3:  # the first ones set up kernels and the scaler's tensors
            return real(*arguments)
        with card.no_waiting():
            return real(*arguments)

    monkeypatch.setattr(runner, "train_step", train_step)
    train_there(f"precision={precision}", LOW, "steps=6", *words)

    assert len(calls) == 6


@pytest.mark.parametrize("precision", PRECISIONS)
def test_how_fast_it_trains(train_there, card, rows, measured, precision):
    """No bar, a table: ACT in its published size on states."""
    size = [] if card.is_real else ["policy.dim_model=64", "policy.dim_feedforward=128"]
    batch = card.size(64, 8)
    words = ["policy.chunk_size=100", "policy.use_vae=true", "policy.n_heads=8", "policy.dim_model=512"]
    words += ["policy.dim_feedforward=3200", "policy.n_encoder_layers=4", "policy.optimizer_lr=1e-5", *size]
    steps, every = card.size((100, 20), (4, 1))
    run = train_there(f"precision={precision}", *words, f"batch_size={batch}", f"steps={steps}", f"log_freq={every}")

    later = [row for row in rows(run) if "train/loss" in row][2:]
    measured(
        precision=precision,
        batch=batch,
        samples_per_s=f"{median(row['train/samples_per_s'] for row in later):.0f}",
        update_ms=f"{1000 * median(row['train/step_s'] for row in later):.1f}",
        peak_gb=f"{later[-1]['device/peak_mem_gb']:.2f}",
    )
    assert all(row["train/samples_per_s"] > 0 for row in later)
