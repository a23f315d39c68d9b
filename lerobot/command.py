"""Runs a command: Hydra composes, the task works, and whatever goes wrong leaves as one sentence and a status."""

import copy
import errno
import importlib
import importlib.metadata
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lerobot import disk
from lerobot.accelerator.parallel_config import is_rank, rank_of
from lerobot.claim import OccupiedError, make_folder, refuse_held, refuse_occupied
from lerobot.cli import Line, grammar, translate, unquote
from lerobot.config import SCHEMAS, conf_dir, parse
from lerobot.errors import ConfigError, RunError
from lerobot.explain import sentence
from lerobot.leader import follow, leading
from lerobot.resume_rules import check_resumed
from lerobot.signals import INTERRUPTED, STOPPED
from lerobot.status import now, read_status, write_status
from lerobot.stored import rebase, register_schemas
from lerobot.sweep import typed
from lerobot.sweep.halt import go_on, halted
from lerobot.sweep.isolation import fresh, run_in_process
from lerobot.sweep.table import NOT_RUN, Ending, states

log = logging.getLogger(__name__)

DONE, FAILED, REFUSED = 0, 1, 2


def _read(command: str, argv: Sequence[str]) -> Line:
    refuse_two_lerobots()
    register_schemas()
    OmegaConf.register_new_resolver("new_folder", _new_folder, replace=True, use_cache=True)
    line = translate(list(argv))
    typed.check(line)
    typed.recall(command, line)
    return line


def _prepare(command: str, line: Line) -> str:
    """Make `line` what Hydra reads; return the name of the primary config."""
    name = rebase(command, line)
    _place(line)
    if line.is_multirun:
        typed.loosen(line)
    return name


def refuse_two_lerobots() -> None:
    """Stop where the neighbour's distribution is installed too: nobody knows which of the two is imported."""
    try:
        version = importlib.metadata.version("lerobot")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"the distribution lerobot {version} is installed beside lerobot-runner and both are imported as `lerobot`: "
        "`pip uninstall lerobot lerobot-runner`, then install the one that you want"
    )


def _place(line: Line) -> None:
    """Turn output_dir into Hydra's own folder setting, and refuse a folder that holds a run."""
    setting = "hydra.sweep.dir" if line.is_multirun else "hydra.run.dir"
    folder, typed = line.take("output_dir"), line.get(setting)
    if line.is_multirun and line.only_looks:
        raise ConfigError("--cfg, --info and --help show one job: leave out -m")
    if folder is None or folder in ("null", "None"):
        return
    if typed is not None and typed != folder:
        raise ConfigError(f"output_dir={folder} and {setting}={typed} name two folders: type one of them")
    if not unquote(folder).strip():
        raise ConfigError("output_dir= names no folder: type one, or leave it out for a new one in outputs/")
    plain = Path(unquote(folder)).expanduser()  # a shell leaves it alone behind a `--key=`
    line.put(setting, grammar(str(plain)) if unquote(folder).startswith("~") else folder)
    if line.only_looks or line.is_multirun or "${" in folder:  # a sweep looks itself whether it goes on there
        return
    if line.get("resume") is None:
        refuse_held(plain)
        refuse_occupied(plain)
    make_folder(plain)


def _new_folder(path: str) -> str:
    """A folder that no other run has, made now: `path`, or `path-2` and so on where that exists."""
    for number in range(1, 10_000):
        folder = Path(path if number == 1 else f"{path}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made ({error.strerror}): type output_dir=<folder>") from error
        return str(folder)
    raise ConfigError(f"{path} and its 10,000 successors exist: clean up outputs/")


def compose(command: str, overrides: Sequence[str] = ()) -> Any:
    """The typed config that `lerobot-<command> <overrides>` would run, for a notebook or a test."""
    with _composing(command):
        line = _read(command, overrides)
        name = _prepare(command, line)
        folder = unquote(line.take("hydra.run.dir") or "") or None
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = _checked(command, hydra.compose(name, line.overrides()))
    if folder is not None:
        config.output_dir = folder
    return config


@contextmanager
def _composing(command: str) -> Iterator[None]:
    """Hydra's and OmegaConf's many exceptions become one `ConfigError`."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        if not _is_refusal(error):
            raise
        raise ConfigError(sentence(error, command)) from error
    finally:
        GlobalHydra.instance().clear()


def main(command: str, work: Callable[[Any], str]) -> None:
    """Run `lerobot-<command>` with the words of this process and leave with its status.

    `work` takes the typed config, runs it in `config.output_dir` and returns the final state of `status.json`.
    """
    with _full_errors() as wants_traceback:
        try:
            raise SystemExit(_run(command, work))
        except KeyboardInterrupt:  # before a run could catch it, or the second one
            print("error: interrupted", file=sys.stderr)  # noqa: T201
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(DONE) from None
        except (ConfigError, RunError, HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            if wants_traceback or not (isinstance(error, RunError) or _is_refusal(error)):
                raise
            print(f"error: {sentence(error, command)}", file=sys.stderr)  # noqa: T201
            raise SystemExit(FAILED if isinstance(error, RunError) else REFUSED) from None
        except OSError as error:  # what a run writes is spared; this is before it began, or a folder of a sweep
            if wants_traceback or error.errno not in (*disk.FAULTS, errno.ENAMETOOLONG):
                raise
            named, place = error.errno == errno.ENAMETOOLONG, str(error.filename or "a disk")
            said = f"{place} cannot be written to ({error.strerror}): make room, then type the line again"
            said = f"{place[:40]}... is too long for a name: type a shorter one" if named else said
            print(f"error: {said}", file=sys.stderr)  # noqa: T201
            raise SystemExit(REFUSED if named else FAILED) from None


@contextmanager
def _full_errors() -> Iterator[bool]:
    """Let Hydra's exceptions through, so that the sentence is ours; says whether the user asked for them whole."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield before == "1"
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        os.environ.update({} if before is None else {"HYDRA_FULL_ERROR": before})


def _is_refusal(error: Exception) -> bool:
    """Whether the user can do something about it. A bool in a defaults list makes Hydra raise a plain ValueError."""
    own = isinstance(error, (ConfigError, HydraException, OmegaConfBaseException, YAMLError))
    return own or "in defaults" in str(error) or "Config group override" in str(error)


def _run(command: str, work: Callable[[Any], str]) -> int:
    if not is_rank():
        return _lead(command, work)
    if command != "train":
        size = os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"WORLD_SIZE={size} asks for several processes and lerobot-{command} works in one: leave it out"
        )
    if rank_of() > 0:
        return exit_status([follow(work)])
    with leading() as share:
        return _lead(command, lambda config: work(share(config)))


def _lead(command: str, work: Callable[[Any], str]) -> int:
    """Compose what the words of this process say, and run it."""
    line = _read(command, sys.argv[1:])
    if line.is_multirun and is_rank():
        raise ConfigError("a sweep starts its jobs itself: type parallelism.nproc=<n> with -m, without torchrun")
    ended: list[str] = []
    errors: list[Exception] = []

    def task(cfg: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            _job(command, cfg, folder, work)
            return
        try:
            ended.append(_single(command, cfg, folder, work))
        except Exception as error:  # raised again below, past Hydra, which would print a line of its own
            errors.append(error)

    with typed.typed(command, line):
        name = _prepare(command, line)
        sys.argv[1:] = line.argv()
        Ending.folder = None
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=name)(task)()
    if line.is_multirun and Ending.folder is not None:  # jobs may have run in other processes
        if command != "demos":
            from lerobot.sweep.answer import answer

            return exit_status(answer(Ending.folder, draws=Ending.draws, reevaluates=Ending.reevaluates))
        return exit_status(states(Ending.folder))
    if errors:
        raise errors[0]
    return exit_status(ended)


def _single(command: str, cfg: DictConfig, folder: Path, work: Callable[[Any], str]) -> str:
    """Run one composed config in its folder; a refusal is written there."""
    try:
        if HydraConfig.get().mode == RunMode.RUN and HydraConfig.get().sweeper.get("params"):
            raise ConfigError("this experiment is a sweep, it sets hydra.sweeper.params: add -m")
        config = _checked(command, cfg)
        config.output_dir = str(folder)
        return work(config)
    except (ConfigError, OmegaConfBaseException) as error:
        # What became of a run that is there already stays as it is.
        if not isinstance(error, OccupiedError) and read_status(folder).get("state") in (None, "refused"):
            write_status(folder, state="refused", error=sentence(error, command))
        raise


def _job(command: str, cfg: DictConfig, folder: Path, work: Callable[[Any], str]) -> str:
    """Run one job of a sweep in its folder, or go on with it."""
    hydra_config = HydraConfig.get()

    def begin() -> str:
        config = parse(command, cfg)
        config.output_dir = str(folder)
        if (why := halted(folder.parent, config.sweep.on_error)) is not None:
            if read_status(folder).get("state") != "stopped":
                write_status(folder, state=NOT_RUN, error=why)
            return NOT_RUN
        go_on(config, folder)
        check_resumed(config)
        if command != "demos":
            config.wandb.group = config.wandb.group or Path(hydra_config.sweep.dir).name
            config.wandb.name = config.wandb.name or folder.name
        if config.sweep.isolate == "process":
            logs: Any = OmegaConf.to_container(hydra_config.job_logging, resolve=True)
            return run_in_process(command, config, logs)
        with fresh():
            return work(config)

    return attempt(command, folder, begin)


def attempt(command: str, folder: Path, job: Callable[[], str]) -> str:
    """The final state of one job among many: a refusal or a failure goes into its log and status and stops no other."""
    try:
        return job()
    except (ConfigError, OmegaConfBaseException) as error:
        state, said = "refused", sentence(error, command)
        log.error("%s refused: %s", folder.name, said)
    except Exception as error:
        state, said = "failed", " ".join(str(error).split()) or type(error).__name__
        log.error("job %s failed: %s", folder.name, error, exc_info=not isinstance(error, RunError))
    if state == "refused" or read_status(folder).get("state") in (None, NOT_RUN):  # else the run has said so itself
        write_status(folder, state=state, error=said, ended=now())
    return state


def _checked(command: str, cfg: DictConfig) -> Any:
    config = parse(command, cfg)
    check_resumed(config)
    return config


def exit_status(ended: Sequence[str]) -> int:
    """One status for one or many jobs: failed before stopped before refused before done."""
    ranks = ({"failed", "missing", "running"}, FAILED), ({"stopped", NOT_RUN}, STOPPED), ({"refused"}, REFUSED)
    return next((status for found, status in ranks if found & set(ended)), DONE)


def run(config: Any) -> Path:
    """Do what the command of `config` does, in `config.output_dir` or a new folder; return the folder."""
    command = next(name for name, schema in SCHEMAS.items() if isinstance(config, schema))
    config = copy.deepcopy(config)
    if config.output_dir is None:
        parent = "recordings" if command == "demos" else command
        name = f"_{config.job_name}" if config.job_name else ""
        config.output_dir = _new_folder(f"outputs/{parent}/{time.strftime('%Y-%m-%d/%H-%M-%S')}{name}")
    importlib.import_module(f"lerobot.{command}").work(config)
    return Path(config.output_dir)
