"""A sweep runs every combination that can work, and says what became of the others."""

import gc
import json
import os
import re
import signal
import time
import weakref
from pathlib import Path

import pytest
from runs import TINY

import lerobot
from lerobot.command import exit_status
from lerobot.errors import ConfigError
from lerobot.status import write_status
from lerobot.sweep.table import show, state_of


def facts(job):
    return json.loads((job / "run.json").read_text())


def test_each_job_has_its_own_precision_and_an_impossible_one_stops_no_other(sweep, status, capfd):
    """HYD-05: accelerate kept the device and the precision of the first job."""
    left, jobs = sweep("precision=no,fp16,bf16", "device=cpu", "steps=1")

    assert (left, [status(job)["state"] for job in jobs]) == (2, ["done", "refused", "done"])
    assert [job.name for job in jobs] == ["0_cpu_no", "1_cpu_fp16", "2_cpu_bf16"]
    assert [facts(jobs[i])["forward_dtype"] for i in (0, 2)] == ["float32", "bfloat16"]
    shown = capfd.readouterr().err
    assert shown.index("refused: 1_cpu_fp16: precision=fp16 does not work") < shown.index("job 1 of 2")
    assert "type precision=bf16" in shown
    written = json.loads((jobs[0].parent / "sweep.json").read_text())["jobs"]
    assert [job["folder"] for job in written] == [job.name for job in jobs]


@pytest.mark.slow
def test_precisions_in_the_other_order_and_a_device_that_is_found(sweep):
    """HYD-05: the order must not matter."""
    left, jobs = sweep("precision=bf16,no", "device=cpu,auto", "steps=1")

    assert left == 0
    assert [facts(job)["forward_dtype"] for job in jobs] == ["bfloat16", "bfloat16", "float32", "float32"]


@pytest.mark.slow
def test_an_absent_device_is_refused_before_the_first_job(sweep, status, capfd):
    from lerobot.accelerator.device import machine

    if len(machine().devices) > 1:
        pytest.skip("there is a card")
    left, jobs = sweep("precision=no,bf16,fp16", "device=cpu,cuda", "steps=1")

    states = [status(job)["state"] for job in jobs]
    assert (left, states.count("done"), states.count("refused")) == (2, 2, 4)
    assert "device=cuda is absent" in capfd.readouterr().err


def test_a_failing_job_is_reported_in_its_own_log_and_the_rest_runs(sweep, status, on_update, capfd):
    """HYD-02: the job's own log was empty and one error of many was shown."""

    def breaks(policy, _):
        if policy.config.dropout == 0.2:
            raise RuntimeError("the second job breaks")

    on_update(breaks)
    left, jobs = sweep("policy.dropout=0.1,0.2,0.3", "device=cpu", "steps=1")

    assert (left, [status(job)["state"] for job in jobs]) == (1, ["done", "failed", "done"])
    log = (jobs[1] / "train.log").read_text()
    assert "Traceback" in log
    assert "the second job breaks" in log
    assert "Traceback" not in (jobs[2] / "train.log").read_text()
    assert f"{jobs[1].name}: the second job breaks" in capfd.readouterr().err


def test_a_sweep_may_stop_at_the_first_failure(sweep, on_update, capfd):
    """HYD-03: a fault that all jobs share wasted the whole sweep."""
    on_update(lambda _policy, _number: 1 / 0)
    left, jobs = sweep("seed=1,2,3", "device=cpu", "sweep.on_error=stop")

    assert (left, [state_of(job) for job in jobs]) == (1, ["failed", "not run", "not run"])
    assert not jobs[1].exists()
    assert capfd.readouterr().err.count("not run") == 2


@pytest.mark.slow
def test_an_interrupt_ends_the_sweep_and_says_how_to_go_on(sweep, status, on_update, rows, capfd):
    """HYD-16: the job at hand writes its checkpoint, nothing else begins."""
    on_update(lambda _, number: number == 1 and signal.raise_signal(signal.SIGINT))
    left, jobs = sweep("seed=1,2", "device=cpu", "output_dir=s")

    assert (left, [state_of(job) for job in jobs]) == (75, ["stopped", "not run"])
    assert "lerobot-train -m sweep.resume=s" in capfd.readouterr().err
    left, jobs = sweep("sweep.resume=s", base=())
    assert (left, [state_of(job) for job in jobs]) == (0, ["done"] * 2)
    assert [row["step"] for row in rows(jobs[0])] == [1, 2]


def test_an_interrupt_in_the_last_update_of_a_job_begins_no_other(sweep, on_update):
    on_update(lambda _, number: number == 2 and signal.raise_signal(signal.SIGTERM))
    left, jobs = sweep("seed=1,2", "device=cpu")

    assert (left, [state_of(job) for job in jobs]) == (75, ["done", "not run"])


def test_a_killed_sweep_goes_on_where_it_was(sweep, status, on_update, rows):
    """HYD-04: numbers restarted at 0, folders were overwritten, and finished jobs ran again."""

    def dies(_, number):
        if number == 4:  # the second update of job 1
            os.kill(os.getpid(), signal.SIGKILL)

    # Not in the background: the kill would come before the first checkpoint is whole.
    words = ("seed=1,2,3", "device=cpu", "save_freq=1", "checkpoint.background=false", "wandb=offline", "output_dir=s")
    on_update(dies)
    if (child := os.fork()) == 0:
        try:
            sweep(*words)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    names = [f"{i}_seed{i + 1}" for i in range(3)]
    assert [state_of(Path("s", name)) for name in names] == ["done", "failed", "not run"]
    before = _content(Path("s", names[0]))
    runs = {path.name[-8:] for path in Path("s", names[1], "wandb").glob("offline-run-*")}
    on_update(lambda _policy, _number: None)

    left, jobs = sweep(*words)

    assert (left, [job.name for job in jobs]) == (0, names)
    assert _content(jobs[0]) == before
    assert "going on after step 1" in (jobs[1] / "train.log").read_text()
    assert {path.name[-8:] for path in (jobs[1] / "wandb").glob("offline-run-*")} == runs  # wandb's id is the same
    assert [[row["step"] for row in rows(job)] for job in jobs[1:]] == [[1, 2], [1, 2]]


def _content(job):
    return {
        path: path.stat().st_mtime_ns
        for path in job.rglob("*")
        if path.is_file() and not {"wandb", ".lock"} & {*path.parts}
    }


@pytest.mark.slow
def test_a_job_that_died_before_its_first_checkpoint_begins_anew_in_its_folder(sweep, on_update, rows):
    def breaks(_, number):
        if number == 2:
            raise RuntimeError("once")

    on_update(breaks)
    assert sweep("seed=1,2", "device=cpu", "output_dir=s")[0] == 1
    left, jobs = sweep("seed=2,1", "device=cpu", "output_dir=s")  # a job is known by its words, not by its place

    assert (left, [job.name for job in jobs]) == (0, ["0_seed1", "1_seed2"])
    assert [row["step"] for row in rows(jobs[0])] == [1, 2]


def test_another_command_is_refused_in_the_folder_of_a_sweep(sweep, capfd):
    assert sweep("seed=1", "device=cpu", "output_dir=s")[0] == 0
    before = _content(Path("s"))

    assert sweep("seed=1,2", "device=cpu", "steps=3", "output_dir=s")[0] == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert "seed=1,2 (there: 1), steps=3 (there: 2)" in said
    assert "sweep.resume=s" in said
    assert _content(Path("s")) == before


@pytest.mark.slow
def test_a_refusal_is_tried_again_when_the_sweep_goes_on(sweep, tmp_path, status):
    import shutil

    from runs import DATA

    words = (f"dataset.root={DATA / 'metaworld_push_state'},{tmp_path / 'late'}", "device=cpu", "output_dir=s")
    assert sweep(*words)[0] == 2
    shutil.copytree(DATA / "metaworld_push_state", tmp_path / "late")
    left, jobs = sweep("sweep.resume=s", base=())

    assert (left, [status(job)["state"] for job in jobs]) == (0, ["done", "done"])


def test_a_job_repeats_the_same_run_made_alone(sweep, train, rows):
    _, jobs = sweep("seed=1,2", "device=cpu")
    alone = train("steps=2", "seed=2")

    assert rows(jobs[1])[-1]["train/loss"] == rows(alone)[-1]["train/loss"]


def test_nothing_of_a_job_lives_on_in_the_next(sweep, on_update, monkeypatch):
    """HYD-06: memory, and its peak, carried over from job to job; so did what a job put into the environment."""
    policies, alive, environments = [], [], []

    def look(policy, _):
        if not policies or policies[-1]() is not policy:
            alive.append([old() for old in policies if old() is not None])
            policies.append(weakref.ref(policy))
            environments.append(os.environ.get("LEFT_BY_A_JOB"))
            os.environ["LEFT_BY_A_JOB"] = "yes"
            if len(policies) == 2:
                raise RuntimeError("a traceback must not hold it either")

    on_update(look)
    gc.disable()  # what is gone must not be so by chance
    try:
        _, jobs = sweep("seed=1,2,3", "device=cpu", "steps=1")
    finally:
        gc.enable()

    assert len(jobs) == 3
    assert alive == [[], [], []]
    assert environments == [None] * 3
    assert "LEFT_BY_A_JOB" not in os.environ


@pytest.mark.slow
def test_the_peak_of_memory_is_that_of_the_job(sweep, on_update, rows):
    """HYD-06: jobs reported the peak of the largest so far."""
    import sys

    if sys.platform != "linux":
        pytest.skip("only Linux lets a process forget its peak")
    held = []

    def grows(_, number):
        if number == 1:
            held.append(bytearray(400 * 2**20))
        held.clear()

    on_update(grows)
    _, jobs = sweep("seed=1,2", "device=cpu", "steps=1")
    first, second = (rows(job)[-1]["device/peak_mem_gb"] for job in jobs)

    assert first - second > 0.3


@pytest.mark.slow
def test_each_job_is_a_wandb_run_of_its_own_in_one_group(sweep, on_update, monkeypatch):
    """LOG-01: a second job went on in the first one's run. LOG-10: groups, names and tags were not organised."""
    from lerobot.tracking import wandb as charts

    opened, ended = [], []
    real_init, real_finish = charts._init, charts.WandbSink.finish

    def init(run_dir, options, **more):
        opened.append((options.group, options.name, more["run_id"], more["config"]))
        return real_init(run_dir, options, **more)

    def finish(self, exit_code):
        ended.append((self.run_id, exit_code))
        real_finish(self, exit_code)

    monkeypatch.setattr(charts, "_init", init)
    monkeypatch.setattr(charts.WandbSink, "finish", finish)
    on_update(lambda policy, number: 1 / 0 if number == 3 else None)
    left, jobs = sweep(
        "precision=no,bf16,no", "seed=0,1", "device=cpu", "steps=1", "wandb=offline", "output_dir=deep/s"
    )

    groups, names, ids, configs = zip(*opened, strict=True)
    assert left == 1
    assert set(groups) == {"s"}
    assert list(names) == [job.name for job in jobs]
    assert len(set(ids)) == len(jobs) == 4
    assert [config["accelerator"]["mixed_precision"] for config in configs] == ["no", "no", "bf16", "bf16"]
    assert ended == [(run_id, int(run_id == ids[2])) for run_id in ids]
    assert all(len(tag) <= 64 for config in configs for tag in charts.run_tags(config))


def test_the_table_fits_a_narrow_terminal_and_cuts_nothing_that_differs(tmp_path, monkeypatch, capfd):
    from lerobot.sweep.jobs import Job, Sweep, write_sweep

    monkeypatch.setenv("COLUMNS", "80")
    words = [f"policy.a_rather_long_key_{i}=[value,with,commas]" for i in range(4)]
    states = ["done", "refused", "failed", "stopped", None]
    jobs = [Job(i, f"{i}_{'x' * 58}", words, words) for i in range(6)]
    write_sweep(tmp_path, Sweep("train", [], [], jobs))
    for job, state in zip(jobs, states, strict=False):
        (tmp_path / job.folder).mkdir()
        if state:
            write_status(tmp_path / job.folder, state=state)
            (tmp_path / job.folder / "metrics.jsonl").write_text(
                '{"step": 1, "train/loss": 0.123456, "eval/success_rate": 0.5, "train/samples_per_s": 1234.5, "train/skipped_steps": 3}\n'
            )
    show(tmp_path)

    table = [line for line in capfd.readouterr().err.splitlines() if re.match(r" (\d|  ) ", line)]
    assert max(map(len, table)) <= 80
    assert "".join("".join(line[15:].split()[:1]) for line in table).count("=[value,with,commas]") == 24
    assert [line.split()[1] for line in table if line[1].isdigit()] == [*states[:4], "missing", "not"]


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["done", "done"], 0),
        (["done", "refused", "stopped", "failed"], 1),
        (["done", "missing", "stopped"], 1),
        (["done", "refused", "stopped", "not run"], 75),
        (["done", "not run"], 75),
        (["done", "refused"], 2),
    ],
)
def test_one_status_says_the_worst(states, status):
    assert exit_status(states) == status


@pytest.mark.slow
def test_a_crash_in_a_process_of_its_own_costs_one_job(sweep, status):
    """HYD-06: a kill, such as for want of memory, took the whole sweep along."""
    import threading

    def kill():
        file = Path("s/0_seed1/status.json")
        while not file.exists() or json.loads(file.read_text())["state"] != "running":
            time.sleep(0.01)
        os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    left, jobs = sweep("seed=1,2", "device=cpu", "steps=50", "sweep.isolate=process", "output_dir=s")
    thread.join()

    assert (left, [status(job)["state"] for job in jobs]) == (1, ["failed", "done"])
    assert "ended by SIGKILL" in status(jobs[0])["error"]
    assert status(jobs[1])["pid"] != os.getpid()
    assert "running on cpu" in (jobs[1] / "train.log").read_text()


@pytest.mark.slow
def test_a_signal_reaches_a_job_in_a_process_of_its_own(sweep, status):
    import threading

    def interrupt():
        while not Path("s/0_seed1/metrics.jsonl").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    left, jobs = sweep("seed=1,2", "device=cpu", "steps=100000", "sweep.isolate=process", "output_dir=s")
    thread.join()

    assert (left, [state_of(job) for job in jobs]) == (75, ["stopped", "not run"])
    assert (jobs[0] / "checkpoints" / "last").exists()


@pytest.mark.slow
def test_twenty_jobs_hold_no_more_memory_than_two_and_cost_little_beside_training(sweep, monkeypatch):
    """HYD-06: long sweeps ran out of memory although each job alone fits."""
    import resource

    from lerobot import runner

    held, trained = [], []
    real = runner._train_part

    def part(*args, **more):
        started = time.process_time()
        try:
            return real(*args, **more)
        finally:
            trained.append(time.process_time() - started)
            held.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())

    monkeypatch.setattr(runner, "_train_part", part)
    started = time.process_time()
    left, jobs = sweep("seed=range(0,20)", "device=cpu")
    overhead = time.process_time() - started - sum(trained)

    assert (left, len(jobs)) == (0, 20)
    assert held[-1] < 1.1 * held[1]
    assert overhead / 20 < 1.5


@pytest.mark.parametrize("torn", ["{", None])
def test_a_job_whose_status_is_lost_goes_on_from_its_checkpoint(sweep, rows, torn):
    """HYD-04: it was refused at every continuation, as if a stranger's run were in its folder."""
    _, jobs = sweep("seed=1", "device=cpu", "output_dir=s")
    (jobs[0] / "status.json").unlink()
    if torn is not None:
        (jobs[0] / "status.json").write_text(torn)

    left, jobs = sweep("seed=1", "device=cpu", "output_dir=s")

    assert left == 0
    assert [row["step"] for row in rows(jobs[0])] == [1, 2]


def test_a_run_is_not_put_into_the_folder_of_a_sweep(sweep, tmp_path):
    """Its report then knew the run alone."""
    sweep("seed=1", "device=cpu", f"output_dir={tmp_path / 's'}")
    with pytest.raises(ConfigError, match=r"holds a sweep: type -m sweep\.resume="):
        lerobot.compose("train", [*TINY, f"output_dir={tmp_path / 's'}"])


@pytest.mark.parametrize("word", ["hydra/launcher=joblib", "hydra/sweeper=optuna"])
def test_how_jobs_are_run_or_found_needs_a_sweep(word):
    with pytest.raises(ConfigError, match="is about a sweep: add -m"):
        lerobot.compose("train", [*TINY, word])


def test_a_null_env_is_none_although_an_experiment_sets_its_keys():
    assert lerobot.compose("train", ["experiment=demo", "env=null"]).env is None
