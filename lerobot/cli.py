"""Words to overrides: LeRobot's spelling and Hydra's, in any order, become one list that Hydra reads.

`translate` is the only place that knows both. Commands, `lerobot.compose` and the tests all go through it.
"""

import ast
import json
import re
from dataclasses import dataclass, field

from hydra._internal.utils import get_args_parser  # the one place that lists Hydra's own flags
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from lerobot.compat import GROUP_OF_TYPE, KEY_NAMES, NOT_BUILT, OPTION_NAMES, flag
from lerobot.errors import ConfigError

_PARSER = OverridesParser.create()
CLOSED_GROUPS = ("tf32", "grad_scaler", "wandb", "parallelism", "experiment", "debug")
"""Groups of which an option fills keys that stay typed one by one; the others are `OPEN_GROUPS` of the config."""
_CHOSEN = ("policy", "env", "optimizer", "scheduler", *CLOSED_GROUPS)
"""Groups whose options have other names in LeRobot, or as YAML words."""
_TF32_OPTIONS = {"enabled", "disabled", "default"}
_PRECISIONS = {
    **dict.fromkeys(("no", "none", "null", "fp32", "float32", "false"), "no"),
    "bf16": "bf16",
    "fp16": "fp16",
}
_LOOK_ONLY = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")


@dataclass
class Line:
    """A command line, taken apart."""

    flags: list[str] = field(default_factory=list)
    """Hydra's own flags with their values."""
    words: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Overrides as (prefix `+ ++ ~` or empty, key, value or None), in Hydra's names; the last of a key stands."""

    @property
    def is_multirun(self) -> bool:
        """Whether commas mean a sweep."""
        return any(flag in ("-m", "--multirun") for flag in self.flags)

    @property
    def only_looks(self) -> bool:
        """Whether the line asks to see the config, and runs nothing."""
        return any(flag.partition("=")[0] in _LOOK_ONLY for flag in self.flags)

    def get(self, key: str) -> str | None:
        """The value typed for `key`, if one was."""
        return next((value for prefix, name, value in self.words if name == key and prefix != "~"), None)

    def take(self, key: str) -> str | None:
        """The value typed for `key`, which is taken off the line."""
        value = self.get(key)
        self.words = [word for word in self.words if word[1] != key]
        return value

    def put(self, key: str, value: str, prefix: str = "") -> None:
        """Set `key`, whatever was typed for it."""
        self.words = [word for word in self.words if word[1] != key]
        self.words.append((prefix, key, value))

    def argv(self) -> list[str]:
        """What Hydra reads: its argparse wants all flags on one side of the overrides."""
        return self.flags + self.overrides()

    def overrides(self) -> list[str]:
        """The overrides in Hydra's grammar."""
        return [f"{prefix}{key}" + ("" if value is None else f"={value}") for prefix, key, value in self.words]


def translate(argv: list[str]) -> Line:
    """Take `argv` apart and put every word into Hydra's names and grammar."""
    line = Line()
    raw = _split(argv, line)
    for text in raw:
        prefix, key, value = parse_override(text)
        if value is None:
            line.words.append((prefix, key, None))
        elif (word := _word(prefix, key, value, line.is_multirun)) is not None:
            line.put(word[0], word[1], prefix)
    return line


def _hydra_flags() -> tuple[set[str], set[str]]:
    """Hydra's flags that take a value, and those that do not."""
    takes: set[str] = set()
    bare: set[str] = set()
    for action in get_args_parser()._actions:
        (bare if action.nargs == 0 else takes).update(action.option_strings)
    return takes, bare


def _split(argv: list[str], line: Line) -> list[str]:
    """Move Hydra's flags to `line.flags`; return the rest as `key=value`, dashes taken off."""
    takes, bare = _hydra_flags()
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            return words + rest
        if name in bare or (name in takes and equals):
            line.flags.append(word)
        elif name in takes:
            line.flags.append(word)
            if rest and not rest[0].startswith("-"):
                line.flags.append(rest.pop(0))
        elif name.startswith("--") and equals:
            words.append(word[2:])
        elif name.startswith("--"):
            follows = bool(rest) and not rest[0].startswith("--") and not (rest[0] in bare or rest[0] in takes)
            words.append(f"{word[2:]}={rest.pop(0) if follows and '=' not in rest[0].split('{')[0] else 'true'}")
        elif word.startswith("-"):
            raise ConfigError(f"{word} is no flag here: --help lists them, overrides are typed as key=value")
        else:
            words.append(word)
    return words


def parse_override(text: str) -> tuple[str, str, str | None]:
    """`key=value` or `~key` as a word of `Line.words`."""
    key, equals, value = text.partition("=")
    prefix = re.match(r"[+~]*", key).group()  # type: ignore[union-attr]
    if not equals and prefix != "~":
        raise ConfigError(f"'{text}' is no override: type key=value, such as steps=1000 (--help lists the keys)")
    return prefix, key[len(prefix) :], value if equals else None


def _word(prefix: str, key: str, value: str, multirun: bool) -> tuple[str, str] | None:
    """One override in Hydra's names and grammar, or None where it says what happens anyway."""
    answer = flag(key, value)
    if answer == "":
        return None
    if answer is not None:
        raise ConfigError(f"{key}={value} is not available: {answer}")
    if not prefix:
        key = GROUP_OF_TYPE.get(key, KEY_NAMES.get(key, key))
    if key in ("device", "policy.device") and "(" not in value:
        return "policy.device", _elements(value, lambda word: {"null": "auto", "None": "auto"}.get(word, word))
    if key in ("precision", "accelerator.mixed_precision") and "(" not in value:
        return "accelerator.mixed_precision", _elements(value, _precision)
    if key == "env.task" and not multirun and "," in value and not value.startswith("["):
        value = f"[{value}]"
    if key in _CHOSEN:
        value = _elements(value, lambda word: _option(key, word))
    return key, quote(key, "null" if value == "None" else value)


def _elements(value: str, rewrite) -> str:
    """Rewrite each word of a value, of a comma sweep, or inside `choice(...)`."""
    return re.sub(r"(?<![\w.'\"/:-])['\"]?([\w.:-]+)['\"]?(?![\w.'\"/(:-])", lambda match: rewrite(match[1]), value)


def _precision(word: str) -> str:
    if word not in _PRECISIONS and word.lower() != "none":
        raise ConfigError(f"precision={word} is not one of no, bf16, fp16: type precision=bf16, for example")
    return _PRECISIONS.get(word, "no")


def _option(group: str, word: str) -> str:
    if word in NOT_BUILT.get(group, ()):
        raise ConfigError(f"{group}={word} is not built in this version: --help lists the options of {group}")
    literal = word.lower().replace("none", "null") if word.lower() in ("true", "false", "null", "none") else word
    name = OPTION_NAMES.get(group, {}).get(literal, word)
    if group == "tf32" and name not in _TF32_OPTIONS:
        raise ConfigError(f"tf32={word} is not one of true, false, null: type tf32=false, for example")
    return name


def unquote(value: str) -> str:
    """The text that a quoted value stands for."""
    return value[1:-1].replace("\\'", "'") if len(value) > 1 and value[0] == value[-1] == "'" else value


def unescape(value: str) -> str:
    """An unquoted value as it is read: without the backslashes that Hydra puts before its own signs."""
    return re.sub(r"\\([\\:,=()\[\]{} ])", r"\1", value)


def quote(key: str, value: str) -> str:
    """`value` in Hydra's grammar: as it is where Hydra can read it, else as JSON or Python, else as a string."""
    try:
        _PARSER.parse_override(f"{key}={value}")
        return value
    except HydraException:
        for parse in (json.loads, ast.literal_eval):
            try:
                return grammar(parse(value))
            except (ValueError, SyntaxError):
                continue
        return grammar(value)


def grammar(value: object) -> str:
    """A Python value as Hydra's override grammar writes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(grammar, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
        return "'" + re.sub(r"(\\+)$", lambda match: match.group() * 2, escaped) + "'"
    return repr(value)
