"""lerobot-info: what this machine, this PyTorch build and a dataset can do."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lerobot.accelerator.capabilities import BACKENDS
from lerobot.errors import ConfigError

PRECISIONS = ("bf16", "fp16", "tf32")
TOOLS = ("video", "gl", "wandb")
DONE, REFUSED, INTERRUPTED = 0, 2, 130

EPILOG = """examples:
  lerobot-info                          a table of devices, precisions and tools
  lerobot-info --require cuda,bf16      exit status 2 and one line unless the card computes in bfloat16
  lerobot-info dataset=my_demos         what is in a dataset, too
  lerobot-info --report                 what to send in from hardware that docs/accelerators.md lacks
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: type lerobot-info --help")


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, str | None]:
    parser = _Parser(
        prog="lerobot-info",
        description=__doc__,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="dataset=<folder>", help="a LeRobotDataset v3.0 to look at")
    parser.add_argument("--json", action="store_true", help="everything that is known, as one JSON object")
    parser.add_argument("--report", action="store_true", help="only a block of Markdown to send in")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="X",
        help=f"exit status 2 unless X can be used: {', '.join((*BACKENDS, *PRECISIONS, *TOOLS))}, an index such as "
        "cuda:1, or an extra such as metaworld; several with commas",
    )
    typed, unknown = parser.parse_known_args(argv)
    root = None
    for word in (*typed.words, *unknown):
        key, _, value = word.partition("=")
        if key.lstrip("-") not in ("dataset", "dataset.root") or not value:
            raise ConfigError(
                f"lerobot-info does not know '{word}': type --json, --report, --require <what> or dataset=<folder>"
            )
        root = value
    typed.require = [word.strip().lower() for words in typed.require for word in words.split(",") if word.strip()]
    return typed, root


def _check_words(words: Sequence[str]) -> None:
    from lerobot.info_facts import extras

    known = (*BACKENDS, *PRECISIONS, *TOOLS, *extras())
    for word in words:
        if word.partition(":")[0] not in known:
            raise ConfigError(f"--require {word} is not one of {', '.join(known)}")


def run(argv: Sequence[str]) -> int:
    """Print what was asked for; return 0, or raise `ConfigError` for what cannot be used."""
    typed, root = _parse(argv)
    from lerobot.info_facts import dataset_facts, gather, unmet

    _check_words(typed.require)
    dataset = dataset_facts(root) if root else None
    from lerobot.command import refuse_two_lerobots

    refuse_two_lerobots()
    from lerobot.accelerator import device

    machine = device.machine()
    facts = gather(machine, dataset)
    print(_text(facts, typed))  # noqa: T201
    if reasons := unmet(typed.require, machine, facts):
        raise ConfigError("; ".join(reasons))
    return DONE


def _text(facts: dict[str, Any], typed: argparse.Namespace) -> str:
    if typed.json:
        return json.dumps(facts, indent=2, allow_nan=False)
    from lerobot.info_table import block, table

    return block(facts) if typed.report else table(facts)


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    try:
        raise SystemExit(run(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    except ConfigError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        raise SystemExit(REFUSED) from None


if __name__ == "__main__":
    main()
