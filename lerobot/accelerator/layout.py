"""How the processes of a run hold one policy: alone, a copy each (DDP), or in shards (FSDP2, HSDP)."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lerobot.accelerator.grad_scaler import agreed
from lerobot.accelerator.parallel import World
from lerobot.accelerator.parallel_config import ParallelismConfig
from lerobot.accelerator.shards import gathered
from lerobot.accelerator.smoke import DTYPES
from lerobot.errors import ConfigError, RunError
from lerobot.policies.base import Policy

_SAME_BUFFERS: Any = {  # those of a policy do not change: nothing to send in every update
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}


class Layout:
    """The policy of a run in one process, whole."""

    name = "single"
    replicate = shard = 1

    def fitted(self, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        """The scaler that accelerate built, or one like it that fits these gradients."""
        return scaler

    def prepare(self, accelerator: Accelerator, policy: Policy) -> nn.Module:
        """The policy on its device, as the module to call in training."""
        return accelerator.prepare_model(policy, device_placement=True)

    def check_gradients(self, policy: Policy) -> None:
        """Refuse, after the first backward pass, parameters that the layout cannot have without a gradient."""

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: between ranks gradients are reduced in the `last` one."""
        return nullcontext()

    @contextmanager
    def whole(self, policy: Policy) -> Iterator[Policy]:
        """A policy with all weights, to be used by this rank without the others until exit. All ranks enter."""
        yield policy

    def facts(self) -> dict[str, Any]:
        """For `run.json`."""
        return {"parallelism": self.name, "dp_replicate": self.replicate, "dp_shard": self.shard}


class Replicated(Layout):
    """A copy on each rank; gradients are averaged during the backward pass."""

    name = "ddp"

    def __init__(self, settings: ParallelismConfig, replicate: int) -> None:
        self._settings = settings
        self.replicate = replicate
        self._finds_unused = False

    def prepare(self, accelerator: Accelerator, policy: Policy) -> nn.Module:
        """See `Layout`."""
        asked = self._settings.find_unused_parameters
        self._finds_unused = policy.has_unused_parameters if asked is None else asked
        model = accelerator.prepare_model(policy, device_placement=True, evaluation_mode=True)  # without its own copies
        return DistributedDataParallel(
            model, find_unused_parameters=self._finds_unused, gradient_as_bucket_view=True, **_SAME_BUFFERS
        )

    def check_gradients(self, policy: Policy) -> None:
        """See `Layout`."""
        names = [name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None]
        if names and not self._finds_unused:
            raise RunError(
                f"{len(names)} parameters get no gradient ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}), "
                "for which copies of a policy wait in vain: type parallelism.find_unused_parameters=true"
            )

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `Layout`."""
        assert isinstance(model, DistributedDataParallel)
        return nullcontext() if last else model.no_sync()


class Sharded(Layout):
    """Parameters, gradients and moments in float32 shards; a unit is gathered while it computes.

    Gradients are reduced in float32 whatever the precision. `fully_shard` is called here and not by accelerate, which
    leaves it out on the processor without a word, and wraps by the names of classes.
    """

    name = "fsdp2"

    def __init__(self, settings: ParallelismConfig, replicate: int, shard: int, precision: str) -> None:
        self._settings = settings
        self.replicate, self.shard = replicate, shard
        self.name = "hsdp" if replicate > 1 else "fsdp2"
        self._low = None if precision == "no" else DTYPES[precision]
        self._shell: Policy | None = None

    def fitted(self, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        """See `Layout`."""
        return agreed(scaler)

    def prepare(self, accelerator: Accelerator, policy: Policy) -> nn.Module:
        """See `Layout`."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if odd := [name for name, parameter in policy.named_parameters() if parameter.dim() == 0]:
            raise ConfigError(
                f"{', '.join(odd)} cannot be sharded, being one number without a dimension: "
                "type parallelism=ddp, or give the parameter the shape (1,)"
            )
        device = accelerator.device
        policy.to(device)
        self._shell = _hollow(copy.deepcopy(policy))
        axes = ("dp_replicate", "dp_shard")
        mesh: Any = init_device_mesh(device.type, (self.replicate, self.shard), mesh_dim_names=axes)
        mesh = mesh if self.replicate > 1 else mesh["dp_shard"]
        low = MixedPrecisionPolicy(param_dtype=self._low, reduce_dtype=torch.float32)
        for unit in self._units(policy):
            fully_shard(unit, mesh=mesh, mp_policy=low)
        # What comes in is in robot units, which a cast would round.
        root = MixedPrecisionPolicy(param_dtype=self._low, reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(policy, mesh=mesh, mp_policy=root)
        return policy

    def _units(self, policy: Policy) -> list[nn.Module]:
        """Modules of the classes asked for, innermost first."""
        asked = self._settings.shard_units
        names = list(policy.shard_units) if asked is None else asked
        holds = [module for module in policy.modules() if next(module.parameters(), None) is not None]
        there = [module for module in holds if module is not policy]
        computes = [module for module in there if type(module).forward is not nn.Module.forward]
        classes = {type(module).__name__ for module in computes if next(module.children(), None) is not None}
        if asked is not None and (unknown := sorted(set(asked) - classes)):
            raise ConfigError(
                f"parallelism.shard_units={asked}: the policy has no {', '.join(unknown)}, type some of "
                f"{', '.join(sorted(classes))}"
            )
        return [module for module in reversed(there) if type(module).__name__ in names]

    def gradients(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See `Layout`."""
        model.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    @contextmanager
    def whole(self, policy: Policy) -> Iterator[Policy]:
        """See `Layout`. The weights are there twice until exit: all of them beside the shard."""
        assert self._shell is not None
        state = {name: gathered(value.detach()) for name, value in policy.state_dict().items()}
        self._shell.load_state_dict(state, assign=True)
        self._shell.train(policy.training)
        try:
            yield self._shell
        finally:
            _hollow(self._shell)


def _hollow(policy: Policy) -> Policy:
    """Let go of the parameters' memory; what is in `state_dict` only as a buffer stays."""
    for module in policy.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
    return policy


def choose(settings: ParallelismConfig, world: World, precision: str) -> Layout:
    """The layout that `settings` ask for in this world. Raises `ConfigError`."""
    replicate, shard = settings.shape(world.size)
    if shard > 1:
        return Sharded(settings, replicate, shard, precision)
    return Replicated(settings, replicate) if replicate > 1 else Layout()
