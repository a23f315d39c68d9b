"""LeRobot's flags that this program answers in its own way: other names, accepted values, refusals."""

import re

GROUP_OF_TYPE = {
    "policy.type": "policy",
    "env.type": "env",
    "optimizer.type": "optimizer",
    "scheduler.type": "scheduler",
}
"""LeRobot's choice keys. Left as values they would change a word and keep another choice's fields."""

KEY_NAMES = {"cudnn_deterministic": "accelerator.cudnn_deterministic"}
"""LeRobot's key to ours, where they differ."""

OPTION_NAMES = {
    "scheduler": {
        "diffuser": "cosine",
        "cosine_annealing_with_warmup": "cosine",
        "null": "constant",
    },
    "env": {"null": "none"},
    "experiment": {"null": "none"},
    "debug": {"null": "none"},
    "tf32": {"true": "enabled", "false": "disabled", "null": "default"},
}
"""LeRobot's or YAML's word for an option to the name of its file in `conf/`."""

OTHER_POLICIES = [
    "diffusion",
    "eo1",
    "evo1",
    "groot",
    "fastwam",
    "gaussian_actor",
    "lingbot_va",
    "molmoact2",
    "multi_task_dit",
    "pi0",
    "pi0_fast",
    "pi05",
    "smolvla",
    "tdmpc",
    "vla_jepa",
    "vqbet",
    "wall_x",
    "xvla",
    "rtc",
    "sac",
]
OTHER_ENVS = [
    "aloha",
    "gym",
    "gym_manipulator",
    "libero",
    "robocasa",
    "vlabench",
    "isaaclab_arena",
    "libero_plus",
    "robotwin",
    "robomme",
    "xarm",
]
OTHER_SCHEDULERS = ["vqbet", "cosine_decay_with_warmup"]
OTHER_OPTIMIZERS = ["xvla-adamw", "multi_adam"]

NOT_BUILT = {
    "policy": OTHER_POLICIES,
    "env": OTHER_ENVS,
    "scheduler": OTHER_SCHEDULERS,
    "optimizer": OTHER_OPTIMIZERS,
}
"""Options that LeRobot has and this version does not: refused by name."""

_NULL = ("null", "none", "")

FLAGS: list[tuple[str, tuple[str, ...], str]] = [
    (r"dataset\.repo_type", ("dataset",), "only datasets in a folder are read, leave it out"),
    (r"dataset\.revision", _NULL, "datasets are read from a folder, leave it out"),
    (r"dataset\.image_transforms(\..*)?", ("false", *_NULL), "image augmentation is not built yet, leave it out"),
    (r"dataset\.video_backend", ("pyav",), "video is decoded by PyAV, leave it out"),
    (r"dataset\.return_uint8", ("true", "false"), ""),
    (r"dataset\.depth_output_unit", ("mm",), "depth maps are not read, leave it out"),
    (r"dataset\.streaming", ("false",), "datasets are read from a folder, leave it out"),
    (r"dataset\.eval_split", ("0", "0.0"), "held-out episodes are not built yet, use dataset.episodes=[...]"),
    (r"eval_steps|max_eval_samples", ("0",), "held-out episodes are not built yet, leave it out"),
    (r"persistent_workers", ("true",), "workers always persist, leave it out"),
    (r"dataloader_multiprocessing_context", ("spawn",), "workers are always spawned, leave it out"),
    (r"tolerance_s", ("1e-4", "0.0001"), "frames are found by their number, leave it out"),
    (
        r"use_policy_training_preset",
        ("true",),
        "type the optimizer.* and scheduler.* that you want, they win over presets",
    ),
    (
        r"save_checkpoint_to_hub",
        ("false",),
        "the last checkpoint is uploaded with policy.push_to_hub=true, use `hf upload` for others",
    ),
    (r"scheduler\.name", ("cosine",), "type scheduler=cosine or scheduler=constant"),
    (r"image_transforms", _NULL, "image augmentation is not built yet, leave it out"),
    (r"reward_model(\..*)?", _NULL, "reward models are not built, leave it out"),
    (r"peft(\..*)?", _NULL, "adapters are not built, leave it out"),
    (r"policy\.use_peft", ("false",), "adapters are not built, leave it out"),
    (r"policy\.use_amp", ("false",), "type precision=bf16 or precision=fp16 in its place"),
    (r"job(\..*)?", _NULL, "jobs run on this machine, leave it out"),
    (r"sample_weighting(\..*)?", _NULL, "sample weighting is not built, leave it out"),
    (r"trackio(\..*)?", _NULL, "runs are logged to wandb and metrics.jsonl, leave it out"),
    (r"eval\.recording(_.*)?", ("false", *_NULL), "recording evaluations is not built, use lerobot-demos"),
    (r"env\.(features|features_map)(\..*)?", _NULL, "a simulator yields what the policy reads, leave it out"),
    (r"env\.disable_env_checker", ("true",), "simulators run without gymnasium's checks, leave it out"),
    (r"env\.max_parallel_tasks", ("1",), "tasks run one after the other, leave it out"),
    (r"env\.multitask_eval", ("true",), "several tasks are typed as env.task=[a,b], leave it out"),
    (r"env\.render_mode", ("rgb_array",), "videos are chosen with eval.videos, leave it out"),
    (r"trust_remote_code", ("false",), "no code is loaded from the Hub, leave it out"),
]
"""Pattern of a key, values that are what happens anyway (dropped), and the sentence that refuses any other."""


def flag(key: str, value: str) -> str | None:
    """What becomes of a LeRobot flag without a key here: None (not one), "" (dropped) or why it is refused."""
    for pattern, accepted, reason in FLAGS:
        if re.fullmatch(pattern, key):
            return "" if value.strip("'\"").lower() in accepted else reason
    return None
