"""Times an update of ours beside a bare PyTorch loop of the same policy, in turn, and prints medians and their ratio.

The bare loop is the limit: the same policy and optimizer on batches that lie in memory, with nothing logged or saved.
A row for two processes has bare DistributedDataParallel beside it, in the same processes and over the same gloo.
A row says for how long a checkpoint stops training, beside what writing it takes; the last one what a job of a sweep
costs beside its training: composing, building, closing, wandb offline, its picture and its part of the report.
Usage: python scripts/bench.py [--quick]
"""

import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import lerobot
from lerobot.accelerator.parallel import open_world
from lerobot.accelerator.parallel_config import ParallelismConfig
from lerobot.checkpoint.config import CheckpointConfig
from lerobot.checkpoint.training_state import Progress, take_snapshot
from lerobot.checkpoint.writer import open_checkpoints
from lerobot.config import TrainConfig
from lerobot.data.reader import LeRobotDataset
from lerobot.prepare import policy_and_data
from lerobot.tracking.tracker import Tracker

DATA = Path(__file__).parents[1] / "tests" / "data"
ROWS = {
    "small ACT, state, batch 64": [
        "policy=act_small",
        f"dataset.root={DATA / 'metaworld_push_state'}",
        "batch_size=64",
    ],
    "small ACT, 96 px camera, batch 8": [
        "policy=act_small",
        f"dataset.root={DATA / 'metaworld_push_cam'}",
        "batch_size=8",
        "num_workers=1",
    ],
}
SAME = ["device=cpu", "accelerator.num_threads=1", "wandb=disabled", "picture=false", "save_checkpoint=false"]


def config_of(words: list[str], steps: int, folder: Path | None = None) -> TrainConfig:
    """The run config of a row; rows of `metrics.jsonl` are means over a quarter of the updates."""
    where = [f"output_dir={folder}"] if folder else []
    return lerobot.compose("train", [*words, *SAME, f"steps={steps}", f"log_freq={max(1, steps // 4)}", *where])


def ours(words: list[str], steps: int) -> float:
    """Seconds of an update, data and logging in it; the first quarter is warming up."""
    folder = Path(tempfile.mkdtemp())
    try:
        run = lerobot.run(config_of(words, steps, folder / "run"))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return statistics.median(row["train/step_s"] for row in rows[1:])
    finally:
        shutil.rmtree(folder)


def bare(words: list[str], steps: int) -> float:
    """Seconds of an update of the bare loop, of all processes where there are several."""
    config = config_of(words, steps)
    with open_world(ParallelismConfig()) as world:
        return bare_loop(config, steps, several=world.size > 1)


def bare_loop(config: TrainConfig, steps: int, *, several: bool) -> float:
    """See `bare`."""
    policy, dataset = policy_and_data(config, config.dataset.folder(), None)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, fused=True)
    batches = memory(dataset, config.batch_size)
    policy.train()
    model = DistributedDataParallel(policy, gradient_as_bucket_view=True) if several else policy
    times = []
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(batches[step % len(batches)])[0].backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.mean(times[steps // 4 :])


def side_by_side(words: list[str], steps: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds of our update and of the bare one, in turn, on two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in (1, 0):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        environment = {
            **os.environ,
            **{name: str(value) for name, value in numbers.items()},
            "MASTER_ADDR": "127.0.0.1",
        }
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, __file__, "--rank", json.dumps([words, steps, repeats])]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    return [tuple(pair) for pair in json.loads(outputs[1].splitlines()[-1])]


def rank(words: list[str], steps: int, repeats: int) -> None:
    """What one of the processes of `side_by_side` does; the first one prints the pairs."""
    torch.set_num_threads(1)
    first, pairs = os.environ["RANK"] == "0", []
    where = Path(tempfile.mkdtemp())
    for number in range(repeats):
        run = lerobot.run(config_of(words, steps, where / str(number)))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] if first else []
        limit = bare(words, steps)
        if first:
            pairs.append((statistics.median(row["train/step_s"] for row in rows[1:]), limit))
    shutil.rmtree(where)
    if first:
        print(json.dumps(pairs))


def memory(dataset: LeRobotDataset, batch_size: int) -> list[dict[str, torch.Tensor]]:
    """A few batches, as the loop gets them."""
    return [dataset.__getitems__(list(range(i * batch_size, (i + 1) * batch_size))) for i in range(4)]


def stops(repeats: int) -> tuple[float, float, float]:
    """Gigabytes of a checkpoint (weights and moments), and seconds that saves after the first stop training for.

    Once written by the thread, with what the next update then waits for, and once by the training itself
    (`checkpoint.background=false`).
    """
    config = config_of([f"dataset.root={DATA / 'metaworld_push_cam'}", "policy=act"], 1)
    policy, dataset = policy_and_data(config, config.dataset.folder(), None)
    batch = memory(dataset, 1)[0]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    seconds = {True: [], False: []}
    folder = Path(tempfile.mkdtemp())
    try:
        for background in (True, False):
            settings = CheckpointConfig(background=background)
            with open_checkpoints(folder, settings, Tracker(), pinned=False, resumed=None) as to:
                for step in range(repeats + 1):
                    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                    start = time.perf_counter()
                    to.write(take_snapshot(Progress(step), policy, optimizer, None, {}, to.copy))
                    saved = time.perf_counter()
                    policy(batch)[0].backward()
                    computed = time.perf_counter()
                    to.hold()
                    seconds[background].append(time.perf_counter() - computed + saved - start)
                    to.wait()
        size = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e9
    finally:
        shutil.rmtree(folder)
    return size, statistics.median(seconds[True][1:]), statistics.median(seconds[False][1:])


def job_costs(jobs: tuple[int, int], steps: int) -> tuple[float, float]:
    """Seconds of wall time that a job of a sweep takes in all, and of these beside its updates.

    From two sweeps of unequal length, so that the start of the process is not counted.
    """
    words = [*ROWS["small ACT, state, batch 64"], "device=cpu", "accelerator.num_threads=1", "wandb=offline"]
    walls, trained = [], []
    for number in jobs:
        folder = Path(tempfile.mkdtemp())
        try:
            line = ["-m", *words, f"steps={steps}", "log_freq=5", f"seed=range(0,{number})", f"output_dir={folder}"]
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "lerobot.train", *line], check=True, capture_output=True)
            walls.append(time.perf_counter() - start)
            rows = [json.loads(row) for file in folder.glob("*/metrics.jsonl") for row in file.open()]
            trained.append(5 * sum(row["train/step_s"] for row in rows))
        finally:
            shutil.rmtree(folder)
    more = jobs[1] - jobs[0]
    each = (walls[1] - walls[0]) / more
    return each, each - (trained[1] - trained[0]) / more


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["--rank"]:
        rank(*json.loads(sys.argv[2]))
        return
    steps, repeats = (40, 3) if "--quick" in sys.argv[1:] else (200, 5)
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, one thread, PyTorch {torch.__version__}, median of {repeats}")
    print("| row | ours, ms | bare loop, ms | ratio |\n| --- | --- | --- | --- |")
    rows = {
        name: (words, lambda words: [(ours(words, steps), bare(words, steps)) for _ in range(repeats)])
        for name, words in ROWS.items()
    }
    rows["small ACT, state, batch 64, two processes"] = (
        next(iter(ROWS.values())),
        lambda words: side_by_side(words, steps, repeats),
    )
    for name, (words, measure) in rows.items():
        pairs = measure(words)
        mine, limit = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"| {name} | {mine:.1f} | {limit:.1f} | {ratio:.2f} |", flush=True)
    size, stopped, plain = stops(repeats)
    print("\n| row | stops training, ms | a plain save, ms | ratio |\n| --- | --- | --- | --- |")
    print(f"| checkpoint of {size:.2f} GB | {1000 * stopped:.0f} | {1000 * plain:.0f} | {stopped / plain:.3f} |")
    whole, beside = job_costs((2, 2 + 2 * repeats), 20)
    print("\n| row | in all, s | beside its updates, s |\n| --- | --- | --- |")
    print(f"| job of 20 updates in a sweep | {whole:.2f} | {beside:.2f} |")


if __name__ == "__main__":
    main()
