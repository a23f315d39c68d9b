"""How a run keeps its checkpoints. Imports no torch."""

from dataclasses import dataclass

from lerobot.errors import ConfigError


@dataclass
class CheckpointConfig:
    """How checkpoints are written and which of them stay."""

    background: bool = True
    """Write them beside the training, which then stops only to copy what is to be written."""
    keep: int | None = None
    """The newest so many; None keeps all. `last`, `best` and the one that a run went on from are never removed."""
    best: str | None = None
    """A metric, such as eval/success_rate: `checkpoints/best` leads to the checkpoint with its best value."""
    best_is: str = "auto"
    """highest or lowest; auto is lowest where the name of the metric speaks of a loss or an error."""

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ConfigError(f"checkpoint.keep={self.keep}: type 1 or more, or null to keep all")
        if self.best_is not in ("auto", "highest", "lowest"):
            raise ConfigError(f"checkpoint.best_is={self.best_is}: type checkpoint.best_is=highest, lowest or auto")

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value of `best` is better than another; equal ones are not."""
        speaks = any(word in (self.best or "") for word in ("loss", "error"))
        return value < than if self.best_is == "lowest" or (self.best_is == "auto" and speaks) else value > than
