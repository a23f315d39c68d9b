"""The table of bytes in `docs/distributed.md`, checked against what PyTorch's profiler and the tensors say."""

import pytest
import torch
from gloo import on_ranks
from runs import TINY

import lerobot

WORDS = [*TINY, "policy.use_vae=true", "batch_size=4", "steps=3", "log_freq=0", "save_checkpoint=false"]
FLOAT32 = 4


def counted(config):
    """On one rank: bytes held, bytes handed to collectives in the last update, parameters of root and units."""
    from torch.distributed.fsdp import FSDPModule

    from lerobot.runner import Training

    real, seen = Training.update, {}

    def local(tensors):
        tensors = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
        return sum(t.numel() * t.element_size() for t in tensors)

    def update(self, step):
        if step < 3:  # copies arrange their buckets in the second
            real(self, step)
            return
        with torch.profiler.profile(record_shapes=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            real(self, step)
        moved = {"allgather": 0, "reduce_scatter": 0, "allreduce": 0}
        previous = None
        for event in profile.events():
            if event.name == "c10d::_allgather_base_":
                moved["allgather"] += event.input_shapes[0][0]
            elif event.name == "c10d::_reduce_scatter_base_":
                moved["reduce_scatter"] += event.input_shapes[1][0]
            elif event.name == "gloo:all_reduce" and previous == "c10d::allreduce_":
                moved["allreduce"] += (
                    event.input_shapes[0][0] if event.input_shapes[0][0] > 200 else 0
                )  # no norms, no counts
            previous = event.name if event.name.startswith("c10d") else previous
        parameters = list(self.policy.parameters())
        moments = [v for entry in self.optimizer.state.values() for v in entry.values() if v.dim()]
        held = [local(parameters), local(p.grad for p in parameters), local(moments)]
        units = [m for m in self.policy.modules() if isinstance(m, FSDPModule) and m is not self.policy]
        inside = sum(p.numel() for unit in units for p in unit.parameters())
        seen.update(moved=moved, held=held, all=sum(p.numel() for p in parameters), units=inside)

    Training.update = update
    lerobot.run(config)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "replicate", "shard"), [(2, 2, 1), (4, 4, 1), (2, 1, 2), (4, 1, 4), (4, 2, 2)], ids=str
)
def test_bytes_held_and_moved_are_those_of_the_table(tmp_path, number, replicate, shard):
    words = [f"parallelism.dp_replicate={replicate}", f"parallelism.dp_shard={shard}", f"output_dir={tmp_path / 'run'}"]
    config = lerobot.compose("train", [*WORDS, *words])
    ranks = on_ranks(number, lambda _rank: counted(config))

    whole, units = FLOAT32 * ranks[0]["all"], FLOAT32 * ranks[0]["units"]
    weights, grads, moments = (sum(column) for column in zip(*(rank["held"] for rank in ranks), strict=True))
    assert (weights, grads, moments) == (whole * replicate, whole * replicate, 2 * whole * replicate)
    near = {"rel": 0.05}  # shards are padded to one length
    assert max(sum(rank["held"]) for rank in ranks) == pytest.approx(4 * whole / shard, **near)
    moved = {name: FLOAT32 * n for name, n in ranks[0]["moved"].items()}
    if shard == 1:
        assert moved == {"allgather": 0, "reduce_scatter": 0, "allreduce": whole}
        return
    assert moved["allgather"] == pytest.approx(whole + units, **near)
    assert moved["reduce_scatter"] == pytest.approx(whole, **near)
    assert moved["allreduce"] == pytest.approx(whole / shard if replicate > 1 else 0, **near)
