"""lerobot-report: compares runs, and says which is better or what it takes to tell."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lerobot.errors import ConfigError

DONE, REFUSED, INTERRUPTED = 0, 2, 130

EPILOG = """examples:
  lerobot-report outputs/multirun/<day>/<time>_act            a sweep; the report goes into its folder
  lerobot-report outputs/train/<day>/*_act --output compared  any runs, several sweeps
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: type lerobot-report <run or sweep folder>... [--output <folder>]")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="lerobot-report",
        description=__doc__,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="folder", help="of a run or of a sweep")
    parser.add_argument("--output", type=Path, metavar="folder", help="where the report goes; needed for several")
    return parser.parse_args(argv)


def run(argv: Sequence[str]) -> int:
    """Write the report and print it; return 0, or raise `ConfigError`."""
    typed = _parse(argv)
    from lerobot.command import refuse_two_lerobots

    refuse_two_lerobots()
    from lerobot.report.table import print_table
    from lerobot.report.write import write_report

    report = write_report(typed.folders, typed.output)
    print_table(report.findings.records)
    print("", *report.findings.sentences, "", f"report: {report.page}", f"table: {report.table}", sep="\n")  # noqa: T201
    return DONE


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    try:
        raise SystemExit(run(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None
    except ConfigError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        raise SystemExit(REFUSED) from None
