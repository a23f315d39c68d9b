"""One job of a sweep in a process of its own; `isolation.run_in_process` starts it."""

import logging.config
import os
import pickle
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path

from lerobot.command import attempt, exit_status


def main() -> None:
    """Read the job from the standard input, run it, and leave with its status."""
    command, config, logging_config = pickle.load(sys.stdin.buffer)
    logging.config.dictConfig(logging_config)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    state = attempt(command, Path(config.output_dir), lambda: import_module(f"lerobot.{command}").work(config))
    raise SystemExit(exit_status([state]))


def _end_with_parent() -> None:
    """Stop as on a signal when the sweep is gone: nobody would say what became of this job."""
    while os.read(sys.stdin.fileno(), 1):  # past python's buffer, whose lock would break the end of this process
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
