"""What a dataset can be told, in LeRobot's field names. Imports no torch."""

import os
from dataclasses import dataclass
from pathlib import Path

from lerobot.errors import ConfigError


@dataclass
class DatasetConfig:
    """A LeRobotDataset v3.0 and the part of it that is used."""

    repo_id: str | None = None
    """Looked up as `$HF_LEROBOT_HOME/<repo_id>` when `root` is not given."""
    root: str | None = None
    """The folder that holds `meta/`, `data/` and `videos/`."""
    episodes: list[int] | None = None
    """Episode numbers to use; None uses all."""
    use_imagenet_stats: bool = True
    """Normalise cameras by ImageNet's mean and deviation in place of the dataset's own."""
    stats: str = "auto"
    """What to normalise by. auto: with `policy.path` what the checkpoint was trained behind, else this dataset's.
    dataset: this dataset's in any case."""

    def __post_init__(self) -> None:
        if self.stats not in ("auto", "dataset"):
            raise ConfigError(f"dataset.stats={self.stats}: type auto or dataset")

    def folder(self) -> Path:
        """The folder that `root` or `repo_id` names, there or not. Raises `ConfigError` where neither is given."""
        if self.root is not None:
            return Path(self.root).expanduser()
        if self.repo_id is None:
            raise ConfigError(
                "no dataset is given: type dataset.root=<folder>, dataset.repo_id=<user/name>, or experiment=demo to "
                "record one"
            )
        home = os.environ.get("HF_LEROBOT_HOME") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "lerobot"
        return Path(home).expanduser() / self.repo_id

    def check(self) -> None:
        """Refuse a folder that is not there."""
        folder = self.folder()
        if folder.is_dir():
            return
        if self.root is not None:
            raise ConfigError(f"dataset.root={self.root} is no folder: type the folder that holds meta/ and data/")
        raise ConfigError(
            f"dataset.repo_id={self.repo_id} is not in {folder}: fetch it with `hf download --repo-type dataset "
            f"{self.repo_id} --local-dir <folder>` and type dataset.root=<folder>"
        )
