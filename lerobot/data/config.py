"""What a dataset can be told, in LeRobot's field names. Imports no torch."""

from dataclasses import dataclass


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
