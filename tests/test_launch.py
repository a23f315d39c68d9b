"""Jobs of a sweep side by side, in processes of their own: through joblib and through submitit's local executor."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from runs import TINY

from lerobot import launch
from lerobot.accelerator.slots import Pool
from lerobot.command import main
from lerobot.sweep import plan

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs `lerobot-train -m` with a job that trains nothing; returns status, folders and notes of the jobs."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def run(work, *words):
        base = [word for word in TINY if not word.startswith(("device=", "wandb="))]
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *base, f"hydra.sweep.dir={tmp_path / 'sweep'}", *words])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        jobs = sorted(path for path in Path("sweep").glob("[0-9]*"))
        notes = [json.loads((job / "note.json").read_text()) if (job / "note.json").exists() else None for job in jobs]
        return left.value.code, jobs, notes

    return run


def logged():
    """A job as its launcher sees one; nested so that it travels by value, and without torch so that it is quick."""

    def work(config):
        import json
        import os
        import sys
        import time
        from pathlib import Path

        from lerobot.status import running
        from lerobot.tracking.tracker import open_tracker

        folder, started = Path(config.output_dir), time.time()
        assert "torch" not in sys.modules
        with (
            running(folder),
            open_tracker(folder, config.wandb, steps=3, config={"seed": config.seed}, facts={}) as tracker,
        ):
            for step in range(1, 4):
                tracker.log(step, {"train/loss": config.seed + step / 10})
            time.sleep(0.4)
        seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
        (folder / "note.json").write_text(json.dumps({**seen, "pid": os.getpid(), "at": [started, time.time()]}))
        return "done"

    return work


def test_jobs_side_by_side_have_a_card_each_and_a_whole_wandb_run_each(sweep, monkeypatch):
    """HYD-15, LOG-08: jobs that started together took the same card; some left no config in wandb."""
    from tracking.test_wandb import config_of, history, run_ids

    monkeypatch.setattr(plan, "_HERE", ())  # as if the cards were elsewhere: none is looked for
    monkeypatch.setattr(launch, "find_pool", lambda jobs_per_device: Pool("cuda", ("0", "1"), jobs_per_device))
    status, jobs, notes = sweep(
        logged(), "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "seed=1,2,3,4", "device=cuda", "wandb=offline"
    )

    assert status == 0
    assert {note["CUDA_VISIBLE_DEVICES"] for note in notes} == {"0", "1"}
    assert len({note["pid"] for note in notes}) == 4
    for card in "01":
        times = sorted(note["at"] for note in notes if note["CUDA_VISIBLE_DEVICES"] == card)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(times))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    for number, job in enumerate(jobs, start=1):
        assert config_of(job)["seed"] == number
        assert [row["train/loss"] for row in history(job)] == [number + 0.1, number + 0.2, number + 0.3]
    assert len({run_ids(job)[0] for job in jobs}) == 4


@pytest.mark.slow
def test_a_killed_job_costs_no_other(sweep):
    """HYD-05, HYD-06: in a process of its own nothing of a job is left to the next; without joblib's own end of all."""

    def work(config):
        import os
        import signal
        from pathlib import Path

        from lerobot.status import running

        with running(Path(config.output_dir)):
            if config.seed == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    status, jobs, _ = sweep(work, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "seed=1,2", "device=cpu")

    said = [json.loads((job / "status.json").read_text()) for job in jobs]
    assert status == 1
    assert [one["state"] for one in said] == ["failed", "done"]
    assert said[0]["error"] == "killed by SIGKILL"


@pytest.mark.slow
def test_submitit_brings_a_preempted_job_back_into_its_folder(sweep):
    """HYD-16, for real with submitit's local executor; SLURM sends the same signal."""

    def work(config):
        import json
        import signal
        from pathlib import Path

        from lerobot.signals import stop_on_signals
        from lerobot.status import running

        folder = Path(config.output_dir)
        with (folder / "stays").open("a") as file:
            file.write(f"{config.resume}\n")
        stays = (folder / "stays").read_text().splitlines()
        with running(folder) as final, stop_on_signals() as stop:
            if len(stays) < 3:
                signal.raise_signal(signal.SIGUSR2)
            final.state, final.signal = "stopped" if stop() else "done", stop.signal
        (folder / "note.json").write_text(json.dumps(stays))
        return final.state

    status, jobs, notes = sweep(work, "hydra/launcher=submitit_local", "seed=1", "device=cpu")

    assert (status, len(jobs)) == (0, 1)
    assert notes == [["None", "auto", "auto"]]


def test_jobs_on_the_processor_ask_for_no_card(monkeypatch):
    def fail(*_):
        raise AssertionError("looked for cards")

    monkeypatch.setattr(launch, "find_pool", fail)
    config = OmegaConf.create({"policy": {"device": "auto"}})
    assert launch.pool_for(config, [["policy.device=cpu", "seed=1"], ["policy.device=cpu"]], 1).slots == []
    monkeypatch.setattr(launch, "find_pool", lambda n: Pool("cuda", ("0",), n))
    assert launch.pool_for(config, [["policy.device=cpu"], ["seed=1"]], 2).slots == [("0", 0), ("0", 1)]


def test_as_many_jobs_as_slots_run_at_once_unless_typed():
    assert launch.side_by_side(None, Pool("cuda", ("0", "1"), 2)) == 4
    assert launch.side_by_side(3, Pool("cuda", ("0", "1"))) == 3
    assert 1 <= launch.side_by_side(None, Pool()) <= launch.MOST_JOBS


@pytest.mark.slow
def test_a_signal_to_the_command_stops_the_jobs_of_submitit_too(sweep):
    """The command waited for their end, and a signal to all of it reached each job twice and killed some."""

    def work(config):
        import os
        import signal
        import time
        from pathlib import Path

        from lerobot.signals import stop_on_signals
        from lerobot.status import running

        with running(Path(config.output_dir)) as final, stop_on_signals() as stop:
            if config.seed == 1:
                for pid in (int(config.job_name), os.getppid()):  # the command, and what submitit runs
                    os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + 30
            while not stop() and time.monotonic() < until:
                time.sleep(0.05)
            final.state = "stopped" if stop() else "done"
        return final.state

    words = ("hydra/launcher=submitit_local", "seed=1,2", "device=cpu", f"job_name='{os.getpid()}'")
    status, jobs, _ = sweep(work, *words)

    assert (status, len(jobs)) == (75, 2)
    assert {json.loads((job / "status.json").read_text())["state"] for job in jobs} <= {"stopped", "not run"}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_signal_to_the_command_stops_what_runs_and_begins_no_other(sweep, n_jobs):
    """With one job at a time joblib runs it in the command's own process, and the signal was lost."""

    def work(config):
        import os
        import signal
        import time
        from pathlib import Path

        from lerobot.signals import stop_on_signals
        from lerobot.status import running

        with running(Path(config.output_dir)) as final, stop_on_signals() as stop:
            if config.seed == 1:
                os.kill(int(config.job_name), signal.SIGTERM)
            until = time.monotonic() + 20
            while not stop() and time.monotonic() < until:
                time.sleep(0.05)
            final.state = "stopped" if stop() else "done"
        return final.state

    words = ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={n_jobs}", "seed=1,2,3,4", "device=cpu")
    status, jobs, _ = sweep(work, *words, f"job_name='{os.getpid()}'")

    said = [json.loads((job / "status.json").read_text())["state"] for job in jobs]
    assert status == 75
    assert said[0] == "stopped"
    assert set(said[n_jobs:]) <= {"not run"}
    assert "done" not in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_typed_search_path_reaches_the_jobs_of_other_launchers(sweep, launcher, tmp_path):
    """Hydra looks for plugins anew in each job, took the stock launcher's node for our file's schema, and none ran."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "odd.yaml").write_text("# @package _global_\nprefetch_factor: 3\n")
    words = (f"hydra/launcher={launcher}", f"hydra.searchpath=[file://{tmp_path / 'mine'}]", "experiment=odd")

    def work(config):
        from pathlib import Path

        from lerobot.status import running

        with running(Path(config.output_dir), steps=config.prefetch_factor):
            return "done"

    status, jobs, _ = sweep(work, *words, "seed=1,2", "device=cpu")

    assert status == 0
    assert [json.loads((job / "status.json").read_text())["steps"] for job in jobs] == [3, 3]


def test_slurm_without_slurm_is_refused_in_a_sentence(sweep, monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("PATH", "")
    status, jobs, _ = sweep(lambda _: pytest.fail("a job ran"), "hydra/launcher=slurm", "seed=1,2", "device=cpu")

    said = capfd.readouterr().err
    assert (status, jobs) == (2, [])
    assert "error: hydra/launcher=slurm needs SLURM" in said
    assert "not run" not in said  # a table of jobs in a folder that was made for nothing
    assert not list(tmp_path.rglob("sweep.json"))
