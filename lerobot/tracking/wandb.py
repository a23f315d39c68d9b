"""Charts in wandb. A problem here is said once and never stops a run: `metrics.jsonl` has every row anyway."""

import errno
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lerobot import disk
from lerobot.tracking.config import WandbConfig
from lerobot.tracking.segments import lost_rows
from lerobot.tracking.sink import Row, Sink

log = logging.getLogger(__name__)

STEP_KEY = "train/step"
"""The x axis. wandb's own step must not go back, which a resume, an evaluation or a skipped update's row would do."""
INIT_TIMEOUT_S = 10.0
"""Waiting for a server that does not answer; `WANDB_INIT_TIMEOUT` changes it."""
FLUSH_KEY, FLUSH_S = "x_transaction_log_flush_interval", 1.0
"""Not in each wandb. How much of a run a kill takes from wandb's file; the next part of the run writes it anew."""
FINISH_TIMEOUT_S = 120.0
"""Waiting for the last uploads; what is left stays on disk for `wandb sync`."""
LONGEST_TAG = 64
UNSAVED = "failed to save record"
"""How wandb 0.31 says in its own log, and nowhere else, that its file lost a record."""


class NoCharts(Sink):
    """Drops everything, and keeps the run's id for the day wandb is on again."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id


class WandbSink(Sink):
    """One wandb run."""

    def __init__(self, run: Any, *, uploads: bool) -> None:
        self.run_id: str | None = run.id
        self.folder = Path(run.dir).parent
        """Of wandb's file and logs."""
        self._run = run
        self._uploads = uploads
        self._working = True

    def log(self, row: Row) -> None:
        """Send what is finite: one NaN would stay in wandb's minimum and maximum of the chart for good."""
        values = {key: value for key, value in row.items() if key not in ("step", "time_s") and _is_shown(value)}
        self._attempt(lambda: self._run.log({STEP_KEY: row["step"], **values}))

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Write the rows that a killed process took along; what it sent to a server is there."""

        def write() -> None:
            if self.folder.name.startswith("offline-"):
                for row in lost_rows(self.folder, self._run.id, STEP_KEY, rows):
                    self.log(row)

        self._attempt(write)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Keep the facts beside the config, below `run`."""
        self._attempt(lambda: self._run.config.update({"run": plain(facts)}, allow_val_change=True))

    def video(self, step: int, key: str, path: Path) -> None:
        """Send an mp4 as it is: encoding one from frames would need more packages."""
        import wandb

        self._attempt(lambda: self._run.log({STEP_KEY: step, key: wandb.Video(str(path), format="mp4")}))

    def checkpoint(self, step: int, folder: Path) -> None:
        """Upload the policy of a checkpoint, if the run is online and artifacts are not disabled."""
        if self._uploads:
            self._attempt(lambda: self._upload(step, folder / "pretrained_model"))

    def _upload(self, step: int, folder: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"policy-{self.run_id}", type="model", metadata={"step": step})
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact, aliases=["latest", f"step-{step}"])

    def finish(self, exit_code: int) -> None:
        """Close the run; it counts as failed unless `exit_code` is 0."""
        import wandb

        try:
            self._run.finish(exit_code=exit_code)
        except Exception as error:  # As in `_attempt`.
            self._give_up(error)
            with suppress(Exception):  # The next job of a sweep gets a service that lives.
                wandb.teardown()
        self._tell_lost_rows()

    def _tell_lost_rows(self) -> None:
        """Say what wandb keeps to its own log: that its file took no more records, as on a full disk."""
        with suppress(OSError), (self.folder / "logs" / "debug-internal.log").open(errors="replace") as lines:
            if line := next((line for line in lines if UNSAVED in line), None):
                reason = line.rstrip(' \n"}').rpartition(": ")[2]
                disk.tell(self.folder.parents[1], OSError(errno.ENOSPC, reason))

    def _attempt(self, action: Callable[[], object]) -> None:
        if not self._working:
            return
        try:
            action()
        # wandb raises whatever its service process meets (its own errors, OSError, ValueError, bare Exceptions),
        # and none of it is worth the training: the one place where everything is caught.
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._working:
            log.warning("wandb: %s; no more charts from here, metrics.jsonl goes on", _in_words(error))
        self._working = False


@contextmanager
def open_wandb(
    run_dir: Path, options: WandbConfig, *, config: Mapping[str, Any], facts: Mapping[str, Any]
) -> Iterator[NoCharts | WandbSink]:
    """One wandb run below `run_dir`, finished on exit and marked failed there if an exception passes.

    Never prompts. Online without a key or without a connection becomes offline, in one sentence.
    """
    mode, sentence = options.resolve_mode()
    if sentence:
        log.warning(sentence)
    if mode == "disabled":
        yield NoCharts(options.run_id)
        return
    # Error reports of wandb's service go to its makers, from offline runs too: off, unless the user turned them on.
    with _environment(WANDB_ERROR_REPORTING="false", WANDB_SILENT="true"):
        run_id = options.run_id or secrets.token_hex(4)
        described = {**plain(config), "run": plain(facts)}
        sink = _start(run_dir, options, mode=mode, run_id=run_id, config=described)
        exit_code = 1
        try:
            yield sink
            exit_code = 0
        finally:
            if isinstance(sink, WandbSink):
                sink.finish(exit_code)


def _start(run_dir: Path, options: WandbConfig, *, mode: str, run_id: str, config: dict) -> NoCharts | WandbSink:
    """The first of online, offline and nothing that works."""
    try:
        import wandb

        server = wandb.setup().settings.base_url
        if mode == "online":
            try:
                if wandb.login(prompt=False, verify=False):
                    run = _init(run_dir, options, mode=mode, run_id=run_id, config=config)
                    log.info("wandb: %s", run.url)
                    return WandbSink(run, uploads=not options.disable_artifact)
                log.warning("wandb: no key, so this run is logged offline; `wandb login` stores one")
            except Exception as error:  # As in WandbSink: whatever it is, the run goes on.
                log.warning("wandb: %s cannot be used (%s), so this run is logged offline", server, _in_words(error))
                wandb.teardown()  # Its service would hold the run's id as in use.
        run = _init(run_dir, options, mode="offline", run_id=run_id, config=config)
        log.info("wandb: offline, `wandb sync %s` uploads it", Path(run.dir).parent)
        return WandbSink(run, uploads=False)
    except Exception as error:
        log.warning("wandb: %s, so this run has no charts; metrics.jsonl has every row", _in_words(error))
        return NoCharts(run_id)


def _init(run_dir: Path, options: WandbConfig, *, mode: str, run_id: str, config: dict) -> Any:
    import wandb

    settings = wandb.Settings(
        mode=mode,  # type: ignore[arg-type]
        console="off",
        silent=True,
        disable_code=True,
        x_disable_stats=True,
        x_save_requirements=False,
        **({FLUSH_KEY: FLUSH_S} if FLUSH_KEY in wandb.Settings.model_fields else {}),  # type: ignore[arg-type]
        init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_TIMEOUT_S)),
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
    )
    run = wandb.init(
        dir=str(run_dir),
        id=run_id,
        resume="allow",
        reinit="create_new",  # The jobs of a sweep share a process; `wandb.run` would be the job before.
        project=options.project,
        entity=options.entity,
        name=options.name,
        group=options.group,
        job_type=options.job_type,
        notes=options.notes,
        tags=run_tags(config) if options.add_tags else None,
        config=config,
        settings=settings,
    )
    run.define_metric(STEP_KEY)
    run.define_metric("*", step_metric=STEP_KEY)
    return run


def run_tags(config: Mapping[str, Any]) -> list[str]:
    """What charts are filtered by (`policy:act`, `seed:0`, `dataset:...`, `env:...`), none longer than wandb takes."""
    paths = {"policy": ("policy", "type"), "seed": ("seed",), "dataset": ("dataset", "repo_id"), "env": ("env", "type")}
    tags = []
    for name, path in paths.items():
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            tags.append(f"{name}:{value}"[:LONGEST_TAG])
    return tags


def plain(value: Any) -> Any:
    """`value` in what strict JSON has; the rest (an Enum, a Path, infinity) in words."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _is_shown(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, bool | int | float) and math.isfinite(value))


def _in_words(error: Exception) -> str:
    """The first line of an error, or its name if it has no words."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set what the user has not set, until exit."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
