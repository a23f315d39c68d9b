"""What a command can be told. Past `parse`, nothing sees Hydra or OmegaConf. Imports no torch.

A closed group (every key is ours) is a dataclass below. An open group (policy, dataset, env, optimizer, scheduler)
names its dataclass as `_target_` in `conf/`, so that another package can bring its own.
"""

import dataclasses
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import hydra.utils
from omegaconf import DictConfig, OmegaConf

from lerobot.accelerator.config import AcceleratorConfig
from lerobot.accelerator.parallel_config import ParallelismConfig
from lerobot.checkpoint.config import CheckpointConfig
from lerobot.data.config import DatasetConfig
from lerobot.envs.config import EnvConfig
from lerobot.errors import ConfigError
from lerobot.optim import OptimizerConfig
from lerobot.policies.config import PolicyConfig
from lerobot.schedule import SchedulerConfig
from lerobot.sweep.config import SweepConfig
from lerobot.time_limit import SHORTEST_S, seconds
from lerobot.tracking.config import WandbConfig

SCHEMA_VERSION = 1
"""Of a stored run config; `lerobot.migrate` reads older ones."""
NOT_STORED = ("resume", "interrupt_after", "reset_scale", "resume_check")
"""Keys of `TrainConfig` that say how a run is started and not what it is."""
OPEN_GROUPS = {
    "policy": PolicyConfig,
    "dataset": DatasetConfig,
    "env": EnvConfig,
    "optimizer": OptimizerConfig,
    "scheduler": SchedulerConfig,
}


@dataclass
class EvalConfig:
    """Rolling a policy out in a simulator."""

    n_episodes: int = 50
    """For each task."""
    batch_size: int = 0
    """Episodes that run side by side; 0 lets the runner choose."""
    use_async_envs: bool = False
    """Simulate in processes of their own."""
    videos: Any = "auto"
    """auto records the first episodes where something can be drawn; a number must be recorded; 0 records none."""
    baselines: list[str] = field(default_factory=list)
    """Evaluated beside the policy: replay (the mean demonstration) and linear (observation to action)."""

    def __post_init__(self) -> None:
        if self.n_episodes < 1:
            raise ConfigError(f"eval.n_episodes={self.n_episodes}: type 1 or more")
        if self.batch_size < 0:
            raise ConfigError(f"eval.batch_size={self.batch_size}: type 0 (chosen for you) or more")
        if self.videos != "auto" and (
            isinstance(self.videos, bool) or not isinstance(self.videos, int) or self.videos < 0
        ):
            raise ConfigError(f"eval.videos={self.videos}: type eval.videos=auto or a number of episodes (0 for none)")
        for name in self.baselines:
            if name not in ("replay", "linear"):
                raise ConfigError(f"eval.baselines holds '{name}': type eval.baselines=[replay,linear] or fewer")


@dataclass
class DemosConfig:
    """Demonstrations to record with a simulator's scripted expert before training, if `dataset.root` is absent."""

    num_episodes: int = 50
    action_noise: float = 0.1
    """Deviation of the Gaussian noise on the executed action, in the action's own range."""
    seed: int = 100_000
    """Attempt i starts from seed + i: far from an evaluation's, so that nothing is tested on what it was shown."""

    def __post_init__(self) -> None:
        if self.num_episodes < 1:
            raise ConfigError(f"num_episodes={self.num_episodes}: type 1 or more")
        if not 0 <= self.action_noise < math.inf:
            raise ConfigError(f"action_noise={self.action_noise}: type 0 or more")


@dataclass
class TrainConfig:
    """Everything that decides what a training run does, in LeRobot's names."""

    policy: Any = None
    dataset: Any = None
    env: Any = None
    optimizer: Any = None
    scheduler: Any = None
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    tf32: bool | None = True
    eval: EvalConfig = field(default_factory=EvalConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    demos: DemosConfig | None = None
    sweep: SweepConfig = field(default_factory=SweepConfig)
    rename_map: Any = None
    """Dataset key to the key that the policy reads."""
    steps: int = 100_000
    """Attempted updates in all, those before a resume included."""
    batch_size: int = 8
    num_workers: int | None = None
    """Processes that load data. None: 4 where a camera is decoded, else 0: numbers are gathered faster than sent."""
    prefetch_factor: int = 4
    """Batches that each worker holds ready."""
    seed: int = 1000
    log_freq: int = 200
    """Updates between log rows; 0 logs at the end only. The same holds for the two below."""
    save_freq: int = 20_000
    env_eval_freq: int = 20_000
    save_checkpoint: bool = True
    time_limit: Any = None
    """Stop with a checkpoint before as much time has passed since the process began: seconds, 3h30m, 1-12:00:00."""
    picture: bool = True
    """Draw loss and success rate into `report.png` at the end."""
    job_name: str | None = None
    output_dir: str | None = None
    """The run's folder."""
    interrupt_after: int | None = None
    """Stop after this update as a signal would, and go on from the checkpoint: shows that the run can be resumed."""
    resume: str | None = None
    """A run, a checkpoints folder, a step folder, `last`, or a `train_config.json`."""
    reset_scale: bool = False
    """On resume with fp16, start anew from `init_scale`; a typed `init_scale` implies it."""
    resume_check: int | None = None
    """Train as many updates twice, once with a stop and a resume, and compare: see `debug=resume_check`."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch_size": 1, "num_workers": 0, "prefetch_factor": 1, "seed": 0, "interrupt_after": 1}
        least |= {"resume_check": 2, "log_freq": 0, "save_freq": 0, "env_eval_freq": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ConfigError(f"{name}={value}: type {smallest} or more")
        if seconds(self.time_limit) < SHORTEST_S:
            raise ConfigError(
                f"time_limit={self.time_limit}: type {SHORTEST_S:.0f} s or more, 30 s of it are for the end"
            )
        if self.checkpoint.best and not self.save_checkpoint:
            raise ConfigError(f"checkpoint.best={self.checkpoint.best} and save_checkpoint=false: leave one out")
        if self.seed >= 2**63:
            raise ConfigError(f"seed={self.seed}: type less than 2**63")
        if self.interrupt_after is not None and self.interrupt_after >= self.steps:
            raise ConfigError(f"interrupt_after={self.interrupt_after} never comes: type less than steps={self.steps}")
        if self.interrupt_after is not None and not self.save_checkpoint:
            raise ConfigError("interrupt_after goes on from a checkpoint and save_checkpoint=false: leave one out")
        if self.reset_scale and self.resume is None:
            raise ConfigError("reset_scale=true is for a run that goes on: add resume=<run>, or leave it out")


@dataclass
class EvalRunConfig:
    """Everything that decides what a stand-alone evaluation does."""

    policy: Any = None
    env: Any = None
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    tf32: bool | None = True
    eval: EvalConfig = field(default_factory=EvalConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    rename_map: Any = None
    seed: int = 1000
    job_name: str | None = None
    output_dir: str | None = None


@dataclass
class DemosDatasetConfig:
    """Where demonstrations go and how many."""

    root: str | None = None
    num_episodes: int = 50


@dataclass
class DemosRunConfig:
    """Everything that decides what a recording holds."""

    env: Any = None
    dataset: DemosDatasetConfig = field(default_factory=DemosDatasetConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    action_noise: float = 0.1
    seed: int = 100_000
    cameras: list[str] = field(default_factory=list)
    """Cameras to record, by the simulator's names."""
    image_size: int = 96
    """Height and width of a recorded frame, in pixels."""
    job_name: str | None = None
    output_dir: str | None = None


def conf_dir() -> Path:
    """The folder of config groups: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    for folder in (here / "conf", here.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise RuntimeError(f"conf/ is neither in {here} nor beside it: this installation is broken")


SCHEMAS: dict[str, type] = {"train": TrainConfig, "eval": EvalRunConfig, "demos": DemosRunConfig}


def parse(command: str, cfg: DictConfig) -> Any:
    """Turn a composed config into the command's dataclass: interpolations resolved, types checked."""
    schema = SCHEMAS[command]
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    open_names = [f.name for f in fields(schema) if f.type is Any and f.name in OPEN_GROUPS]
    opened = {name: _open(name, plain.pop(name, None)) for name in open_names}
    run = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), plain))
    for name, value in opened.items():
        setattr(run, name, value)
    if command != "demos":
        _refuse_impossible(run)
    return run


def _refuse_impossible(run: Any) -> None:
    """What no machine can do is refused before torch is imported."""
    if run.accelerator.mixed_precision == "fp16" and run.policy.device == "cpu":
        raise ConfigError(
            "precision=fp16 does not work on device=cpu: accelerate builds no loss scaler there and the run would be "
            "float32; type precision=bf16 or precision=no, or name an accelerator"
        )
    best = run.checkpoint.best if isinstance(run, TrainConfig) else None
    if best is not None and best.startswith("eval/") and run.env is None:
        raise ConfigError(f"checkpoint.best={best} is told by evaluations and env is none: add env=<simulator>")


def to_plain(run: Any) -> dict[str, Any]:
    """A run config as JSON that `--config_path=` and `resume=` read back: `parse` undone."""
    plain = {key: value for key, value in dataclasses.asdict(run).items() if key not in NOT_STORED}
    plain["schema_version"] = SCHEMA_VERSION
    for name in OPEN_GROUPS:
        value = getattr(run, name, None)
        if isinstance(value, OPEN_GROUPS[name]):
            cls = type(value)
            plain[name] = {"_target_": f"{cls.__module__}.{cls.__qualname__}", **plain[name]}
    return plain


def _open(name: str, node: dict[str, Any] | None) -> Any:
    """The dataclass that `node["_target_"]` names, type-checked against its own fields."""
    if node is None or (name == "env" and "_target_" not in node):  # below a null, other files' values are left
        return None
    target = hydra.utils.get_class(node.pop("_target_"))
    if not issubclass(target, OPEN_GROUPS[name]):
        raise ConfigError(f"{name}: {target.__name__} is no {OPEN_GROUPS[name].__name__}; derive it from that class")
    # Under its own name, so that an error names the key as it is typed.
    typed = OmegaConf.create({name: OmegaConf.structured(target)})
    for key, value in node.items():  # a mapping replaces the default one, of which a merge would keep entries
        if isinstance(value, dict) and key in typed[name]:
            typed[name][key] = {}
    opened: Any = OmegaConf.to_object(OmegaConf.merge(typed, {name: node}))
    return opened[name]


def differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key to (old, new) where two plain configs differ; a key that only one has is another version's."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new else {prefix: (old, new)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in old.keys() & new.keys():
        found |= differences(old[key], new[key], f"{prefix}.{key}" if prefix else key)
    return found
