"""One process of a run that `parallel_launch` started: python -m lerobot.rank <file>."""

from lerobot.signals import leave_on_signals


def main() -> None:
    """Read the run, work on it, and leave with 0 where the first process said what became of it."""
    import logging
    import os
    import pickle
    import sys
    from pathlib import Path

    from lerobot.accelerator.parallel_config import rank_of
    from lerobot.disk import LogFile
    from lerobot.errors import ConfigError, RunError
    from lerobot.explain import sentence
    from lerobot.leader import become_rank, in_silence
    from lerobot.time_limit import COMMAND_BEGAN
    from lerobot.train import work

    become_rank()
    config, (level, places), began = pickle.loads(Path(sys.argv[1]).read_bytes())
    os.environ[COMMAND_BEGAN] = str(began)
    root = logging.getLogger()
    if rank_of():
        raise SystemExit(0 if in_silence(work, config) in ("done", "stopped") else 1)
    root.setLevel(level)
    for file, formatter in places:
        handler = logging.StreamHandler() if file is None else LogFile(file)
        handler.setFormatter(formatter)
        root.addHandler(handler)
    try:
        work(config)
    except (ConfigError, RunError) as error:
        print(f"error: {sentence(error, 'train')}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None


if __name__ == "__main__":
    with leave_on_signals():
        main()
