"""Turns the exceptions of Hydra and OmegaConf into one sentence that says what to type."""

import difflib
import re
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from lerobot.config import conf_dir
from lerobot.errors import ConfigError, RunError

_KINDS = {
    "Integer": "a whole number, such as 1000",
    "Float": "a number",
    "Boolean": "true or false",
    "bool": "true or false",
}


def sentence(error: Exception, command: str) -> str:
    """The one line that says what was wrong and what to type."""
    if isinstance(error, (ConfigError, RunError)):
        return " ".join(str(error).split())
    text = str(error)
    if match := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(match[1], command) or _wrong_value(error)
    if match := re.search(r"Could not find '(.+)/([^'/]+)'\s+Available options in '[^']+':\n((?:\t.*\n?)*)", text):
        options = [option for option in match[3].split() if not option.startswith("_")]
        near = (difflib.get_close_matches(match[2], options, 1) or options)[0]
        return f"{match[1]}={match[2]} is no option: type {match[1]}={near} (there are {', '.join(options)})"
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        key, _, value = match[1].partition("=")
        if key in ("dataset.episodes", "cameras", "eval.baselines"):
            return f"{match[1]} holds several values: type {key}=[{value}] for a list, or add -m to sweep over them"
        quoted = f"{key}=\\'{value}\\'"
        return f"{match[1]} holds several values: add -m to sweep over them, or quote a text with commas: {quoted}"
    if match := re.search(r"Sweeping over Hydra's configuration is not supported : '(.+)'", text):
        key, _, value = match[1].partition("=")
        if key == "hydra.sweep.dir":
            return f"output_dir={value} names several folders and a sweep has one: type one"
        return f"{match[1]} holds several values and the whole sweep has one: type one"
    if match := re.search(r"Config group override must be a string or a list. Got (\w+)", text):
        return f"a group names one of its options, not a {match[1]}: --help lists them"
    if "Unsupported item value in defaults" in text:
        return f'{text.splitlines()[0]}: quote words such as "no", "on" and "true" in a defaults list'
    return _wrong_value(error)


def _wrong_value(error: Exception) -> str:
    """What OmegaConf says of a value, in one line under the key as it is typed."""
    text = str(error.__cause__ or error)
    lines = [part.strip() for part in text.splitlines() if part.strip() and not part.strip().startswith("object_type")]
    key = next((part.removeprefix("full_key: ") for part in lines if part.startswith("full_key: ")), "")
    message = "; ".join(part for part in lines if not part.startswith("full_key: "))
    match = re.search(r"Value '(.*?)' (?:of type '\w+' )?(?:could not be converted to|is not a valid) (\w+)", message)
    if key and match and match[2] in _KINDS:
        return f"{key}={match[1]} does not fit: type {_KINDS[match[2]]}"
    if missing := re.search(r"Interpolation key '(.+?)' not found", message):
        return f"{key}: ${{{missing[1]}}} names no key: type one that --cfg job shows"
    if key and "is not Optional" in message:
        return f"{key}=null says nothing: type a value, or leave it out"
    return f"{key}: {message}" if key else message


def _unknown_key(key: str, command: str) -> str:
    if key.startswith(("hydra.sweeper.", "hydra.launcher.")):
        return _unknown_setting(key)
    keys = {folder.name for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra"}
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        keys |= set(_keys(OmegaConf.to_container(hydra.compose(command), resolve=False)))
    if key.lstrip("+~") in keys:  # it is there, and what was typed below it does not fit
        return ""
    near = difflib.get_close_matches(key.lstrip("+~"), sorted(keys), 1, cutoff=0.5)
    return f"there is no key '{key}': " + (f"type {near[0]}=..." if near else "--help lists the keys")


def _unknown_setting(key: str) -> str:
    """What to type in place of a setting that the chosen sweeper or launcher does not have."""
    group = key.split(".")[1]
    options: dict[str, list[str]] = {}
    for file in sorted((conf_dir() / "hydra" / group).glob("*.yaml")):
        for name in OmegaConf.load(file):
            options.setdefault(f"hydra.{group}.{name}", []).append(file.stem)
    if key in options:
        return f"{key} is of hydra/{group}={' or '.join(options[key])}: add that"
    near = difflib.get_close_matches(key, [name for name in options if "._" not in name], 1, cutoff=0.0)[0]
    return f"there is no key '{key}': type {near}=... (of hydra/{group}={' or '.join(options[near])})"


def _keys(node: Any, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    rows = [prefix] if prefix else []
    for key, value in node.items():
        if key != "_target_":
            rows += _keys(value, f"{prefix}.{key}" if prefix else str(key))
    return rows
