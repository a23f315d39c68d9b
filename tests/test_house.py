"""The rules of the house, held by the tests."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lerobot"
FILES = sorted(PACKAGE.rglob("*.py"))
PURE = [PACKAGE / "loop.py", PACKAGE / "step.py", PACKAGE / "schedule.py", *(PACKAGE / "policies").glob("*.py")]
DEVICE = re.compile(
    r"torch\.(cuda|mps|xpu)\b|torch\.backends|allow_tf32|set_float32_matmul_precision|[\"'](cuda|mps|xpu)[\"']"
)


def imported(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_the_loop_and_the_policies_know_neither_hydra_nor_wandb(path):
    assert not imported(path) & {"hydra", "omegaconf", "wandb", "argparse"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_accelerator_names_a_device(path):
    if path.parent.name == "accelerator":
        return
    code = [line.partition("#")[0] for line in path.read_text().splitlines()]
    assert not [line for line in code if DEVICE.search(line)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_stay_short(path):
    assert len(path.read_text().splitlines()) <= 330


def test_there_is_one_default_for_each_setting():
    """No `.get(key, default)` on a config hides a second one."""
    found = [path.name for path in FILES if re.search(r"(cfg|config)\.get\(", path.read_text())]
    assert not found
