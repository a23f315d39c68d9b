"""Runs and policies that exist already, as the base of a new command line. Imports no torch.

`resume=` and `--config_path=` put a stored run config in place of `conf/<command>.yaml`; `policy.path=` puts a stored
policy config in place of `conf/policy/<type>.yaml`. What is typed then applies on top, and is checked, as on any line.
"""

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from lerobot.accelerator.config import AUTO
from lerobot.checkpoint import hub, paths
from lerobot.cli import CLOSED_GROUPS, Line, grammar, parse_override, translate, unquote
from lerobot.config import NOT_STORED, OPEN_GROUPS, SCHEMA_VERSION, SCHEMAS, conf_dir
from lerobot.errors import ConfigError
from lerobot.foreign import is_setting, refuse_strange_code
from lerobot.migrate import current, is_ours, read_run
from lerobot.resume_rules import INIT_SCALE

log = logging.getLogger(__name__)

CONFIG_FILE = paths.TRAIN_CONFIG_FILE
CHECKPOINT_OPTION = "_from_checkpoint_"
"""Begins the names of the policy group's options that stand for checkpoints."""
UNUSABLE: dict[str, tuple[str, ConfigError]] = {}
"""Options of the line at hand whose checkpoint cannot be used: what was typed for it, and why not."""
_NOT_OURS = (
    *("image_transforms", "video_backend", "peft", "job", "checkpoint_path", "output_dir", "resume"),
    *("features", "features_map", "observation_width", "observation_height"),  # of env
)
"""What LeRobot's stored configs hold whether or not it was asked for, and what does not change a run here."""
_NOT_REPEATED = re.compile(r"hydra[./](mode|run|sweep|sweeper|launcher|job_num|output_subdir)\b.*")
"""Hydra's own settings that say where the first run was, and among which others."""
_YES_NO = ("true", "false", "null", "none")


def rebase(command: str, line: Line) -> str:
    """Rewrite `line` so that it applies to what it names; return the name of the primary config."""
    name = command
    if command == "train":
        name = _rebase_run(line)
    elif line.take("config_path") is not None:
        raise ConfigError(f"lerobot-{command} takes no config_path: type policy.path=<run> and env=<simulator>")
    elif several := [key for _, key, _ in line.words if key.startswith("parallelism")]:
        raise ConfigError(f"lerobot-{command} works in one process: leave out {several[0]}")
    if line.get("policy.path") is not None and name == "_resumed":
        raise ConfigError("policy.path starts a new run and resume goes on with one: leave one out")
    if (path := line.take("policy.path")) is not None:
        _use_policy(path, line)
    elif name == command and line.get("policy.pretrained_path") is None and line.get("policy.pretrained_revision"):
        raise ConfigError("policy.pretrained_revision pins a Hub repo and none is named: add policy.path=<user>/<name>")
    return name


def _rebase_run(line: Line) -> str:
    """Rewrite `line` for the run that it goes on with or repeats, if it does; return the primary config's name."""
    resume, config_path = line.take("resume"), line.take("config_path")
    if config_path is not None and not unquote(config_path).strip():
        raise ConfigError("config_path= names no run: type config_path=<run>, or leave it out")
    if resume == AUTO:
        if (step_folder := _newest(line)) is not None:
            _go_on(step_folder, line)  # with the words of the first time, which `check_resumed` compares
        else:
            line.put("resume", AUTO)  # no checkpoint yet: from the start, in the same folder
        return "train" if config_path is None else _rerun(unquote(config_path), line)
    if config_path is not None and resume is not None and resume.lower() not in _YES_NO:
        raise ConfigError(f"config_path={config_path} and resume={resume} name two runs: leave one out")
    if (step_folder := _resumed(resume, config_path, line)) is not None:
        stored = read_run(step_folder / paths.PRETRAINED_FOLDER / CONFIG_FILE)
        if not is_ours(stored):
            weights = step_folder / paths.PRETRAINED_FOLDER
            raise ConfigError(f"{step_folder} is LeRobot's own: start a new run with policy.path={weights}")
        if _types_init_scale(line):  # also the one that is stored: it is typed again
            line.put("reset_scale", "true")
        _repeat_hydra_settings(step_folder / paths.PRETRAINED_FOLDER / CONFIG_FILE, line)
        _go_on(step_folder, line)
        return _store("resumed", stored, line)
    return "train" if config_path is None else _rerun(unquote(config_path), line)


def _resumed(resume: str | None, config_path: str | None, line: Line) -> Path | None:
    """The step folder that the line goes on from, if it does."""
    if resume is None or resume.lower() in _YES_NO[1:]:
        return None
    if not unquote(resume).strip():
        raise ConfigError("resume= names no run: type resume=<run folder>, or leave it out for a new one")
    if line.is_multirun:
        raise ConfigError(
            "resume goes on with one run: leave out -m, or type -m sweep.resume=<its folder> to go on with a sweep"
        )
    if resume.lower() == "true":
        if config_path is None:
            raise ConfigError("resume=true does not say which run: type resume=<run folder>")
        resume = config_path
    if line.only_looks and not Path(unquote(resume)).exists():
        return None
    return paths.find_to_go_on(unquote(resume))


def _newest(line: Line) -> Path | None:
    """For resume=auto: the step folder of the newest checkpoint in `output_dir`, if there is one."""
    folder = line.get("output_dir")
    if folder is None or line.is_multirun:
        raise ConfigError("resume=auto goes on in output_dir: type output_dir=<folder> too, and no -m")
    run = Path(unquote(folder)).expanduser()
    return paths.find_to_go_on(str(run)) if paths.has_checkpoints(run) else None


def _go_on(step_folder: Path, line: Line) -> None:
    """Point `line` at the folder of the run that goes on."""
    run = step_folder.parent.parent
    if step_folder.parent.name != paths.CHECKPOINTS_FOLDER:
        raise ConfigError(
            f"{step_folder} is in no run's {paths.CHECKPOINTS_FOLDER} folder: start a new run from its weights with "
            f"policy.path={step_folder}"
        )
    if "${" in str(run):
        raise ConfigError(f"{run} has ${{ in its name, which is a reference in a config: rename the folder")
    asked = line.take("output_dir") or line.take("hydra.run.dir")
    if asked is not None and Path(unquote(asked)).expanduser().resolve() != run.resolve():
        raise ConfigError(f"output_dir={asked} is not the folder of the run that goes on: leave it out")
    if not line.only_looks and not os.access(run, os.W_OK):
        raise ConfigError(f"{run} cannot be written to: copy the run to where it can be, and resume it there")
    if (rate := line.get("policy.optimizer_lr")) is not None and line.get("optimizer.lr") is None:
        line.put("optimizer.lr", rate)  # the stored one is a number, not the policy's preset
    line.put("hydra.run.dir", grammar(str(run)))
    line.put("hydra.output_subdir", f".hydra.{len(list(run.glob('.hydra*')))}")
    line.put("resume", grammar(str(step_folder)))


def _types_init_scale(line: Line) -> bool:
    """Whether the line says where the loss scale starts: by its key, in a mapping, or by an option that has it."""
    if line.get(INIT_SCALE) is not None:
        return True
    if "init_scale" in (line.get("accelerator.grad_scaler") or line.get("accelerator") or ""):
        return True
    option = line.get("grad_scaler")
    file = conf_dir() / "grad_scaler" / f"{option}.yaml"
    return option is not None and (not file.is_file() or "init_scale" in OmegaConf.load(file))


def _repeat_hydra_settings(file: Path, line: Line) -> None:
    """Type again what was typed for Hydra itself when the run that `file` is in was started: logging, search path."""
    found = [folder / ".hydra" / "hydra.yaml" for folder in file.resolve().parents[:4]]
    settings = next((place for place in found if place.is_file()), None)
    words = OmegaConf.select(OmegaConf.load(settings), "hydra.overrides.hydra") if settings else ()
    if words is None:
        raise ConfigError(f"{settings} is torn: remove it to go on without what was typed for Hydra itself")
    for word in words:
        prefix, key, value = parse_override(word)
        if not _NOT_REPEATED.fullmatch(key) and not any(typed[1] == key for typed in line.words):
            line.words.append((prefix, key, value))


def _rerun(path: str, line: Line) -> str:
    if line.only_looks and not Path(path).exists():
        return "train"
    file, stored = _run_config(Path(path))
    if not is_ours(stored):  # written by LeRobot: its words, read as if typed first
        typed = line.words
        rows = _flat(stored)
        if unknown := [key for key, value in rows if not is_setting(key, value)]:
            log.warning("%s: unknown keys have no effect: %s", file, ", ".join(unknown))
        line.words = translate([f"{key}={value}" for key, value in rows if key not in unknown]).words
        for prefix, key, value in typed:
            line.put(key, value or "", prefix)
        return "train"
    _repeat_hydra_settings(file, line)
    stored["wandb"] = {**stored["wandb"], "run_id": None}  # its charts are its own
    return _store("rerun", stored, line)


def _run_config(path: Path) -> tuple[Path, dict[str, Any]]:
    """The file that holds the config of the run at `path`, and what it holds.

    That of the newest checkpoint, or, where none is or it is named, the one that Hydra composed at the start.
    """
    composed = path if path.suffix in (".yaml", ".yml") else path / ".hydra" / "config.yaml"
    if composed.is_file() and (composed == path or not paths.has_checkpoints(path)):
        plain: Any = OmegaConf.to_container(OmegaConf.load(composed), resolve=False)
        if not isinstance(plain, dict) or not isinstance(plain.get("policy"), dict) or not is_ours(plain):
            raise ConfigError(f"{composed} holds no run's config: name a run, or its {CONFIG_FILE}")
        return composed, current({**plain, "schema_version": SCHEMA_VERSION}, composed)
    file = path if path.is_file() else paths.find_pretrained(path) / CONFIG_FILE
    return file, read_run(file)


def _flat(node: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested config as (dotted key, typed value); what is null says nothing."""
    rows: list[tuple[str, str]] = []
    for key, value in node.items():
        if key in _NOT_OURS or value is None or value == {}:
            continue
        whole = key in ("input_features", "output_features", "normalization_mapping", "rename_map")
        if isinstance(value, dict) and not whole:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append(
                (f"{prefix}{key}", grammar(value) if isinstance(value, (dict, list, str, bool)) else str(value))
            )
    return rows


def _store(name: str, stored: dict[str, Any], line: Line) -> str:
    """Register `stored` as a primary config with the typed group choices on top of it; return its name."""
    groups = [word for word in line.words if word[1] in (*OPEN_GROUPS, *CLOSED_GROUPS)]
    stored = {key: value for key, value in stored.items() if key not in ("output_dir", *NOT_STORED)}
    for _, group, _ in groups:
        if group in OPEN_GROUPS:  # another choice replaces the stored one, it does not mix with it
            stored.pop(group, None)
    refuse_strange_code(stored)
    line.words = [word for word in line.words if word not in groups]
    store = ConfigStore.instance()
    store.store(name=f"_{name}_values", node=stored, package="_global_")
    chosen = [{group: value} for _, group, value in groups]
    defaults = ["train_schema", {"hydra": "train"}, f"_{name}_values", *chosen, "_self_"]
    store.store(name=f"_{name}", node={"defaults": defaults})
    return f"_{name}"


def _use_policy(value: str, line: Line) -> None:
    """Make each checkpoint in `value` (a sweep has several) an option of the policy group."""
    options, revision = [], line.take("policy.pretrained_revision")
    revision = None if revision in (None, "null", "None") else unquote(revision)
    typed = unquote(value).split(",") if line.is_multirun else [unquote(value)]
    UNUSABLE.clear()
    for number, path in enumerate(typed):
        repo = hub.named_repo(path, revision)
        if revision is not None and repo is None:
            raise ConfigError(
                f"policy.pretrained_revision={revision} is one of a Hub repo and {path} is none: leave it out"
            )
        if line.only_looks and not Path(path).exists():
            line.put("policy.pretrained_path", grammar(repo[0] if repo else path))
            line.put("policy.pretrained_revision", "null" if repo is None or repo[1] is None else grammar(repo[1]))
            return
        options.append(f"{CHECKPOINT_OPTION}{number}")
        try:
            folder, commit = hub.find_policy(path, revision)
            if "${" in str(folder):
                raise ConfigError(f"{folder} has ${{ in its name, which is a reference in a config: rename the folder")
        except ConfigError as error:
            UNUSABLE[options[-1]] = path, error
            if len(UNUSABLE) == len(typed) or line.get("hydra/sweeper") is not None:
                raise next(iter(UNUSABLE.values()))[1] from None
            continue  # one job of the sweep is refused
        config = paths.read_policy_config(folder)
        config.pretrained_path, config.pretrained_revision = repo[0] if repo else str(folder), commit
        # To upload is up to the launch, as the device is: LeRobot's checkpoints name where theirs went.
        config.push_to_hub, config.repo_id, config.private, config.tags, config.license = False, None, None, None, None
        node = {"_target_": f"{type(config).__module__}.{type(config).__qualname__}", **dataclasses.asdict(config)}
        ConfigStore.instance().store(group="policy", name=options[-1], node=node)
    if (choice := line.take("policy")) is not None and choice != "act":  # LeRobot's users type the type too
        raise ConfigError(f"policy={choice} and policy.path={value} name two policies: leave one out")
    line.put("policy", ",".join(options))


def register_schemas() -> None:
    """Tell Hydra the types of every key, once."""
    store = ConfigStore.instance()
    for command, schema in SCHEMAS.items():
        store.store(name=f"{command}_schema", node=schema)
    Plugins.instance()  # finds the installed ones
    forget_launcher_schemas()


def forget_launcher_schemas() -> None:
    """Ours have the names of the launchers that they wrap, whose nodes Hydra would take for schemas of our files."""
    for file in (conf_dir() / "hydra" / "launcher").glob("*.yaml"):
        ConfigStore.instance().repo["hydra"]["launcher"].pop(file.name, None)
