"""A run on one process and on many is the same run. The ranks are forks of this process, joined by gloo."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gloo import LostError, on_ranks, train_on
from runs import DATA, TINY, losses, weights
from safetensors.torch import load_file

import lerobot
from lerobot.accelerator import parallel
from lerobot.accelerator.parallel_config import ParallelismConfig
from lerobot.policies.act import ACTPolicy

DDP = (2, ["batch_size=4"])
FSDP2 = (2, ["batch_size=4", "parallelism=fsdp"])
HSDP = (4, ["batch_size=2", "parallelism=fsdp", "parallelism.dp_replicate=2"])
SLOW = pytest.mark.slow
LAYOUTS = pytest.mark.parametrize(
    ("number", "words"), [DDP, pytest.param(*FSDP2, marks=SLOW), HSDP], ids=["ddp", "fsdp2", "hsdp"]
)
SAME = [*TINY, "policy.dropout=0"]
FP16 = ["precision=fp16", "device=auto"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of 8 samples an update in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return lerobot.run(lerobot.compose("train", [*SAME, "scheduler=cosine", f"output_dir={folder / 'run'}"]))


def column(rows, key):
    return [row[key] for row in rows if key in row]


def facts(run):
    return json.loads((Path(run) / "run.json").read_text())


def state(run, name):
    return json.loads((Path(run) / "checkpoints" / "last" / "training_state" / name).read_text())


@SLOW
def test_a_build_of_pytorch_for_one_process_trains_in_one_and_refuses_several(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys, types
import accelerate, torch
import torch._dynamo, torch.distributed
without = types.ModuleType("torch.distributed")
without.is_available = lambda: False
torch.distributed = sys.modules["torch.distributed"] = without
import lerobot
words = {[*TINY, "steps=1", "accelerator.skip_nonfinite=true"]!r}
lerobot.run(lerobot.compose("train", [*words, "output_dir={tmp_path / "run"}"]))
try:
    lerobot.run(lerobot.compose("train", [*words, "parallelism.nproc=2", "output_dir={tmp_path / "several"}"]))
except lerobot.errors.ConfigError as error:
    print(error)
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)

    assert "this build of PyTorch has no torch.distributed" in done.stdout, done.stderr
    assert state(tmp_path / "run", "training_step.json")["step"] == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [pytest.param(*DDP, marks=SLOW), (4, ["batch_size=2"]), FSDP2, pytest.param(*HSDP, marks=SLOW)],
    ids=["ddp2", "ddp4", "fsdp2", "hsdp4"],
)
def test_learning_rates_and_losses_do_not_depend_on_the_processes_dist_01(alone, rows, tmp_path, number, words):
    """DIST-01: the schedule ran as many times too fast as there were processes."""
    run = train_on(number, [*SAME, "scheduler=cosine", f"output_dir={tmp_path / 'run'}", *words])

    assert column(rows(run), "train/lr") == column(rows(alone), "train/lr")
    assert column(rows(run), "train/loss") == pytest.approx(column(rows(alone), "train/loss"), abs=1e-5)
    assert column(rows(run), "train/grad_norm") == pytest.approx(column(rows(alone), "train/grad_norm"), rel=1e-5)
    assert facts(run)["world_size"] == number
    kinds = [
        sorted(p.name for p in (folder / "checkpoints" / "last" / "pretrained_model").iterdir())
        for folder in (run, alone)
    ]
    assert kinds[0] == kinds[1]
    moments = [
        load_file(f / "checkpoints" / "last" / "training_state" / "optimizer_state.safetensors") for f in (run, alone)
    ]
    assert {k: v.shape for k, v in moments[0].items()} == {k: v.shape for k, v in moments[1].items()}


@pytest.mark.parametrize("words", [[], pytest.param(["parallelism=fsdp"], marks=SLOW)], ids=["ddp", "fsdp2"])
def test_micro_batches_are_no_updates_dist_02(alone, rows, tmp_path, words):
    """DIST-02: the schedule moved with every micro-batch, and a mean of means is not the mean."""
    accumulation = ["batch_size=2", "accelerator.gradient_accumulation.steps=2"]
    run = train_on(2, [*SAME, "scheduler=cosine", f"output_dir={tmp_path / 'run'}", *accumulation, *words])

    assert column(rows(run), "train/lr") == column(rows(alone), "train/lr")
    assert column(rows(run), "train/loss") == pytest.approx(column(rows(alone), "train/loss"), abs=1e-5)
    assert len(rows(run)) == 6


class Judge:
    """Takes its time where this is not the first rank."""

    def __init__(self, seconds):
        self.seconds = seconds

    def evaluate(self, *_):
        time.sleep(self.seconds)
        self.seconds = 0

    def finish(self, *_):
        pass


@pytest.mark.parametrize(
    ("timeout_s", "sleeps_s", "words"),
    [
        pytest.param(1.5, 3.5, [], marks=SLOW),
        pytest.param(1.5, 3.5, ["parallelism=fsdp"], marks=SLOW),
        pytest.param(10, 25, [], marks=SLOW),
    ],
)
def test_a_slow_evaluation_trips_no_collective_dist_03(rows, monkeypatch, tmp_path, timeout_s, sleeps_s, words):
    """DIST-03: the others waited in a collective until its watchdog ended the job."""

    def make(_config, _policy, _dataset, _run_dir, world):
        return Judge(sleeps_s if world.rank == 1 else 0)

    monkeypatch.setattr("lerobot.runner.make_evaluator", make)
    begun = time.monotonic()
    words = [*words, "batch_size=4", "steps=3", "env_eval_freq=2", f"parallelism.timeout_s={timeout_s}"]
    run = train_on(2, [*SAME, f"output_dir={tmp_path / 'run'}", *words])

    assert time.monotonic() - begun > sleeps_s
    assert len(rows(run)) == 3


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=SLOW), "fp16"])
def test_shards_and_their_moments_are_float32_whatever_the_precision_dist_04(fp16_on_cpu, tmp_path, precision):
    """DIST-04: the master copy was missing, and nothing said so."""
    words = ["parallelism=fsdp", "batch_size=4", f"precision={precision}", "device=auto", "steps=2"]
    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", *words])

    def job(_rank):
        from lerobot.runner import Training

        seen, real = [], Training.save

        def save(self, step):
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            moments = [v for entry in self.optimizer.state.values() for v in entry.values()]
            grads = [p.grad for p in parameters]
            seen.append([sorted({(type(t).__name__, str(t.dtype)) for t in ts}) for ts in (parameters, grads, moments)])
            real(self, step)

        Training.save = save
        lerobot.run(config)
        return seen[-1]

    for parameters, grads, moments in on_ranks(2, job):
        assert parameters == grads == [("DTensor", "torch.float32")]
        assert {dtype for _, dtype in moments} == {"torch.float32"}
    assert facts(tmp_path / "run")["forward_dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.float32}


def freeze_and_leave_out(_rank):
    """A policy with frozen parameters and one that its loss does not use."""
    real = ACTPolicy.__init__

    def init(self, *args):
        real(self, *args)
        self.model.action_head.requires_grad_(False)
        self.spare = torch.nn.Linear(3, 3)

    ACTPolicy.__init__ = init


@pytest.fixture
def spare(monkeypatch):
    monkeypatch.setattr(ACTPolicy, "__init__", ACTPolicy.__init__)


def test_parameters_without_a_gradient_are_looked_for_if_asked_dist_05(rows, capfd, tmp_path, spare):
    """DIST-05: a warning in every update."""
    words = ["batch_size=4", "steps=3", "parallelism.find_unused_parameters=true", "save_checkpoint=false"]
    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", *words])

    def job(rank):
        freeze_and_leave_out(rank)
        lerobot.run(config)

    on_ranks(2, job)

    assert len(rows(tmp_path / "run")) == 3
    assert capfd.readouterr().err.count("find_unused_parameters") <= 2


def test_parameters_without_a_gradient_are_named_dist_05(tmp_path, spare):
    """DIST-05: the second update raised, with the numbers of parameters and not their names."""
    config = lerobot.compose(
        "train", [*TINY, f"output_dir={tmp_path / 'run'}", "batch_size=4", "save_checkpoint=false"]
    )

    def job(rank):
        freeze_and_leave_out(rank)
        lerobot.run(config)

    with pytest.raises(
        LostError, match=r"2 parameters get no gradient \(spare.weight, spare.bias\).*parallelism.find_unused"
    ):
        on_ranks(2, job)

    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


@LAYOUTS
def test_an_overflow_on_one_rank_is_skipped_by_all_dist_06(fp16_on_cpu, tmp_path, number, words):
    """DIST-06: ranks that see their own shard alone disagree, and their scales drift apart."""
    low = "accelerator.grad_scaler.init_scale=1024"
    config = lerobot.compose("train", [*TINY, *FP16, low, "steps=3", f"output_dir={tmp_path / 'run'}", *words])

    def job(rank):
        from lerobot.accelerator.shards import gathered
        from lerobot.runner import Training

        real, calls, seen = ACTPolicy.loss, [], []

        def loss(self, batch, *counts):
            calls.append(1)
            value, parts = real(self, batch, *counts)
            return value * (float("inf") if rank == 1 and len(calls) == 2 else 1.0), parts

        update = Training.update

        def watched(self, step):
            before = [gathered(p.detach()).clone() for p in self.policy.parameters()]
            update(self, step)
            after = [gathered(p.detach()).clone() for p in self.policy.parameters()]
            same = all(bool((a == b).all()) for a, b in zip(before, after, strict=True))
            seen.append((same, self.stack.scaler.get_scale(), float(sum(a.double().sum() for a in after))))

        ACTPolicy.loss, Training.update = loss, watched
        lerobot.run(config)
        return seen

    answers = on_ranks(number, job)

    assert [(same, scale) for same, scale, _ in answers[0]] == [(False, 1024.0), (True, 512.0), (False, 512.0)]
    assert all(answer == answers[0] for answer in answers)
    assert state(tmp_path / "run", "scaler_state.json")["scale"] == 512.0
    assert state(tmp_path / "run", "training_step.json")["skipped_steps"] == 1


@SLOW
def test_scaler_states_are_identical_whatever_the_topology_dist_08(fp16_on_cpu, tmp_path):
    """DIST-08: a sharded run kept its scaler in another way, or lost it."""
    words = [
        *SAME,
        *FP16,
        f"accelerator.grad_scaler.init_scale={2.0**18}",
        "accelerator.grad_scaler.growth_interval=2",
        "steps=5",
    ]
    layouts = {"alone": (1, ["batch_size=8"]), "ddp": DDP, "fsdp2": FSDP2}
    runs = {name: train_on(n, [*words, *w, f"output_dir={tmp_path / name}"]) for name, (n, w) in layouts.items()}

    states = [state(run, "scaler_state.json") for run in runs.values()]
    assert states[0] == states[1] == states[2]
    assert state(runs["ddp"], "training_step.json")["skipped_steps"] > 0


def test_ranks_read_disjoint_samples_that_cover_the_data_dist_07(monkeypatch, tmp_path):
    """DIST-07: one rank drew more random numbers than the others, and from then on they read the same samples."""
    words = ["dataset.episodes=[2]", "batch_size=14", "steps=6"]  # 84 frames, so that an epoch is 3 updates
    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", *words, "save_checkpoint=false"])

    def job(rank):
        from lerobot.data.reader import LeRobotDataset
        from lerobot.runner import Training

        read, real, update = [], LeRobotDataset.__getitems__, Training.update

        def getitems(self, indices):
            read.append(list(indices))
            return real(self, indices)

        def wasteful(self, step):
            if rank == 0:
                [(random.random(), np.random.rand(), torch.rand(1)) for _ in range(1000)]
            update(self, step)

        LeRobotDataset.__getitems__, Training.update = getitems, wasteful
        lerobot.run(config)
        return read[:6]

    ranks = on_ranks(2, job)
    for epoch in (0, 3):
        first, second = ([i for batch in read[epoch : epoch + 3] for i in batch] for read in ranks)
        assert not set(first) & set(second)
        assert sorted(first + second) == list(range(84))


def test_noise_differs_between_ranks_and_is_the_same_again(tmp_path):
    def job(rank):
        from lerobot.seed import seed_step

        seed_step(7, 3, rank)
        return torch.rand(4).tolist()

    first, again = on_ranks(2, job), on_ranks(2, job)
    assert first == again
    assert first[0] != first[1]


SPLIT = {1: ["batch_size=8"], 2: ["batch_size=4"], 4: ["batch_size=2"]}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(2, 1, []), pytest.param(2, 4, [], marks=SLOW), pytest.param(2, 1, ["parallelism=fsdp"], marks=SLOW), (1, 2, [])],
    ids=["2-1", "2-4", "fsdp2-1", "1-2"],
)
def test_a_run_goes_on_with_other_processes_dist_08(alone, rows, caplog, tmp_path, before, after, words):
    """DIST-08: files of other ranks were missing, and positions were in updates."""
    caplog.set_level("INFO")
    base = [*SAME, "scheduler=cosine", f"output_dir={tmp_path / 'run'}"]

    def stop(_rank):
        from lerobot.runner import Training

        real = Training.update

        def update(self, step):
            real(self, step)
            if step == 2 and self.world.is_first:
                signal.raise_signal(signal.SIGTERM)

        Training.update = update

    from lerobot.runner import Training

    real = Training.update
    try:
        run = train_on(before, [*base, *words, *SPLIT[before]], stop)
    finally:
        Training.update = real
    stopped = state(run, "training_step.json")
    assert stopped["num_processes"] == before
    assert stopped["samples"] == 8 * stopped["step"] < 48
    back = ["parallelism.dp_shard=1", "parallelism.dp_replicate=null"] if words else []
    environment = os.environ.pop("WORLD_SIZE", None)
    assert environment is None
    config = resumed(run, after, [*SPLIT[after], *back])
    if after == 1:
        lerobot.run(config)
        assert f"the run goes on in 1 processes, it was in {before}" in caplog.text
    else:
        on_ranks(after, lambda _rank: lerobot.run(config))

    assert [row["step"] for row in rows(run)] == list(range(1, 7))
    assert column(rows(run), "train/loss") == pytest.approx(column(rows(alone), "train/loss"), abs=1e-5)
    assert column(rows(run), "train/lr") == column(rows(alone), "train/lr")
    files = {p.name for p in (run / "checkpoints" / "last" / "training_state").glob("rng_state*")}
    assert len(files) == after


def resumed(run, number, words):
    """The config that each of `number` ranks gets from the first."""
    os.environ["WORLD_SIZE"] = str(number)
    try:
        return lerobot.compose("train", [f"resume={run}", *words])
    finally:
        del os.environ["WORLD_SIZE"]


@SLOW
@pytest.mark.parametrize("words", [[], ["parallelism=fsdp"]], ids=["ddp", "fsdp2"])
def test_resuming_with_the_same_processes_is_exact(rows, tmp_path, words):
    """In the middle of a window of metrics, of which each rank brings its part."""
    words = [
        *words,
        "batch_size=4",
        "policy.use_vae=true",
        "policy.dropout=0.1",
        "log_freq=4",
        "steps=10",
        "save_freq=5",
    ]
    straight = train_on(2, [*TINY, *words, f"output_dir={tmp_path / 'straight'}"])
    cut = train_on(2, [*TINY, *words, "interrupt_after=6", f"output_dir={tmp_path / 'cut'}"])

    for name, value in weights(straight).items():
        assert bool((weights(cut)[name] == value).all())
    told = [
        [{k: v for k, v in row.items() if not k.endswith(("_s", "_gb"))} for row in rows(run)]
        for run in (straight, cut)
    ]
    assert told[0] == told[1]


def test_a_signal_to_one_rank_stops_all_after_the_same_update(rows, tmp_path):
    config = lerobot.compose(
        "train", [*TINY, f"output_dir={tmp_path / 'run'}", "steps=500", "batch_size=4", "log_freq=0"]
    )

    def job(rank):
        from lerobot.runner import Training

        real, last = Training.update, []

        def update(self, step):
            real(self, step)
            last.append(step)
            if rank == 1 and step == 5:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)  # as the launcher sends it too

        Training.update = update
        lerobot.run(config)
        return last[-1]

    first, second = on_ranks(2, job)
    assert first == second <= 7
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"
    assert state(tmp_path / "run", "training_step.json")["step"] == first


def test_an_error_on_one_rank_ends_all_with_its_words(tmp_path):
    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", "batch_size=4"])

    def job(rank):
        real, calls = ACTPolicy.loss, []

        def loss(self, batch, *counts):
            calls.append(1)
            if rank == 1 and len(calls) == 3:
                raise ZeroDivisionError("a bug of one rank")
            return real(self, batch, *counts)

        ACTPolicy.loss = loss
        lerobot.run(config)

    begun = time.monotonic()
    with pytest.raises(LostError, match="process 1 failed: ZeroDivisionError: a bug of one rank"):
        on_ranks(2, job)

    assert time.monotonic() - begun < 30
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "process 1 failed: ZeroDivisionError: a bug of one rank")


@pytest.mark.parametrize(
    ("words", "number", "said"),
    [
        (
            ["parallelism=single"],
            2,
            "is for one process and there are 2 processes: type parallelism=auto, or parallelism.nproc=null",
        ),
        (["parallelism.dp_shard=4"], 2, "dp_shard=4 is for 4 processes or a multiple and there are 2 processes"),
        (
            ["parallelism=fsdp"],
            1,
            "dp_shard=-1 is for several processes and there is 1 process: type parallelism.nproc=2",
        ),
        (["parallelism=ddp"], 1, "dp_replicate=-1 parallelism.dp_shard=1 is for several processes"),
        (
            ["parallelism=fsdp", "parallelism.dp_replicate=3"],
            4,
            "dp_replicate=3 parallelism.dp_shard=-1 is for 6 processes or more and there are 4",
        ),
        (["parallelism=fsdp", "parallelism.dp_replicate=2"], 2, "is for 4 processes or more and there are 2"),
    ],
)
def test_a_world_that_does_not_fit_is_refused_with_the_numbers(tmp_path, words, number, said):
    from lerobot.errors import ConfigError

    parts = lerobot.compose("train", [*TINY, *words]).parallelism
    with pytest.raises(ConfigError, match=said):
        parts.shape(number)


@pytest.mark.parametrize("name", ["ModuleList", "Embedding", "LayerNorm", "Nope"])
def test_units_are_modules_that_compute_and_hold_others(tmp_path, name):
    """What was offered ended in PyTorch's own traceback: a list computes nothing, a table is read from outside."""
    words = [*SAME, "parallelism=fsdp", f"parallelism.shard_units=[{name}]", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(LostError, match=rf"the policy has no {name}, type some of (?!.*(ModuleList|Embedding|Linear))"):
        train_on(2, words)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({0: 1, 1: -9}, r"process 1 was ended by SIGKILL \(as the system does when memory is full\)"),
        ({0: -15, 1: 1}, "process 1 left with status 1, what it said is above"),  # 0 waited, and was ended
        ({0: 1, 1: -11}, "process 1 was ended by SIGSEGV"),
        ({}, "the processes left, what it said is above"),
    ],
)
def test_the_process_is_blamed_that_failed_first(codes, said):
    from lerobot.parallel_launch import _fault

    assert re.fullmatch(said, _fault(codes))


@pytest.mark.parametrize(
    ("words", "number", "shape"),
    [([], 1, (1, 1)), ([], 4, (4, 1)), (["parallelism=fsdp"], 4, (1, 4)), (["parallelism.dp_shard=2"], 4, (2, 2)),
     (["parallelism=ddp"], 2, (2, 1)), (["parallelism=fsdp", "parallelism.dp_replicate=2"], 4, (2, 2))],
)  # fmt: skip
def test_a_layout_follows_from_the_processes(words, number, shape):
    assert lerobot.compose("train", [*TINY, *words]).parallelism.shape(number) == shape


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["parallelism.dp_shard=0"], "parallelism.dp_shard=0: type 1 or more"),
        (["parallelism.dp_shard=-1", "parallelism.dp_replicate=-1"], "leave both open"),
        (["parallelism.nproc=none_at_all"], "parallelism.nproc=none_at_all: type 1 or more, auto"),
        (["parallelism.timeout_s=0"], "parallelism.timeout_s=0"),
    ],
)
def test_senseless_words_are_refused(words, said):
    from lerobot.errors import ConfigError

    with pytest.raises(ConfigError, match=said):
        lerobot.compose("train", [*TINY, *words])


def test_parameters_that_cannot_be_sharded_and_units_that_are_not_there_are_named(tmp_path, monkeypatch):
    real = ACTPolicy.__init__

    def init(self, *args):
        real(self, *args)
        self.temperature = torch.nn.Parameter(torch.tensor(1.0))

    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", "batch_size=4", "parallelism=fsdp"])
    monkeypatch.setattr(ACTPolicy, "__init__", init)
    with pytest.raises(LostError, match="temperature cannot be sharded, being one number"):
        on_ranks(2, lambda _rank: lerobot.run(config))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "refused"
    monkeypatch.setattr(ACTPolicy, "__init__", real)
    words = ["parallelism=fsdp", "parallelism.shard_units=[EncoderLayer,Blok]", f"output_dir={tmp_path / 'other'}"]
    config = lerobot.compose("train", [*TINY, "batch_size=4", *words])
    with pytest.raises(LostError, match=r"the policy has no Blok, type some of .*EncoderLayer"):
        on_ranks(2, lambda _rank: lerobot.run(config))


def _told(real, name, told):
    def counted(self, *args):
        told.append(name)
        value = real(self, *args)
        told.append(f"/{name}")
        return value

    return counted


def test_each_log_row_is_one_collective_and_each_update_waits_for_a_sum_begun_before_it(tmp_path):
    words = ["batch_size=4", "log_freq=3", "save_checkpoint=false"]
    config = lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 'run'}", *words])

    def job(_rank):
        from lerobot.runner import Training

        told = []
        for cls, name in (
            (parallel.Ranks, "gather_numbers"),
            (parallel.Ranks, "start_sum"),
            (Training, "update"),
            (Training, "log"),
        ):
            setattr(cls, name, _told(getattr(cls, name), name, told))
        lerobot.run(config)
        return told

    for told in on_ranks(2, job):
        words = " ".join(told)
        assert words.count("log gather_numbers /gather_numbers /log") == 2  # of 6 updates, 3 a row
        assert words.count("update start_sum /start_sum /update") == 5
        assert words.count("update start_sum /start_sum start_sum /start_sum /update") == 1  # the first, and one ahead


def test_a_row_has_the_means_of_all_ranks_and_the_times_of_the_slowest(rows, tmp_path):
    def job(rank):
        from lerobot.ranks import combined

        with parallel.open_world(ParallelismConfig()) as world:
            own = {"train/loss": 1.0 + rank, "train/lr": 0.1, "train/step_s": 0.5 + rank, "train/grad_norm": None}
            own["train/samples_per_s"] = 8.0 - rank
            return combined(world, own), combined(
                world, {"a": float("nan") if rank else 1.0, "b": None if rank else 2.0}
            )

    (first, odd), second = on_ranks(2, job)[0], on_ranks(2, job)[1][0]
    assert first == second
    assert first == {
        "train/loss": 1.5,
        "train/lr": 0.1,
        "train/step_s": 1.5,
        "train/grad_norm": None,
        "train/samples_per_s": 7.0,
    }
    assert np.isnan(odd["a"]) and odd["b"] == 2.0


EVALUATED = [
    "env=metaworld",
    "env.episode_length=10",
    "eval.n_episodes=5",
    "eval.videos=0",
    "steps=2",
    "eval.baselines=[replay]",
]


@pytest.mark.parametrize("words", [pytest.param([], marks=SLOW), ["parallelism=fsdp"]], ids=["ddp", "fsdp2"])
def test_episodes_are_split_over_the_ranks_and_are_those_of_one_process(rows, tmp_path, words):
    one = train_on(1, [*SAME, *EVALUATED, f"output_dir={tmp_path / 'one'}"])
    config = lerobot.compose("train", [*SAME, *EVALUATED, *words, "batch_size=4", f"output_dir={tmp_path / 'two'}"])

    def job(_rank):
        import lerobot.evaluation

        real, own = lerobot.evaluation.roll, []

        def roll(*arguments):
            result = real(*arguments)
            own.append([episode.episode for episode in result.episodes])
            return result

        lerobot.evaluation.roll = roll
        lerobot.run(config)
        return own

    assert on_ranks(2, job) == [[[0, 1, 2], [0, 1, 2]], [[3, 4], [3, 4]]]
    two = config.output_dir
    found = [
        [json.loads(x) for x in (Path(run) / "eval/episodes.jsonl").read_text().splitlines()] for run in (one, two)
    ]
    for episode, other in zip(*found, strict=True):
        assert episode.pop("sum_reward") == pytest.approx(other.pop("sum_reward"), rel=1e-3)
        assert episode == other
    assert rows(two)[-1]["eval/replay_success_rate"] == rows(one)[-1]["eval/replay_success_rate"]
    assert column(rows(two), "eval/n_episodes") == [5]


def test_other_ranks_leave_nothing_behind(tmp_path):
    run = train_on(2, [*TINY, f"output_dir={tmp_path / 'run'}", "batch_size=4", "steps=2", "save_freq=1"])

    assert {p.name for p in Path(run).iterdir()} == {".lock", "checkpoints", "metrics.jsonl", "run.json", "status.json"}
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["000001", "000002", "last"]
    assert len(losses([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])) == 2
    assert DATA.parent == Path(__file__).parent
