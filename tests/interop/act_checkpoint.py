"""ACT checkpoints cross over to LeRobot and back with equal actions: `python act_checkpoint.py <LeRobot's python>`.

The other side runs this file too (`--lerobot <folder>`), in its own environment, where `lerobot` is LeRobot.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parents[1] / "data"
TOLERANCE = 1e-5
SMALL = {
    "chunk_size": 8,
    "n_action_steps": 4,
    "dim_model": 32,
    "n_heads": 4,
    "dim_feedforward": 64,
    "n_encoder_layers": 2,
    "n_vae_encoder_layers": 1,
}
STATES = ("observation.state", "observation.environment_state")
CAMERAS = ("observation.images.corner2", "observation.images.gripperPOV")
CASES = {
    "state": ("metaworld_push_state", STATES, {"use_vae": False}),
    "vae": ("metaworld_push_state", STATES, {"feedforward_activation": "gelu"}),
    "pre_norm": ("metaworld_push_state", STATES, {"pre_norm": True, "n_decoder_layers": 2}),
    "min_max": (
        "metaworld_push_state",
        STATES,
        {"normalization_mapping": {"STATE": "QUANTILES", "ENV": "MIN_MAX", "ACTION": "MIN_MAX"}},
    ),
    "ensemble": ("metaworld_push_state", STATES, {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}),
    "cameras": ("metaworld_multi2_cam2", (*STATES, *CAMERAS), {}),
    "dilated": (
        "metaworld_multi2_cam2",
        (STATES[0], CAMERAS[0]),  # LeRobot's ACT needs a state
        {"vision_backbone": "resnet50", "replace_final_stride_with_dilation": True},
    ),
}
"""Name to dataset (for features and statistics), inputs read, and settings."""
THEIRS = {"LeRobot's state": "act_state", "LeRobot's vae": "act_vae_state"}
"""Name to a checkpoint that LeRobot has trained and written."""


def ours(peer: str) -> int:
    """Save every case, let LeRobot load it and save it again, load that, and compare. Returns the exit status."""
    worst = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        expected = {name: _save_case(folder / name, *case) for name, case in CASES.items()}
        expected |= {name: _take_case(folder / name, checkpoint) for name, checkpoint in THEIRS.items()}
        # -P and no PYTHONPATH: this project must not shadow the other package of the same name.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run([peer, "-P", __file__, "--lerobot", temporary], env=environment, stdout=sys.stderr, check=True)
        from lerobot.checkpoint.pretrained import load_policy

        for name, output in expected.items():
            theirs = load_file(folder / name / "theirs.safetensors")
            back = _act(load_policy(folder / name / "theirs"), load_file(folder / name / "observation.safetensors"))
            worst[name] = [max(float((its[key] - theirs[key]).abs().max()) for key in output) for its in (output, back)]
    print(f"{'largest difference of an action':32}{'LeRobot reads ours':>20}{'we read its':>14}")
    for name, (there, back) in worst.items():
        print(f"{name:32}{there:20.1e}{back:14.1e}")
    most = max(max(pair) for pair in worst.values())
    print(f"{'all within' if most <= TOLERANCE else 'error: not within'} {TOLERANCE:g}")
    return int(most > TOLERANCE)


def _take_case(folder: Path, checkpoint: str) -> dict[str, torch.Tensor]:
    """One of LeRobot's own checkpoints in place of one of ours; returns the actions that it gives here."""
    from lerobot.checkpoint.pretrained import load_policy

    shutil.copytree(DATA / "peer_checkpoints" / checkpoint / "pretrained_model", folder / "ours")
    policy = load_policy(folder / "ours")
    torch.manual_seed(0)
    observation = {key: torch.rand(3, *feature.shape) for key, feature in policy.inputs.items()}
    save_file(observation, folder / "observation.safetensors")
    return _act(policy, observation)


def _save_case(folder: Path, dataset: str, inputs: tuple[str, ...], settings: dict) -> dict[str, torch.Tensor]:
    """A policy with random weights in `folder/ours`, an observation beside it; returns its actions."""
    from lerobot.checkpoint.pretrained import save_pretrained
    from lerobot.features import policy_features
    from lerobot.policies.config import ACTConfig

    meta = DATA / dataset / "meta"
    features, outputs = policy_features(json.loads((meta / "info.json").read_text())["features"])
    features = {key: features[key] for key in inputs}
    stats = json.loads((meta / "stats.json").read_text())
    torch.manual_seed(0)
    policy = ACTConfig(input_features=features, output_features=outputs, **(SMALL | settings)).build(stats).eval()
    save_pretrained(folder / "ours", policy, train_config={"seed": 0})
    observation = {key: torch.rand(3, *feature.shape) for key, feature in features.items()}
    for key in set(inputs) & set(STATES):  # inside what was recorded, so constant dimensions are what they always are
        low, high = (torch.tensor(stats[key][name]) for name in ("min", "max"))
        observation[key] = low + observation[key] * (high - low)
    save_file(observation, folder / "observation.safetensors")
    return _act(policy, observation)


def _act(policy, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    chunk = policy.predict_action_chunk(observation)
    policy.reset()
    return {"chunk": chunk, "steps": torch.stack([policy.select_action(observation) for _ in range(6)])}


def theirs(folder: Path) -> None:
    """What LeRobot makes of every case: its actions, and the policy as it saves it."""
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    for case in sorted(path for path in folder.iterdir() if path.is_dir()):
        source = str(case / "ours")
        assert PreTrainedConfig.from_pretrained(source).type == "act"
        policy = ACTPolicy.from_pretrained(source, strict=True)
        before, after = make_pre_post_processors(policy.config, pretrained_path=source)
        observation = load_file(case / "observation.safetensors")
        policy.reset()
        steps = torch.stack([after(policy.select_action(before(dict(observation)))) for _ in range(6)])
        chunk = after(policy.predict_action_chunk(before(dict(observation))))
        save_file({"chunk": chunk.contiguous(), "steps": steps}, case / "theirs.safetensors")
        for part in (policy, before, after):
            part.save_pretrained(str(case / "theirs"))


if __name__ == "__main__":
    if sys.argv[1] == "--lerobot":
        theirs(Path(sys.argv[2]))
    else:
        sys.exit(ours(sys.argv[1]))
