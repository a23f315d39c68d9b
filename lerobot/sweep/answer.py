"""What a sweep has come to: its report, and its best policy judged anew on fresh starts."""

import logging
from pathlib import Path

from lerobot.errors import ConfigError, RunError
from lerobot.report import Report, write_report
from lerobot.report.winner import Winner
from lerobot.sweep.table import UNFINISHED, states

log = logging.getLogger(__name__)


def answer(folder: Path, *, draws: bool, reevaluates: bool) -> None:
    """Write the report of the sweep in `folder` and say what follows from it; the best is judged once all jobs ended.

    What goes wrong here is said, and changes nothing about the jobs.
    """
    if all(state == "refused" for state in states(folder)):
        return
    try:
        report = write_report([folder], draws=draws)
        if _should_judge(report, folder, reevaluates=reevaluates):
            _judge(report.findings.winner)
            report = write_report([folder], draws=draws)
    except ConfigError as error:
        log.warning("no report: %s", error)
        return
    for sentence in report.findings.conclusions:
        log.info("%s", sentence)
    log.info("report: %s", report.page)


def _should_judge(report: Report, folder: Path, *, reevaluates: bool) -> bool:
    return reevaluates and report.findings.winner is not None and not {*states(folder)} & {*UNFINISHED}


def _judge(winner: Winner | None) -> None:
    """Evaluate the best policy from starts that it was not chosen by, in the sweep's folder `winner`."""
    from lerobot.command import compose, run

    assert winner is not None
    log.info("judging the best, %s, from fresh starts", winner.run.name)
    try:
        run(compose("eval", [*winner.words, "wandb=disabled", "eval.videos=0"]))
    except (ConfigError, RunError) as error:
        log.warning("the best was not judged anew: %s; type %s", error, winner.command)
