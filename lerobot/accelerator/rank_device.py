"""Which device a rank gets: of several cards of one kind, each rank of a machine its own."""

import platform

from lerobot.accelerator import device as devices
from lerobot.accelerator.device import Device
from lerobot.accelerator.parallel import World
from lerobot.errors import ConfigError


def device_of_rank(request: str | None, precision: str, world: World) -> Device:
    """The device that `request` names; of several cards, each rank of a machine takes its own."""
    machine = devices.machine()
    if world.size == 1:
        return devices.resolve(request, machine, precision)
    if request and ":" in request:
        raise ConfigError(f"device={request} is one card and there are {world.size} processes: leave out the index")
    device = devices.resolve(request, machine, precision)
    if device.type == "cpu":
        return device
    if device.index is None:
        raise ConfigError(f"{device.backend} has no several processes: type device=cpu, or parallelism.nproc=null")
    cards = machine.of(device.backend)
    chosen = cards[world.local_rank] if world.local_rank < len(cards) else cards[-1]
    # A launcher may show each rank one card alone, which then has the number 0 for all of them.
    shown = [value for name, value in sorted(machine.environment.items()) if name.endswith("_VISIBLE_DEVICES")]
    taken = world.gather((platform.node(), chosen.index, *shown))
    if len(set(taken)) < world.size:
        raise ConfigError(
            f"{world.size} processes and {len(set(taken))} cards of {device.backend}: type parallelism.nproc="
            f"{len(cards)}, or start one process a card with torchrun"
        )
    return chosen
