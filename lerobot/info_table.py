"""How lerobot-info shows what it found: a table for eyes, and a block of Markdown to send in."""

import sys
from io import StringIO
from shutil import get_terminal_size
from typing import Any

PRECISIONS = {"no": "float32", "bf16": "bf16", "fp16": "fp16"}


def table(facts: dict[str, Any]) -> str:
    """What a person reads in ten seconds; the last line is a command to try."""
    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    width = max(100, get_terminal_size((120, 24)).columns)
    console = Console(file=out, width=width, highlight=False, force_terminal=sys.stdout.isatty())
    console.print(Text(f"{_title(facts)}\n"), soft_wrap=True)
    console.print(_devices(facts))
    console.print()
    for name, value in _rows(facts):
        console.print(Text(f" {name:<10} {value}"), soft_wrap=True)
    for sentence in _problems(facts):
        console.print(Text(f" ! {sentence}"), soft_wrap=True)
    console.print(Text(f"\nto try: {facts['try']}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _title(facts: dict[str, Any]) -> str:
    return f"lerobot-runner {facts['lerobot_runner']}, {_torch(facts)}, Python {facts['python']}, {facts['platform']}"


def _torch(facts: dict[str, Any]) -> str:
    torch = facts["torch"]
    return f"PyTorch {torch['version']} for {torch['build']} {torch['build_version'] or ''}".rstrip()


def _devices(facts: dict[str, Any]) -> Any:
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 1), header_style="bold")  # a frame would need more than ASCII
    for name in ("device", "name", "memory", *PRECISIONS.values(), "TF32"):
        grid.add_column(name, overflow="fold", no_wrap=name != "name")
    for device in facts["devices"]:
        memory = f"{device['memory_gb']:.0f} GiB" if device["memory_gb"] else ""
        cells = [*(_cell(device, precision) for precision in PRECISIONS), "yes" if device["tf32"] else "no"]
        grid.add_row(device["device"], device["name"], memory, *map(_colored, cells))
    return grid


def _cell(device: dict[str, Any], precision: str) -> str:
    smoke = device["smoke"].get(precision)
    if smoke is None:
        return "emulated" if precision == "bf16" and device["bf16"] == "emulated" else "no"
    word = "slow" if precision == "bf16" and device["bf16"] == "software" else "ok"
    return f"{word} {smoke['ms']:.1f} ms" if smoke["works"] else "FAILS"


def _colored(cell: str) -> Any:
    from rich.text import Text

    style = {"ok": "green", "yes": "green", "FAILS": "bold red"}.get(cell.partition(" ")[0], "dim")
    return Text(cell, style=style)


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    absent: dict[str, list[str]] = {}
    for backend, found in facts["backends"].items():
        if not found["present"]:
            absent.setdefault(found["why_not"], []).append(backend)
    rows = [
        ("auto", f"device=auto takes {facts['auto']}"),
        ("absent", "; ".join(f"{', '.join(names)}: {why}" for why, names in absent.items())),
    ]
    rows += [("card", _card(card)) for card in facts["cards"]]
    if facts["variables"]:
        rows.append(("variables", " ".join(f"{name}={value}" for name, value in facts["variables"].items())))
    video, gl, wandb = facts["video"], facts["gl"], facts["wandb"]
    rows += [
        ("video", video["problem"] or f"{video['decoder']}: {', '.join(video['codecs'])}"),
        ("GL", gl["backend"] or f"nothing can be drawn: {gl['problem']}"),
        ("wandb", _wandb(wandb)),
        ("extras", _extras(facts["extras"])),
    ]
    return rows + _dataset(facts["dataset"])


def _card(card: dict[str, Any]) -> str:
    words = [card["name"], card["arch"], f"driver {card['driver'] or 'none'}", card["problem"]]
    if not card["has_build"]:
        words.append("PyTorch has no build for it")
    return ", ".join(word for word in words if word)


def _wandb(wandb: dict[str, Any]) -> str:
    login = f"key for {wandb['host']} from {wandb['key_from']}" if wandb["key_from"] else "no key: runs stay offline"
    mode = f", WANDB_MODE={wandb['WANDB_MODE']}" if wandb["WANDB_MODE"] else ""
    problem = f" ({wandb['problem']})" if wandb["problem"] else ""
    return f"{wandb['version']}, {login}{mode}{problem}"


def _extras(extras: dict[str, Any]) -> str:
    words = [name if found["installed"] else f"{name} is not installed" for name, found in extras.items()]
    return ", ".join(words) or "none"


def _dataset(dataset: dict[str, Any] | None) -> list[tuple[str, str]]:
    if dataset is None:
        return []
    shapes = [f"{key} {'x'.join(map(str, shape))}" for key, shape in dataset["features"].items()]
    cameras = [f"{key} {h}x{w} {kind}" for key, (h, w, *_, kind) in dataset["cameras"].items()]
    tasks = dataset["tasks"]
    named = "; ".join(tasks[:3]) + ("; ..." if len(tasks) > 3 else "")
    length = f"{dataset['frames']:,} frames at {dataset['fps']:g} fps ({dataset['minutes']:g} min)"
    size = f"{dataset['data_mb']:g} MB of data, {dataset['videos_mb']:g} MB of video"
    return [
        ("dataset", f"{dataset['root']}: {dataset['episodes']:,} episodes, {length}, {size}"),
        ("", ", ".join(shapes + cameras)),
        ("tasks", f"{len(tasks)}: {named}"),
    ]


def _problems(facts: dict[str, Any]) -> list[str]:
    """What does not work, each once, with its repair where there is one."""
    found = [*facts["misfits"], *facts["advice"]]
    for device in facts["devices"]:
        for precision, smoke in device["smoke"].items():
            if not smoke["works"]:
                found.append(f"{device['device']} in {PRECISIONS[precision]}: {smoke['problem']}")
    if facts["torch"]["said"] and not any(device["backend"] != "cpu" for device in facts["devices"]):
        found.append(f"PyTorch says: {facts['torch']['said']}")
    return list(dict.fromkeys(found))


def block(facts: dict[str, Any]) -> str:
    """Markdown: rows for the table in docs/accelerators.md and what explains them; names no person and no host."""
    lines = [
        "| device | driver | PyTorch | float32 | bf16 | fp16 | TF32 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for device in facts["devices"]:
        name = f"{device['name']} ({device['arch'] or device['backend']})"
        cells = [_cell(device, precision) for precision in PRECISIONS]
        tf32 = "yes" if device["tf32"] else "no"
        lines.append(f"| {' | '.join((name, _driver(device, facts), facts['torch']['version'], *cells, tf32))} |")
    more = [_title(facts), *(f"{name}={value}" for name, value in facts["variables"].items())]
    more += [_card(card) for card in facts["cards"]] + _problems(facts)
    return "\n".join([*lines, "", *(f"- {line}" for line in more)])


def _driver(device: dict[str, Any], facts: dict[str, Any]) -> str:
    drivers = [card["driver"] for card in facts["cards"] if card["backend"] == device["backend"] and card["driver"]]
    return device["driver"] or (drivers[0] if drivers else "-")
