"""The last lines of a run: its picture, and what to type next."""

import json
import logging
import shlex
from pathlib import Path

from lerobot.checkpoint.paths import CHECKPOINTS_FOLDER
from lerobot.config import TrainConfig
from lerobot.disk import spared
from lerobot.report.plot import plot_run
from lerobot.status import Final
from lerobot.tracking.jsonl import METRICS_FILE, read_metrics

log = logging.getLogger(__name__)

PICTURE_FILE = "report.png"
BASELINES_FILE = "baselines.json"


def close(config: TrainConfig, run_dir: Path, final: Final) -> None:
    """Draw the run if it is to be drawn, and say where it is and how to go on with it."""
    log.info("run: %s", run_dir)
    if config.picture and any("train/loss" in row for row in read_metrics(run_dir / METRICS_FILE)):
        with spared(run_dir):
            plot_run(run_dir, run_dir / PICTURE_FILE, baselines=_baselines(run_dir))
            log.info("picture: %s", run_dir / PICTURE_FILE)
    if videos := sorted((run_dir / "eval").glob("*/*.mp4")):
        log.info("video: %s", videos[-1])
    if not (run_dir / CHECKPOINTS_FOLDER).exists():
        return
    path = shlex.quote(str(run_dir))
    if final.state == "stopped":
        log.info("go on with it: lerobot-train resume=%s", path)
    elif config.env is not None:
        env = config.env
        words = f"env={env.type} env.task={','.join(env.tasks)} env.episode_length={env.episode_length}"
        log.info("evaluate it again: lerobot-eval policy.path=%s %s", path, words)
    else:
        log.info("train it longer: lerobot-train resume=%s steps=%d", path, 2 * (final.step or config.steps))
    if config.demos is not None:
        log.info("train on your own demonstrations: lerobot-train dataset.root=<folder of a LeRobotDataset v3.0>")


def _baselines(run_dir: Path) -> dict[str, float]:
    file = run_dir / "eval" / BASELINES_FILE
    if not file.is_file():
        return {}
    return {name: row["eval/success_rate"] for name, row in json.loads(file.read_text()).items()}
