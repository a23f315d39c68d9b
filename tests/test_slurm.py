"""`scripts/slurm.sh` on a cluster that is made up: `srun` and `scontrol` on PATH, five times at the time limit."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import wandb  # noqa: F401  with the next line, so that no fork has to import it
from runs import TINY, losses, weights

import lerobot.runner  # noqa: F401

SCRIPT = Path(__file__).parents[1] / "scripts" / "slurm.sh"
SRUN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > "$CLUSTER/words"
echo go > "$CLUSTER/ask"
exit "$(cat "$CLUSTER/answer")"
"""
SCONTROL = """#!/bin/sh
echo "$@" >> "$CLUSTER/requeued"
"""


class Cluster:
    """Starts the script again as often as it asks; its steps run in forks of this process, which has torch already."""

    def __init__(self, folder, preempted_after):
        self.folder, self.preempted_after = folder, preempted_after
        folder.mkdir()
        os.mkfifo(folder / "ask")
        os.mkfifo(folder / "answer")
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            tool = folder / name
            tool.write_text(text)
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "CLUSTER": str(folder), "PATH": path}

    def run(self, words, **variables):
        """The status of the last stay, and how many there were."""
        for stay in range(1, 20):
            asked = len(self.requeued())
            script = subprocess.Popen(["sh", SCRIPT, *words], env={**self.environment, **variables})
            (self.folder / "ask").read_text()
            status = self.step((self.folder / "words").read_text().splitlines())
            (self.folder / "answer").write_text(f"{status}\n")
            ended = script.wait(timeout=60)
            if len(self.requeued()) == asked:
                return ended, stay
        raise AssertionError("it never ends")

    def requeued(self):
        file = self.folder / "requeued"
        return file.read_text().splitlines() if file.exists() else []

    def step(self, words):
        """Run the command in a fork that gets USR1 in the middle of its last update before the limit."""
        if (child := os.fork()) == 0:
            status = 99
            try:
                status = self.command(words)
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def command(self, words):
        from lerobot.policies.act import ACTPolicy
        from lerobot.train import main

        real, calls = ACTPolicy.loss, []

        def loss(policy, batch):
            calls.append(1)
            if len(calls) == self.preempted_after:
                signal.raise_signal(signal.SIGUSR1)
            return real(policy, batch)

        ACTPolicy.loss = loss
        assert words[0] == "lerobot-train"
        sys.argv = words
        try:
            main()
        except SystemExit as left:
            return left.code
        return 0


@pytest.mark.parametrize(
    ("variables", "number", "preemptions"),
    [
        ({"SLURM_JOB_ID": "4711"}, "4711", 5),
        ({"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2"}, "4711_2", 1),
    ],
)
@pytest.mark.slow
def test_preemptions_leave_one_run_like_an_uninterrupted_one(tmp_path, train, rows, variables, number, preemptions):
    """HYD-16, LOG-04: preempted jobs started from zero, in a new folder and a new wandb run."""
    words = [word for word in TINY if not word.startswith(("steps=", "wandb="))]
    words += [f"steps={2 * preemptions + 1}", "policy.dropout=0.1", "wandb=offline"]
    # First, so that the forks find warm what PyTorch loads in a first update.
    alone = train(f"steps={2 * preemptions + 1}", "policy.dropout=0.1", "policy.optimizer_lr=1e-4", name="alone")
    cluster = Cluster(tmp_path / "cluster", preempted_after=2)

    ended, stays = cluster.run([*words, "--policy.optimizer_lr=1e-4"], **variables)

    assert (ended, stays) == (0, preemptions + 1)
    assert cluster.requeued() == [f"requeue {number}"] * preemptions
    assert [path.name for path in Path("outputs/slurm").iterdir()] == [number]
    run = Path("outputs/slurm") / number
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    ids = {path.name.split("-")[3] for path in run.glob("wandb/offline-run-*")}
    assert len(ids) == 1
    assert losses(rows(run)) == losses(rows(alone))
    assert all((weights(run)[name] == value).all() for name, value in weights(alone).items())


def test_a_run_that_fails_is_not_brought_back(tmp_path):
    cluster = Cluster(tmp_path / "cluster", preempted_after=99)

    ended, stays = cluster.run([*TINY, "precision=fp16"], SLURM_JOB_ID="4711")

    assert (ended, stays) == (2, 1)
    assert cluster.requeued() == []
