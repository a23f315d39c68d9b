"""The commands that start several processes: torchrun, accelerate and `parallelism.nproc=`, with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from gloo import free_port
from runs import TINY, losses

ROOT = Path(__file__).parents[1]
WORDS = [*TINY, "policy.dropout=0"]
ENDLESS = ["steps=100000", "log_freq=1", "batch_size=4"]
TRAIN = ["-m", "lerobot.train"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2"]


def environment(**variables):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


def command(*words, **variables):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], env=environment(**variables), **streams)


def ended(process, timeout=120):
    out, said = process.communicate(timeout=timeout)
    return process.returncode, out, said


def status(run):
    return json.loads((Path(run) / "status.json").read_text())


def rows(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def ranks_of(process):
    """The ranks that are started below `process`, by number."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "RANK" in child.environ() and "lerobot." in " ".join(child.cmdline()):
                found[int(child.environ()["RANK"])] = child
        except psutil.Error:
            continue
    return found


def trains(process, run, timeout=90):
    """Wait until `run` has a row; return the ranks."""
    until = time.monotonic() + timeout
    while time.monotonic() < until and process.poll() is None:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("\n") > 2:
            return ranks_of(process)
        time.sleep(0.1)
    raise AssertionError(process.communicate(timeout=10))


def assert_gone(ranks, within=10):
    _, alive = psutil.wait_procs(list(ranks.values()), timeout=within)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "layout"), [(1, "ddp"), (0, "ddp"), (1, "fsdp")])
def test_a_killed_process_ends_the_command_at_once_and_leaves_no_orphan(tmp_path, killed, layout):
    run = tmp_path / "run"
    process = command(*TRAIN, *WORDS, *ENDLESS, f"output_dir={run}", "parallelism.nproc=2", f"parallelism={layout}")
    ranks = trains(process, run)
    assert sorted(ranks) == [0, 1]
    begun = time.monotonic()
    ranks[killed].kill()
    code, _, said = ended(process, timeout=30)

    assert time.monotonic() - begun < 30
    assert code == 1
    assert f"process {killed} was ended by SIGKILL" in said
    assert said.count("Traceback") == 0
    assert (status(run)["state"], f"process {killed} was ended by SIGKILL" in status(run)["error"]) == ("failed", True)
    assert_gone(ranks)


@pytest.mark.slow
def test_an_exception_of_one_process_is_shown_once_in_full(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.environ.get('RANK') == '1':\n"
        "    from lerobot.policies.act import ACTPolicy\n"
        "    def loss(self, batch, *counts):\n"
        "        raise ZeroDivisionError('a bug of one rank')\n"
        "    ACTPolicy.loss = loss\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = [*TRAIN, *WORDS, "batch_size=4", f"output_dir={tmp_path / 'run'}", "parallelism.nproc=2"]
    code, _, said = ended(command(*words, PYTHONPATH=paths))

    assert code == 1
    assert said.count("Traceback") == 1
    assert said.count("ZeroDivisionError: a bug of one rank") == 2  # the trace's end, and the line of the first
    assert "error: process 1 failed: ZeroDivisionError: a bug of one rank" in said
    assert status(tmp_path / "run")["state"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_to_the_command_writes_one_checkpoint_and_leaves_with_75(tmp_path, name):
    run = tmp_path / "run"
    process = command(*TRAIN, *WORDS, *ENDLESS, f"output_dir={run}", "parallelism.nproc=2")
    ranks = trains(process, run)
    process.send_signal(getattr(signal, name))
    code, _, said = ended(process, timeout=60)

    assert code == 75, said
    assert "Traceback" not in said
    found = status(run)
    assert (found["state"], found["signal"]) == ("stopped", name)
    assert json.loads((run / "checkpoints/last/training_state/training_step.json").read_text())["step"] == found["step"]
    assert_gone(ranks)


@pytest.mark.slow
def test_processes_do_not_outlive_a_command_that_is_killed(tmp_path):
    run = tmp_path / "run"
    process = command(*TRAIN, *WORDS, *ENDLESS, f"output_dir={run}", "parallelism.nproc=2")
    ranks = trains(process, run)
    process.kill()
    process.communicate(timeout=30)

    assert_gone(ranks, within=30)
    assert status(run)["state"] == "stopped"  # with a checkpoint, as on a signal
    assert (run / "checkpoints" / "last").exists()


@pytest.mark.slow
def test_a_sweep_of_several_processes_has_a_folder_and_a_chart_for_each_job(tmp_path):
    words = [word for word in WORDS if not word.startswith("wandb=")]
    sweep = tmp_path / "sweep"
    more = ["precision=no,bf16", "parallelism.nproc=2", "batch_size=4", "wandb=offline", f"output_dir={sweep}"]
    code, _, said = ended(command(*TRAIN, "-m", *words, *more), timeout=300)

    assert code == 0, said
    runs = sorted(path.parent for path in sweep.glob("*/status.json"))
    assert len(runs) == 2
    assert [status(run)["state"] for run in runs] == ["done", "done"]
    assert [json.loads((run / "run.json").read_text())["world_size"] for run in runs] == [2, 2]
    assert len(list(sweep.glob("**/offline-run-*"))) == 2
    assert len(list(tmp_path.glob("**/offline-run-*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_launchers_start_one_run_and_the_config_alone_decides_dist_10(tmp_path, launcher):
    """DIST-10, HYD-14: every rank composed its own config and made its own folder; variables beat what was typed."""
    start = {
        "torchrun": [*TORCHRUN, "--standalone", *TRAIN],
        "accelerate": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--mixed_precision=bf16",
                       f"--main_process_port={free_port()}", *TRAIN],
    }[launcher]  # fmt: skip
    process = command(*start, *WORDS, "batch_size=4", "output_dir=run", ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4")
    code, _, said = ended(process)

    assert code == 0, said
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 is ignored" in said
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["world_size"], facts["forward_dtype"], facts["parallelism"]) == (2, "float32", "ddp")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(list((tmp_path / "run").glob(".hydra*"))) == 1
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", *WORDS, "precision=no,bf16"], "error: a sweep starts its jobs itself: type parallelism.nproc=<n> with -m"),
        ([*WORDS, "parallelism.nproc=4"], "error: parallelism.nproc=4 starts processes and a launcher has started 2"),
        ([*WORDS, "parallelism.dp_shard=3"], "error: parallelism.dp_replicate=null parallelism.dp_shard=3 is for 3"),
        ([*WORDS, "debug=resume_check"], "error: resume_check runs in one process"),
    ],
)  # fmt: skip
def test_what_torchrun_cannot_start_is_refused_once(tmp_path, words, said):
    code, _, text = ended(command(*TORCHRUN, "--standalone", *TRAIN, *words))

    assert code == 1  # torchrun's own
    assert re.findall(r"^error: .*", text, re.MULTILINE) == [
        line for line in text.splitlines() if line.startswith(said)
    ]
    assert said in text
    assert not list(tmp_path.glob("**/checkpoints"))


@pytest.mark.slow
def test_two_machines_are_one_run(tmp_path):
    """Two agents of torchrun on this one, as it is started on each of several."""
    port = free_port()
    nodes = []
    for node in range(2):
        (tmp_path / f"node{node}").mkdir()
        words = [*TORCHRUN[:-1], "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
        words += [f"--master-port={port}", *TRAIN, *WORDS, "batch_size=4", "output_dir=run"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path / f"node{node}"}
        nodes.append(subprocess.Popen([sys.executable, *words], env=environment(), **streams))
    for node in nodes:
        code, _, said = ended(node)
        assert code == 0, said

    assert json.loads((tmp_path / "node0/run/run.json").read_text())["world_size"] == 2
    assert len(losses(rows(tmp_path / "node0" / "run"))) == 6
    assert list((tmp_path / "node1").iterdir()) == []


SRUN = '#!/bin/sh\nexec "$@"\n'
TORCHRUN_HERE = '#!/bin/sh\nexec "$PYTHON" -m torch.distributed.run "$@"\n'
SCONTROL = '#!/bin/sh\n[ "$1" = show ] && { echo localhost; exit; }\necho "$@" >> requeued\n'


@pytest.mark.slow
def test_the_script_for_several_machines_goes_on_after_each_time_limit(tmp_path):
    """On a cluster that is made up: one machine, two processes, and USR1 to all of them as SLURM sends it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("torchrun", TORCHRUN_HERE), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    variables = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1]",
        "SLURM_JOB_NUM_NODES": "1",
        "LEROBOT_NPROC": "2",
    }
    variables |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}
    variables["LEROBOT_PORT"] = str(free_port())
    run, steps = Path("outputs/slurm/4711"), []
    for stay in range(1, 3):
        (run / "metrics.jsonl").unlink(missing_ok=True)
        script = ["sh", str(ROOT / "scripts" / "slurm_nodes.sh"), *WORDS, *ENDLESS]
        process = subprocess.Popen(script, env=environment(**variables), stderr=subprocess.PIPE, text=True)
        ranks = trains(process, run)
        for child in psutil.Process(process.pid).children(recursive=True):
            child.send_signal(signal.SIGUSR1)
        code, _, said = ended(process, timeout=90)
        assert code == 0, said
        assert_gone(ranks)
        assert Path("requeued").read_text().splitlines() == ["requeue 4711"] * stay
        assert status(run)["state"] == "stopped"
        steps.append(status(run)["step"])
    assert steps[1] > steps[0]


def test_refusals_come_before_a_process_is_started(tmp_path):
    """In a fork of this process, where torch is there already."""
    from test_slurm import Cluster

    words = ["lerobot-train", *WORDS, f"output_dir={tmp_path / 'run'}", "parallelism.nproc=2", "parallelism.dp_shard=3"]
    cluster = Cluster(tmp_path / "cluster", preempted_after=99)
    assert cluster.step(words) == 2
    assert status(tmp_path / "run")["state"] == "refused"
    assert "dp_shard=3 is for 3 processes or a multiple and there are 2" in status(tmp_path / "run")["error"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["nproc", "torchrun"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_fails_before_it_met_the_others_ends_them_at_once(tmp_path, launcher, rank):
    """As where a library of one machine is broken: the others waited in a store that hears no signal."""
    (tmp_path / "sitecustomize.py").write_text(f"""
import os, sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "lerobot.runner" and os.environ.get("RANK") == "{rank}":
            import time
            time.sleep(3)
            raise ImportError("libcudart.so of this rank only")
sys.meta_path.insert(0, Broken())
""")
    words = [*TRAIN, *WORDS, f"output_dir={tmp_path / 'run'}"]
    words = [*words, "parallelism.nproc=2"] if launcher == "nproc" else [*TORCHRUN, *words]
    process = command(*words, PYTHONPATH=f"{tmp_path}:{ROOT}")
    time.sleep(5)
    ranks, begun = ranks_of(process), time.monotonic()
    code, _, said = ended(process)

    assert code == 1
    assert "libcudart.so of this rank only" in said
    assert time.monotonic() - begun < 25
    assert_gone(ranks)
    if launcher == "nproc":
        assert status(tmp_path / "run")["error"] == f"process {rank} left with status 1, what it said is above"


@pytest.mark.slow
def test_a_signal_to_one_process_that_has_not_begun_stops_the_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("""
import os, signal, sys
class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "lerobot.runner" and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Told())
""")
    words = [*TRAIN, *WORDS, "parallelism.nproc=2", f"output_dir={tmp_path / 'run'}"]
    code, _, said = ended(command(*words, PYTHONPATH=f"{tmp_path}:{ROOT}"))

    assert code == 75, said
    assert status(tmp_path / "run")["state"] == "stopped"
