"""Tensors of which this rank has a part (DTensors), made whole and cut up again. Imports nothing that takes time."""

from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Whether the rest of `tensor` is on other ranks."""
    return hasattr(tensor, "full_tensor")  # a DTensor's, whose import takes a second


def gathered(tensor: Tensor) -> Tensor:
    """All of `tensor`. The rest of a shard is asked of the other ranks: all have to call this."""
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """`whole`, cut as `parameter` is if they have one shape. Every rank brings all of it, nothing is sent."""
    if not is_shard(parameter) or whole.shape != parameter.shape:
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    placed = whole.to(parameter.to_local().device)
    return distribute_tensor(placed, parameter.device_mesh, parameter.placements, src_data_rank=None)
