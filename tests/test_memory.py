"""Memory: batches are divided without changing the gradient, and running out of it is one sentence."""

import json
import threading
import time

import pytest
import torch
from runs import TINY, losses, weights

import lerobot
from lerobot.accelerator.memory import is_out_of_memory
from lerobot.accelerator.stack import Stack
from lerobot.errors import ConfigError, RunError

SGD = ["policy.dropout=0", "optimizer=sgd", "optimizer.lr=0.1", "scheduler=cosine", "steps=3"]
DIVISIONS = {
    "accumulated": ["batch_size=2", "accelerator.gradient_accumulation.steps=4"],
    "divided": ["batch_size=8", "accelerator.micro_batch=3"],
    "both": ["batch_size=4", "accelerator.micro_batch=3", "accelerator.gradient_accumulation.steps=2"],
    "by one": ["batch_size=8", "accelerator.micro_batch=1"],
}
FP16 = ["precision=fp16", "device=auto", "accelerator.grad_scaler.init_scale=1024"]


def facts(run):
    return json.loads((run / "run.json").read_text())


@pytest.fixture
def room_for(monkeypatch):
    """A device on which `rows` samples fit into a forward pass; returns the sizes that were tried."""
    from lerobot.policies.act import ACTPolicy

    def limit(rows):
        real, tried = ACTPolicy.loss, []

        def loss(self, batch, *counts):
            tried.append(len(batch["action"]))
            if tried[-1] > rows:
                raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 MiB.")
            return real(self, batch, *counts)

        monkeypatch.setattr(ACTPolicy, "loss", loss)
        monkeypatch.setattr(Stack, "can_run_out", True)
        monkeypatch.setattr(Stack, "forget_peak", lambda self: None)
        return tried

    return limit


def assert_equal_runs(run, other, read):
    assert losses(read(run)) == losses(read(other))
    for name, weight in weights(other).items():
        torch.testing.assert_close(weights(run)[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("division", DIVISIONS.values(), ids=list(DIVISIONS))
def test_a_divided_batch_trains_as_the_whole_one(train, rows, division):
    """DIST-02: chunks are padded at the ends of episodes, and a mean of means is not the mean."""
    whole = train(*SGD, "batch_size=8", name="whole")
    cut = train(*SGD, *division, name="cut")

    assert [row["train/lr"] for row in rows(cut)] == [row["train/lr"] for row in rows(whole)]
    for metric in ("train/loss", "train/l1_loss", "train/grad_norm"):
        assert [row[metric] for row in rows(cut)] == pytest.approx([row[metric] for row in rows(whole)], rel=1e-5)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(cut)[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("words", [["accelerator.skip_nonfinite=true"], FP16], ids=["no", "fp16"])
def test_auto_finds_what_fits_and_the_run_is_the_one_in_which_it_was_typed(
    train, rows, room_for, fp16_on_cpu, caplog, words
):
    caplog.set_level("INFO")
    tried = room_for(3)
    words = [*words, "policy.dropout=0.1", "policy.use_vae=true", "steps=3"]
    found = train(*words, "accelerator.micro_batch=auto", name="found")

    assert tried[:2] == [8, 4]  # each fails at once
    assert set(tried[2:]) == {2}
    assert len(tried[2:]) == (2 + 3) * 4  # two probes and three updates of four micro-batches
    assert caplog.text.count("accelerator.micro_batch=auto: 2 samples at once fit, batch_size=8") == 1
    assert facts(found)["micro_batch"] == 2
    assert_equal_runs(found, train(*words, "accelerator.micro_batch=2", name="typed"), rows)


def test_auto_asks_again_on_resume_and_leaves_what_was_restored(train, rows, room_for):
    runs = {}
    for name in ("found", "typed"):
        runs[name] = train("policy.dropout=0.1", "accelerator.micro_batch=auto", "steps=2", name=name)
    tried = room_for(5)
    for name, word in (("found", "auto"), ("typed", 4)):
        words = [f"resume={runs[name]}", "steps=4", f"accelerator.micro_batch={word}"]
        lerobot.run(lerobot.compose("train", words))

    assert tried[:3] == [8, 4, 4]
    assert [facts(run)["micro_batch"] for run in runs.values()] == [4, 4]
    assert_equal_runs(runs["found"], runs["typed"], rows)


def test_an_update_that_runs_out_in_the_optimizer_is_undone_too(train, rows, room_for, fp16_on_cpu, monkeypatch):
    """The scaler had unscaled, the next update then found it half-way."""
    room_for(8)
    real, calls = torch.optim.AdamW.step, []

    def step(self, *args, **kwargs):
        calls.append(1)
        real(self, *args, **kwargs)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    found = train(*FP16, "accelerator.micro_batch=auto", "steps=2", name="found")

    assert facts(found)["micro_batch"] == 4
    assert_equal_runs(found, train(*FP16, "accelerator.micro_batch=4", "steps=2", name="typed"), rows)


def test_whole_batches_are_kept_where_they_fit_and_where_nothing_can_be_found_out(train, rows, room_for, caplog):
    caplog.set_level("INFO")
    plain = train("steps=2", name="plain")
    on_cpu = train("steps=2", "accelerator.micro_batch=auto", name="cpu")
    assert "has nothing to find on cpu" in caplog.text
    room_for(8)
    probed = train("steps=2", "accelerator.micro_batch=auto", name="probed")

    assert "whole batches fit" in caplog.text
    for run in (on_cpu, probed):
        assert facts(run)["micro_batch"] == 8
        assert_equal_runs(run, plain, rows)


@pytest.mark.parametrize("word", ["auto", "1"])
def test_where_one_sample_does_not_fit_the_sentence_names_what_does_less(train, room_for, word):
    room_for(0)
    with pytest.raises(RunError) as error:
        train(f"accelerator.micro_batch={word}")

    said = str(error.value)
    assert "in micro-batches of 1" in said
    assert "type precision=bf16 or policy.chunk_size=<less> in a new run or policy.dim_model=<less>" in said
    assert "micro_batch=" not in said.partition("type")[2]


def test_running_out_of_memory_is_one_sentence_and_the_checkpoint_stays(monkeypatch, capsys, tmp_path):
    """The traceback of an allocator says neither how large anything was nor what to type."""
    from lerobot.command import main
    from lerobot.policies.act import ACTPolicy
    from lerobot.train import work

    real, calls = ACTPolicy.loss, []

    def loss(self, batch, *counts):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 17 GB, max allowed: 18 GB)")
        return real(self, batch, *counts)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    monkeypatch.setattr(Stack, "can_run_out", True)
    run = tmp_path / "a run"
    monkeypatch.setattr("sys.argv", ["lerobot-train", *TINY, "save_freq=2", f"output_dir='{run}'"])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    assert left.value.code == 1
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    said = line.removeprefix("error: ")
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"], status["error"]) == ("failed", 4, said)
    assert said.startswith("out of memory on cpu")
    for part in (
        "GiB at most",
        "batch_size=8 in micro-batches of 8",
        "observation.state 4",
        "action 8x4",
        "parameters",
    ):
        assert part in said
    for remedy in ("accelerator.micro_batch=auto", "precision=bf16", "batch_size=4 in a new run"):
        assert remedy in said
    assert "checkpoint 000004 stays as it is" in said
    assert (run / "checkpoints" / "last").resolve().name == "000004"


@pytest.mark.slow
def test_a_job_that_ran_out_leaves_its_memory_to_the_next_one_of_the_sweep(monkeypatch):
    import gc
    import weakref

    from lerobot.command import main
    from lerobot.policies.act import ACTPolicy
    from lerobot.train import work

    real, policies, left_over = ACTPolicy.loss, [], []

    def loss(self, batch, *counts):
        if self not in (policy() for policy in policies):
            gc.collect()
            left_over.append([policy() for policy in policies if policy() is not None])
            policies.append(weakref.ref(self))
        if len(policies) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch, *counts)

    monkeypatch.setattr(ACTPolicy, "loss", loss)
    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *TINY, "steps=1", "seed=1,2", "output_dir=sweep"])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    assert left.value.code == 1
    assert left_over == [[], []]


def test_data_that_do_not_fit_are_told_from_a_network_that_does_not(train, monkeypatch):
    from lerobot.data.reader import LeRobotDataset

    def read(self, indices):
        raise MemoryError("Unable to allocate 8.00 GiB for an array")

    monkeypatch.setattr(LeRobotDataset, "__getitems__", read)
    with pytest.raises(
        RunError, match=r"type num_workers=<fewer> or prefetch_factor=<fewer> or accelerator\.micro_batch=4"
    ):
        train()


def test_running_out_in_an_evaluation_names_the_keys_of_evaluations(train, monkeypatch):
    from lerobot.policies.act import ACTPolicy

    def predict(self, observation):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(ACTPolicy, "predict_action_chunk", predict)
    env = ["env=metaworld", "env.task=push-v3", "env.episode_length=5", "eval.n_episodes=2", "eval.videos=0"]
    with pytest.raises(RunError) as error:
        train("checkpoint.background=false", *env, "steps=1")

    said = str(error.value)
    assert "in an evaluation" in said
    assert "type eval.batch_size=1 or precision=bf16 or" in said
    assert "checkpoint 000001 stays as it is" in said


def test_running_out_names_the_checkpoint_that_was_still_being_written(train, monkeypatch):
    from lerobot.checkpoint import writer
    from lerobot.evaluation import SimEvaluator

    real, begun = writer.write_checkpoint, threading.Event()

    def slow(*words):
        begun.wait(10)
        time.sleep(0.2)
        return real(*words)

    def evaluate(self, *_):
        begun.set()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(writer, "write_checkpoint", slow)
    monkeypatch.setattr(SimEvaluator, "evaluate", evaluate)
    with pytest.raises(RunError, match="checkpoint 000001 stays as it is"):
        train("steps=1", "env=metaworld")


def test_where_the_network_itself_has_no_room_the_sentence_has_its_sizes(train):
    """No smaller batch helps there. No machine has room for these."""
    with pytest.raises(
        RunError, match=r"policy\.dim_feedforward=40000000000.*: type policy\.dim_feedforward=<less>"
    ) as error:
        train("policy.dim_feedforward=40000000000")
    assert "micro_batch" not in str(error.value)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.54 GB)"), True),
        (RuntimeError("Invalid buffer size: 20.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (MemoryError("Unable to allocate 8.00 GiB"), True),
        (RuntimeError("the weights are not finite"), False),
        (RunError("out of memory on cpu"), False),
        (ConfigError("out of memory"), False),
    ],
    ids=str,
)
def test_what_counts_as_out_of_memory(error, is_one):
    assert is_out_of_memory(error) is is_one


def test_the_processor_says_so_in_words_that_are_known():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**58, dtype=torch.uint8)

    assert is_out_of_memory(error.value)


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "True", "half"])
def test_a_senseless_micro_batch_is_refused(value):
    with pytest.raises(ConfigError, match=rf"accelerator.micro_batch={value}: type 1 or more, auto, or null"):
        lerobot.compose("train", [*TINY, f"accelerator.micro_batch={value}"])
