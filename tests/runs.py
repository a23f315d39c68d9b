"""What the tests of whole runs share: the recorded data, a policy small enough for them, and how to read a run."""

from pathlib import Path

from safetensors.torch import load_file

DATA = Path(__file__).parent / "data"
TINY_POLICY = [
    "policy.chunk_size=8",
    "policy.n_action_steps=4",
    "policy.dim_model=32",
    "policy.n_heads=2",
    "policy.dim_feedforward=64",
    "policy.n_encoder_layers=1",
    "policy.use_vae=false",
    "policy.optimizer_lr=1e-3",
]
TINY = [
    *TINY_POLICY,
    f"dataset.root={DATA / 'metaworld_push_state'}",
    "steps=6",
    "batch_size=8",
    "num_workers=0",
    "log_freq=1",
    "save_freq=0",
    "device=cpu",
    "wandb=disabled",
    "picture=false",
]


def weights(run):
    """The weights of the newest checkpoint."""
    return load_file(Path(run) / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def losses(rows):
    """Step to loss."""
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
