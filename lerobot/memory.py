"""What a run says when memory runs out: how much it held, how large everything is, and what to type instead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lerobot.accelerator.memory import is_out_of_memory
from lerobot.accelerator.stack import Stack
from lerobot.checkpoint.paths import CHECKPOINTS_FOLDER, LAST
from lerobot.config import EvalRunConfig, TrainConfig
from lerobot.envs.rollout import AUTO_BATCH
from lerobot.errors import RunError
from lerobot.micro_batch import MicroBatches
from lerobot.policies.base import Policy

_WIDTHS = ("chunk_size", "dim_model", "dim_feedforward")
"""What a network's size grows with, in the names of the policies that have it."""


@dataclass
class Held:
    """What takes memory in a run, filled in as it is built."""

    config: TrainConfig | EvalRunConfig
    run_dir: Path
    policy: Policy | None = None
    micro_batches: MicroBatches | None = None
    written: Callable[[], None] = lambda: None
    """Waits for the checkpoint that is being written."""


@contextmanager
def explained(stack: Stack, held: Held, *, evaluating: bool = False) -> Iterator[None]:
    """Raise `RunError` with the one sentence where memory runs out inside."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        sizes, remedies = _evaluation(stack, held) if evaluating else _training(stack, held)
        if isinstance(error, MemoryError) and not evaluating:  # of python's, so of the data rather than the network
            remedies = ["num_workers=<fewer>", "prefetch_factor=<fewer>", *remedies]
        held.written()
        device = " ".join(filter(None, (stack.device.word, stack.device.name and f"({stack.device.name})")))
        raise RunError(
            f"out of memory on {device} in {'an evaluation' if evaluating else 'training'}: "
            f"the run held {stack.peak_memory_gb():.2f} GiB at most, with {', '.join([*sizes, *_policy(held)])}: "
            f"type {' or '.join(remedies[:3])}{_kept(held.run_dir)}"
        ) from error


def _training(stack: Stack, held: Held) -> tuple[list[str], list[str]]:
    """The sizes of a run, and what would help, what changes least first."""
    config = held.config
    assert isinstance(config, TrainConfig)
    widths = {name: getattr(config.policy, name) for name in _WIDTHS if hasattr(config.policy, name)}
    narrower = [f"policy.{name}=<less> in a new run" for name in widths]
    if held.micro_batches is None:  # not even the network, or its optimizer, has room
        return [f"policy.{name}={value}" for name, value in widths.items()], narrower[::-1]
    size, remedies = held.micro_batches.size, _more_room(stack)
    if size > 1:
        smaller = "auto" if config.accelerator.micro_batch is None and stack.can_run_out else size // 2
        remedies = [f"accelerator.micro_batch={smaller}", *remedies, f"batch_size={size // 2} in a new run"]
    sizes = [f"batch_size={config.batch_size} in micro-batches of {size}", f"precision={stack.precision}"]
    return sizes, remedies + narrower


def _evaluation(stack: Stack, held: Held) -> tuple[list[str], list[str]]:
    settings = held.config.eval
    size = min(settings.n_episodes, settings.batch_size or AUTO_BATCH)
    remedies = [f"eval.batch_size={size // 2}"] if size > 1 else []
    elsewhere = (
        "device=cpu" if isinstance(held.config, EvalRunConfig) else "`lerobot-eval policy.path=<run> device=cpu`"
    )
    remedies += [*_more_room(stack), "eval.videos=0", elsewhere]
    return [f"eval.batch_size={size}", f"precision={stack.precision}"], remedies


def _more_room(stack: Stack) -> list[str]:
    """The precisions in which the same batch takes less."""
    words = [word for word in ("bf16", "fp16") if stack.precision == "no" and not stack.device.can.why_not(word)]
    return [f"precision={word}" for word in words[:1]]


def _policy(held: Held) -> list[str]:
    """What one sample holds, and the size of the network."""
    if held.policy is None:
        return []
    chunk = len(held.policy.config.action_delta_indices or [])
    shapes = {key: feature.shape for key, feature in held.policy.inputs.items()}
    shapes |= {key: [chunk, *feature.shape] for key, feature in held.policy.outputs.items()}
    parameters = sum(parameter.numel() for parameter in held.policy.parameters())
    return [*(f"{key} {'x'.join(map(str, shape))}" for key, shape in shapes.items()), f"{parameters:,} parameters"]


def _kept(run_dir: Path) -> str:
    last = run_dir / CHECKPOINTS_FOLDER / LAST
    if not last.exists():
        return ""
    return f"; checkpoint {last.resolve().name} stays as it is, resume={run_dir} goes on from it"
