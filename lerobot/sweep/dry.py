"""What a sweep would do: its jobs, the refusals among them and, tried out, what it would take."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lerobot.checkpoint.paths import has_checkpoints
from lerobot.errors import ConfigError
from lerobot.sweep.jobs import spelled
from lerobot.sweep.plan import Planned
from lerobot.sweep.table import state_of

DONE, FAILED, REFUSED = 0, 1, 2


def dry_run(command: str, folder: Path | None, planned: Sequence[Planned], *, goes_on: bool, estimates: bool) -> int:
    """Print the jobs of a sweep; return the status that it would leave with as far as is known. Makes no folder.

    folder: of the sweep; None for a new one. goes_on: whether an earlier pass has begun it.
    """
    if estimates and command != "train":
        raise ConfigError("sweep.estimate=true tries updates of lerobot-train: type sweep.dry_run=true")
    _say(f"{folder or 'outputs/multirun/<day>/<time>_<job_name>'}/")
    found = [_found(folder / one.job.folder) if folder and goes_on else "" for one in planned]
    _list(planned, found)
    shared = set.intersection(*(set(one.job.overrides) for one in planned)) if len(planned) > 1 else set()
    if shared:
        _say(f"all with {' '.join(spelled(word) for word in planned[0].job.overrides if word in shared)}")
    left = [one for one, state in zip(planned, found, strict=True) if state != "done"]
    able = [one for one in left if one.refusal is None]
    counts = {"done": len(planned) - len(left), "refused": len(left) - len(able)}
    _say(f"{len(planned)} jobs" + "".join(f", {n} of them {word}" for word, n in counts.items() if n))
    status = REFUSED if counts["refused"] else DONE
    if estimates and able:
        from lerobot.sweep.estimate import estimate

        print(flush=True)  # noqa: T201
        sentences, whole = estimate(able)
        for sentence in sentences:
            _say(sentence)
        return status if whole else FAILED
    return status


def _found(job: Path) -> str:
    """What would become of a job of a sweep that goes on."""
    if (state := state_of(job)) in ("done", "running"):
        return state
    return "to go on" if has_checkpoints(job) else "to run"


def _list(planned: Sequence[Planned], found: Sequence[str]) -> None:
    """A line for each job, and under it why it is refused."""
    names = max(len(one.job.folder) for one in planned)
    words = max(len(" ".join(one.job.differs)) for one in planned)
    for one, state in zip(planned, found, strict=True):
        is_refused = one.refusal is not None and state != "done"
        shown = "" if is_refused else state
        _say(f"  {one.job.folder:{names}}  {' '.join(one.job.differs):{words}}  {shown}".rstrip())
        if is_refused:
            _say(f"  {'':{names}}  refused: {one.refusal}")


def _say(line: str) -> None:
    print(line, file=sys.stdout)  # noqa: T201
