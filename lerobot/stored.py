"""Runs and policies that exist already, as the base of a new command line. Imports no torch.

`resume=` and `--config_path=` put a stored run config in place of `conf/<command>.yaml`; `policy.path=` puts a stored
policy config in place of `conf/policy/<type>.yaml`. What is typed then applies on top, and is checked, as on any line.
"""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.utils import get_class

from lerobot.checkpoint import paths
from lerobot.cli import Line, grammar, translate, unquote
from lerobot.config import (
    OPEN_GROUPS,
    SCHEMAS,
    AcceleratorConfig,
    EvalConfig,
    TrainConfig,
    conf_dir,
    differences,
    to_plain,
)
from lerobot.errors import ConfigError
from lerobot.tracking.config import WandbConfig

log = logging.getLogger(__name__)

AUTO = "auto"
CONFIG_FILE = paths.TRAIN_CONFIG_FILE
_NOT_OURS = (
    *("image_transforms", "video_backend", "peft", "job", "checkpoint_path", "output_dir", "resume"),
    *("features", "features_map", "observation_width", "observation_height"),  # of env
)
"""What LeRobot's stored configs hold whether or not it was asked for, and what does not change a run here."""
_MAY_CHANGE = re.compile(
    r"policy\.(device|optimizer_lr|optimizer_lr_backbone)|dataset\.root|optimizer\.(lr|fused)|tf32|wandb\..*|eval\..*|steps"
    r"|accelerator\.(mixed_precision|grad_scaler\..*|skip_nonfinite|num_threads|cudnn_deterministic)"
    r"|log_freq|save_freq|env_eval_freq|save_checkpoint|num_workers|prefetch_factor|picture"
)
_NOT_THE_RUN = re.compile(r"resume|output_dir|interrupt_after|job_name|demos(\..*)?|policy\.pretrained_(path|revision)")
"""Settings that say how a run is started, not what it is."""


def rebase(command: str, line: Line) -> str:
    """Rewrite `line` so that it applies to what it names; return the name of the primary config."""
    name = command
    if command == "train":
        resume, config_path = line.take("resume"), line.take("config_path")
        if resume == AUTO:
            if (step_folder := _newest(line)) is not None:
                _go_on(step_folder, line)  # with the words of the first time, which `check_resumed` compares
            else:
                line.put("resume", AUTO)  # no checkpoint yet: from the start, in the same folder
        elif (step_folder := _resumed(resume, config_path, line)) is not None:
            stored = _read(step_folder / paths.PRETRAINED_FOLDER / CONFIG_FILE)
            if not _is_ours(stored):
                weights = step_folder / paths.PRETRAINED_FOLDER
                raise ConfigError(f"{step_folder} is LeRobot's own: start a new run with policy.path={weights}")
            _go_on(step_folder, line)
            name = _store("resumed", stored, line)
        elif config_path is not None:
            name = _rerun(unquote(config_path), line)
    elif line.take("config_path") is not None:
        raise ConfigError(f"lerobot-{command} takes no config_path: type policy.path=<run> and env=<simulator>")
    if (path := line.take("policy.path")) is not None:
        _use_policy(path, line)
    return name


def _resumed(resume: str | None, config_path: str | None, line: Line) -> Path | None:
    """The step folder that the line goes on from, if it does."""
    if resume is None or resume.lower() in ("false", "null"):
        return None
    if line.is_multirun:
        raise ConfigError("resume goes on with one run: leave out -m")
    if resume.lower() == "true":
        if config_path is None:
            raise ConfigError("resume=true does not say which run: type resume=<run folder>")
        resume = config_path
    if line.only_looks and not Path(unquote(resume)).exists():
        return None
    return _step_folder(unquote(resume))


def _newest(line: Line) -> Path | None:
    """For resume=auto: the step folder of the newest checkpoint in `output_dir`, if there is one."""
    folder = line.get("output_dir")
    if folder is None or line.is_multirun:
        raise ConfigError("resume=auto goes on in output_dir: type output_dir=<folder> too, and no -m")
    run = Path(unquote(folder))
    return _step_folder(str(run)) if paths.has_checkpoints(run) else None


def _step_folder(path: str) -> Path:
    folder = paths.find_pretrained(path).parent
    if not (folder / "training_state").is_dir() or not (folder / paths.PRETRAINED_FOLDER / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{path} holds a policy and no training state: start a new run from it with policy.path={path}"
        )
    return folder


def _go_on(step_folder: Path, line: Line) -> None:
    """Point `line` at the folder of the run that goes on."""
    run = step_folder.parent.parent
    asked = line.take("output_dir") or line.take("hydra.run.dir")
    if asked is not None and Path(unquote(asked)).resolve() != run.resolve():
        raise ConfigError(f"output_dir={asked} is not the folder of the run that goes on: leave it out")
    if (rate := line.get("policy.optimizer_lr")) is not None:
        line.put("optimizer.lr", rate)  # the stored one is a number, not the policy's preset
    line.put("hydra.run.dir", grammar(str(run)))
    line.put("hydra.output_subdir", f".hydra.{len(list(run.glob('.hydra*')))}")
    line.put("resume", grammar(str(step_folder)))


def check_resumed(config: Any) -> None:
    """Refuse a resumed run that is another run than the stored one, and take from that what is not typed but found."""
    if getattr(config, "resume", None) in (None, AUTO):
        return
    folder = Path(config.resume) / paths.PRETRAINED_FOLDER
    stored = _read(folder / CONFIG_FILE)
    before = paths.read_policy_config(folder)
    config.policy.input_features = config.policy.input_features or before.input_features
    config.policy.output_features = config.policy.output_features or before.output_features
    config.wandb.run_id = config.wandb.run_id or stored["wandb"].get("run_id")
    for key, (old, new) in changes(stored, config).items():
        if not _MAY_CHANGE.fullmatch(key):
            old, new = (value["type"] if isinstance(value, dict) and "type" in value else value for value in (old, new))
            raise ConfigError(
                f"{key}={new} cannot change when a run goes on (it was {old}): leave it out, or start a new run with "
                f"policy.path={folder}"
            )


def changes(stored: dict[str, Any], config: Any) -> dict[str, tuple[Any, Any]]:
    """What differs between a stored run config and this one, but for how it is started: dotted key to (old, new)."""
    found = differences(stored, to_plain(config))
    return {key: found[key] for key in sorted(found) if not _NOT_THE_RUN.fullmatch(key)}


def _rerun(path: str, line: Line) -> str:
    if line.only_looks and not Path(path).exists():
        return "train"
    file = Path(path)
    if not file.is_file():
        file = paths.find_pretrained(path) / CONFIG_FILE
    stored = _read(file)
    if not _is_ours(stored):  # written by LeRobot: its words, read as if typed first
        typed = line.words
        line.words = translate([f"{key}={value}" for key, value in _flat(stored)]).words
        for prefix, key, value in typed:
            line.put(key, value or "", prefix)
        return "train"
    return _store("rerun", stored, line)


def _read(file: Path) -> dict[str, Any]:
    stored = paths.read_json(file)
    if not isinstance(stored.get("policy"), dict):
        raise ConfigError(f"{file} holds no run's config: name a run, or its {CONFIG_FILE}")
    return _known(stored, file) if _is_ours(stored) else stored


def _is_ours(stored: dict[str, Any]) -> bool:
    return "_target_" in stored["policy"]


def _known(stored: dict[str, Any], file: Path) -> dict[str, Any]:
    """`stored` without the keys that this version does not have, which are named."""
    kept, unknown = {}, []
    for key, value in stored.items():
        if key not in {field.name for field in dataclasses.fields(TrainConfig)}:
            unknown.append(key)
        elif isinstance(value, dict) and (fields := _fields(key, value)):
            unknown += [f"{key}.{name}" for name in value if name not in fields]
            kept[key] = {name: item for name, item in value.items() if name in fields}
        else:
            kept[key] = value
    if unknown:
        log.warning("%s: unknown keys have no effect: %s", file, ", ".join(unknown))
    return kept


def _fields(key: str, value: dict[str, Any]) -> set[str]:
    """The keys that a node may have; empty where it is free."""
    closed = {"accelerator": AcceleratorConfig, "eval": EvalConfig, "wandb": WandbConfig}
    cls = get_class(value["_target_"]) if "_target_" in value else closed.get(key)
    return set() if cls is None else {"_target_", *(field.name for field in dataclasses.fields(cls))}


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
    groups = [
        word for word in line.words if word[1] in (*OPEN_GROUPS, "tf32", "grad_scaler", "wandb", "experiment", "debug")
    ]
    stored = {key: value for key, value in stored.items() if key not in ("output_dir", "resume", "interrupt_after")}
    for _, group, _ in groups:
        if group in OPEN_GROUPS:  # another choice replaces the stored one, it does not mix with it
            stored.pop(group, None)
    line.words = [word for word in line.words if word not in groups]
    store = ConfigStore.instance()
    store.store(name=f"_{name}_values", node=stored, package="_global_")
    chosen = [{group: value} for _, group, value in groups]
    defaults = ["train_schema", {"hydra": "train"}, f"_{name}_values", *chosen, "_self_"]
    store.store(name=f"_{name}", node={"defaults": defaults})
    return f"_{name}"


def _use_policy(value: str, line: Line) -> None:
    """Make each checkpoint in `value` (a sweep has several) an option of the policy group."""
    options = []
    for number, path in enumerate(unquote(value).split(",") if line.is_multirun else [unquote(value)]):
        if line.only_looks and not Path(path).exists():
            line.put("policy.pretrained_path", grammar(path))
            return
        folder = paths.find_pretrained(path)
        config = paths.read_policy_config(folder)
        config.pretrained_path = str(folder)
        node = {"_target_": f"{type(config).__module__}.{type(config).__qualname__}", **dataclasses.asdict(config)}
        options.append(f"_from_checkpoint_{number}")
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
    # Ours have the names of the launchers that they wrap, whose nodes Hydra would take for schemas of the files.
    for file in (conf_dir() / "hydra" / "launcher").glob("*.yaml"):
        store.repo["hydra"]["launcher"].pop(file.name, None)
