"""What lerobot-info tells, as plain values. Asks no network and prompts for nothing."""

import importlib.metadata
import importlib.util
import netrc
import os
import platform
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lerobot import __version__
from lerobot.errors import ConfigError

if TYPE_CHECKING:
    from lerobot.accelerator.device import Device, Machine
    from lerobot.accelerator.smoke import Result

DISTRIBUTION = "lerobot-runner"
CODECS = ("h264", "hevc", "av1", "vp9")
"""What datasets are recorded with."""


def gather(machine: "Machine", dataset: dict[str, Any] | None) -> dict[str, Any]:
    """Everything that lerobot-info shows. Each device computes something, an accelerator in a process of its own."""
    from lerobot.accelerator.capabilities import BACKENDS
    from lerobot.accelerator.device import why_absent
    from lerobot.accelerator.fit import advice, variables

    devices = [_device_facts(device) for device in machine.devices]
    chosen = _best(machine, devices)
    facts = {
        "lerobot_runner": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": {
            "version": machine.torch_version,
            "build": machine.build,
            "build_version": machine.build_version or None,
            "said": machine.said or None,
        },
        "backends": {
            word: {"present": bool(machine.of(word)), "why_not": why_absent(word, machine) or None} for word in BACKENDS
        },
        "devices": devices,
        "auto": chosen["device"],
        "cards": [{**asdict(card), "has_build": card.has_build} for card in machine.cards],
        "variables": variables(machine.environment),
        "advice": advice(machine.build, machine.environment),
        "misfits": machine.misfits(),
        "video": video_facts(),
        "gl": gl_facts(),
        "wandb": wandb_facts(),
        "extras": extras(),
        "dataset": dataset,
    }
    return {**facts, "try": _line_to_try(facts, chosen)}


def _device_facts(device: "Device") -> dict[str, Any]:
    from lerobot.accelerator.smoke import check, check_apart

    can = device.can
    words = [word for word in ("no", "bf16", "fp16") if not can.why_not(word)]
    apart = device.type != "cpu"
    results = check_apart(device.torch_device, words) if apart else [check(device.torch_device, w) for w in words]
    return {
        "device": device.word,
        "backend": device.backend,
        "name": device.name,
        "memory_gb": device.memory_gb and round(device.memory_gb, 1),
        "integrated": device.integrated,
        "arch": device.arch or None,
        "driver": device.driver or None,
        **{key: value for key, value in asdict(can).items() if key != "lacks"},
        "lacks": dict(can.lacks),
        "smoke": {result.precision: _smoke_facts(result) for result in results},
    }


def _smoke_facts(result: "Result") -> dict[str, Any]:
    return {"works": not result.problem, "ms": result.ms, "problem": result.problem or None}


def works(device: dict[str, Any], precision: str) -> bool:
    """Whether the device of these facts computed correctly in a precision."""
    return device["smoke"].get(precision, {"works": False})["works"]


def _best(machine: "Machine", devices: list[dict[str, Any]]) -> dict[str, Any]:
    """What `device=auto` would take."""
    from lerobot.accelerator.device import in_order

    facts = {device["device"]: device for device in devices}
    working = [facts[device.word] for device in in_order(machine) if works(facts[device.word], "no")]
    return working[0] if working else devices[-1]


def _line_to_try(facts: dict[str, Any], device: dict[str, Any]) -> str:
    words = ["lerobot-train"]
    if facts["dataset"]:
        words.append(f"dataset.root={shlex.quote(facts['dataset']['root'])}")
    elif facts["extras"].get("metaworld", {"installed": False})["installed"]:
        words.append("experiment=demo")
    else:
        words.append("dataset.root=<folder of a LeRobotDataset>")
    if device["backend"] != "cpu":
        faster = [word for word in ("bf16", "fp16") if works(device, word)]
        words += [f"device={device['device']}", *(f"precision={word}" for word in faster[:1])]
    return " ".join(words)


def video_facts() -> dict[str, Any]:
    """The decoder of videos and what it reads."""
    try:
        import av
    except ImportError as error:
        return {"decoder": None, "codecs": [], "problem": str(error)}
    codecs = [name for name in CODECS if name in av.codecs_available]
    return {
        "decoder": f"PyAV {av.__version__}",
        "codecs": codecs,
        "problem": None if codecs else "no codec is built in",
    }


def gl_facts() -> dict[str, Any]:
    """Whether a simulator can draw here, tried in a process of its own."""
    from lerobot.envs import gl

    if importlib.util.find_spec("mujoco") is None:
        return {"backend": None, "problem": "mujoco is not installed"}
    can, found = gl.can_render()
    return {"backend": found, "problem": None} if can else {"backend": None, "problem": found}


def wandb_facts() -> dict[str, Any]:
    """Whether a key is there, and where. The key itself is neither shown nor tried."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    home = Path.home()
    files = [Path(os.environ["NETRC"])] if os.environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    key, problem = ("WANDB_API_KEY" if os.environ.get("WANDB_API_KEY") else None), None
    for file in files:
        if key is None and file.is_file():
            try:
                key = file.name if netrc.netrc(str(file)).authenticators(host) else None
            except (netrc.NetrcParseError, OSError) as error:
                problem = f"{file.name} cannot be read: {error}"
    mode = os.environ.get("WANDB_MODE")
    return {"version": _version("wandb"), "host": host, "key_from": key, "WANDB_MODE": mode, "problem": problem}


def extras() -> dict[str, dict[str, Any]]:
    """Extra to whether it is installed, and what of it is missing."""
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return {}
    found = {}
    for extra in metadata.get_all("Provides-Extra") or []:
        wanted = [line for line in metadata.get_all("Requires-Dist") or [] if f"extra == '{extra}'" in line]
        names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted]
        missing = [name for name in names if _version(name) is None]
        if extra != "dev":
            found[extra] = {"installed": not missing, "missing": missing}
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def dataset_facts(root: str) -> dict[str, Any]:
    """A dataset in a few numbers. Raises `ConfigError` where it cannot be read or lacks a file."""
    from lerobot.data.meta import load_meta, require

    meta = load_meta(root)
    videos = {file for key in meta.videos for file in meta.video_files(key, list(range(meta.num_episodes)))}
    for file in (*meta.data_files, *sorted(videos)):
        require(file, meta.root)
    cameras = set(meta.camera_keys)
    return {
        "root": str(meta.root),
        "robot_type": meta.robot_type,
        "episodes": meta.num_episodes,
        "frames": meta.num_frames,
        "fps": meta.fps,
        "minutes": round(meta.num_frames / meta.fps / 60, 2),
        "tasks": meta.tasks,
        "features": {
            key: feature["shape"]
            for key, feature in meta.features.items()
            if key not in cameras and key.startswith(("observation", "action"))
        },
        "cameras": {key: [*meta.features[key]["shape"], meta.features[key]["dtype"]] for key in meta.camera_keys},
        "data_mb": _megabytes(meta.data_files),
        "videos_mb": _megabytes(sorted(videos)),
    }


def _megabytes(files: list[Path]) -> float:
    return round(sum(file.stat().st_size for file in files) / 1e6, 2)


def unmet(words: list[str], machine: "Machine", facts: dict[str, Any]) -> list[str]:
    """A clause for each of `--require`'s words that does not hold. Precisions are asked of the devices among them."""
    named = [word for word in words if _is_device(word)]
    reasons = [reason for word in named or ["auto"] if (reason := _unmet_device(word, words, machine, facts))]
    for word in words:
        if word in ("video", "gl") and facts[word]["problem"]:
            reasons.append(f"{word} cannot be used ({facts[word]['problem']})")
        if word == "wandb" and facts["wandb"]["key_from"] is None:
            reasons.append(f"wandb has no key for {facts['wandb']['host']}: type `wandb login`")
        if word in facts["extras"] and not facts["extras"][word]["installed"]:
            missing = ", ".join(facts["extras"][word]["missing"])
            reasons.append(f"{word} lacks {missing}: `uv pip install '{DISTRIBUTION}[{word}]'`")
    return reasons


def _is_device(word: str) -> bool:
    from lerobot.accelerator.capabilities import BACKENDS

    return word.partition(":")[0] in BACKENDS


def _unmet_device(word: str, words: list[str], machine: "Machine", facts: dict[str, Any]) -> str:
    """Why the device `word` is absent, broken, or unable to compute in the precisions among `words`."""
    from lerobot.accelerator.device import resolve
    from lerobot.accelerator.precision import check_precision

    smoke = {device["device"]: device["smoke"] for device in facts["devices"]}
    # What was computed before is not computed again in this process, which a broken driver would end.
    machine = replace(machine, problem_of=lambda device, precision: smoke[device.word][precision]["problem"] or "")
    try:
        device = resolve(facts["auto"] if word == "auto" else word, machine)
        for precision in ("bf16", "fp16"):
            if precision in words:
                check_precision(precision, device)
                resolve(device.word, machine, precision)
    except ConfigError as error:
        return str(error)
    if "tf32" in words and not device.can.tf32:
        return f"{device.word} ({device.name}) has no TF32: {device.can.lacks['tf32']}"
    return ""
