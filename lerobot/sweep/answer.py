"""What a sweep has come to: its report, and its best policy judged anew on fresh starts."""

import logging
import shlex
import shutil
from pathlib import Path

from lerobot.errors import ConfigError, RunError
from lerobot.report import write_report
from lerobot.report.folders import WINNER_FOLDER
from lerobot.report.record import is_run
from lerobot.report.winner import Winner
from lerobot.sweep.jobs import read_sweep
from lerobot.sweep.table import UNFINISHED, state_of, states

log = logging.getLogger(__name__)


def answer(folder: Path, *, draws: bool, reevaluates: bool) -> list[str]:
    """Write the report of the sweep in `folder` and say what follows from it; the best is judged once all jobs ended.

    Returns the states of the jobs, and `stopped` besides where a signal ended the judging. What else goes wrong here is
    said, and changes nothing about the jobs.
    """
    ended = states(folder)
    if all(state == "refused" for state in ended):
        return ended
    try:
        report = write_report([folder], draws=draws)
        winner = report.findings.winner
        if reevaluates and winner is not None and not {*ended} & {*UNFINISHED} and _is_unjudged(folder / WINNER_FOLDER):
            ended.append(_judge(folder, winner))
            report = write_report([folder], draws=draws)
    except ConfigError as error:
        log.warning("no report: %s", error)
        return ended
    for sentence in report.findings.conclusions:
        log.info("%s", sentence)
    log.info("report: %s", report.page)
    return ended


def _is_unjudged(place: Path) -> bool:
    """Whether the best was not judged to the end. What a kill or a refusal left of an earlier try is removed."""
    state = state_of(place)
    if state in ("done", "running"):
        return False
    if is_run(place):
        shutil.rmtree(place)
    return True


def _judge(folder: Path, winner: Winner) -> str:
    """Evaluate the best policy from starts that it was not chosen by, in the sweep's folder `winner`; how it ended."""
    from lerobot.command import compose, run

    log.info("judging the best, %s, from fresh starts", winner.run.name)
    try:
        place = run(compose("eval", [*winner.words, "wandb=disabled", "eval.videos=0"]))
    except (ConfigError, RunError) as error:
        log.warning("the best was not judged anew: %s; type %s", error, winner.command)
        return "done"
    if state_of(place) == "stopped":
        sweep = read_sweep(folder)
        command = f"lerobot-{sweep.command}" if sweep else "lerobot-train"
        log.info("judge the best anew: %s -m sweep.resume=%s", command, shlex.quote(str(folder)))
        return "stopped"
    return "done"
