"""Finds a GL context for MuJoCo before anything heavy is loaded. Imports neither torch nor MuJoCo.

MuJoCo's GL modules bind PyOpenGL to one platform when they are imported, and a failed import cannot be undone. So a
candidate is tried in a process of its own first.
"""

import ctypes.util
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lerobot.errors import ConfigError

PACKAGES = "libegl1 libegl-mesa0 libgl1-mesa-dri (or libosmesa6)"
"""Debian's and Ubuntu's names of what a machine without a screen needs."""

OFF = ("disable", "disabled", "off", "false", "0")
ON = ("enable", "enabled", "on", "true", "1")
NAMES = {"linux": ("egl", "osmesa", "glfw", "glx"), "darwin": ("cgl", "glfw"), "win32": ("wgl", "glfw")}
"""What `MUJOCO_GL` may hold: MuJoCo refuses to be imported where it holds anything else."""

# One frame buffer is made, because a driver may give a context and still fail there.
_PROBE = """
import importlib, os, sys
try:
    import mujoco
    context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(16, 16)
    context.make_current()
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
except BaseException as error:
    print(str(error).split(". ")[0].split(", this most")[0], file=sys.stderr)
    os._exit(1)
os._exit(0)
"""


@functools.cache
def can_render() -> tuple[bool, str]:
    """Whether MuJoCo can draw here, and the backend's name or the reason why not. Tried once a process (0.3 s).

    `MUJOCO_GL` is obeyed. Where it is unset, the backend found is written there, for processes that are started later.
    """
    problems = []
    for backend in _candidates():
        problem = _problem_of(backend)
        if not problem:
            os.environ["MUJOCO_GL"] = os.environ.get("MUJOCO_GL") or backend
            return True, backend
        problems.append(f"{backend}: {problem}")
    asked = os.environ.get("MUJOCO_GL")
    names = f"is none of {', '.join(_names())}"
    return False, "; ".join(problems) or f"MUJOCO_GL={asked} {'switches drawing off' if _asked() in OFF else names}"


def require(what: str) -> None:
    """Refuse to go on where `what` ("a video") cannot be drawn. Raises `ConfigError`."""
    works, reason = can_render()
    if not works:
        remedy = f"install {PACKAGES}" if _candidates() else f"unset MUJOCO_GL or type MUJOCO_GL={_names()[0]}"
        raise ConfigError(f"{what} needs a GL context and none works here ({reason}): {remedy}, or go without it")


@contextmanager
def importing() -> Iterator[None]:
    """Hide a `MUJOCO_GL` that is of no use: with it MuJoCo cannot be imported, though nothing may have to be drawn."""
    asked = os.environ.get("MUJOCO_GL")
    candidates = _candidates()
    if not asked or (candidates and not _missing_library(candidates[0])):
        yield
        return
    os.environ["MUJOCO_GL"] = OFF[0]
    try:
        yield
    finally:
        os.environ["MUJOCO_GL"] = asked


def backend() -> str:
    """The submodule of `mujoco` whose `GLContext` draws here. Raises `ConfigError` where none does."""
    if not os.environ.get("MUJOCO_GL") or not _candidates():
        require("a camera")
    return _candidates()[0]


def _asked() -> str:
    """What `MUJOCO_GL` holds, as MuJoCo reads it."""
    return os.environ.get("MUJOCO_GL", "").lower().strip()


def _names() -> tuple[str, ...]:
    return NAMES.get(sys.platform, NAMES["linux"])


def _candidates() -> list[str]:
    """Submodules of `mujoco` to try, best first; none where `MUJOCO_GL` switches drawing off or makes no sense."""
    asked = _asked()
    screen = "cgl" if sys.platform == "darwin" else "glfw"
    if asked and asked not in (*ON, *_names()):
        return []
    if asked in ("egl", "osmesa"):
        return [asked]
    if asked or sys.platform != "linux":
        return [screen]
    # egl before a screen's own: it needs no window, and works in any thread and over ssh.
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return ["egl", screen, "osmesa"] if has_screen else ["egl", "osmesa"]


def _problem_of(backend: str) -> str:
    """Why no frame can be drawn with `backend`; empty where one can."""
    if library := _missing_library(backend):
        return f"lib{library} is not installed"
    environment = {**os.environ, "MUJOCO_GL": backend}
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, backend], env=environment, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    if probe.returncode == 0:
        return ""
    lines = probe.stderr.strip().splitlines()
    return lines[-1] if lines else f"the driver ended the process ({probe.returncode})"


def _missing_library(backend: str) -> str:
    """The library that `backend` needs and that is not there; empty where none is missing."""
    library = {"egl": "EGL", "osmesa": "OSMesa"}.get(backend)
    return library if library and not ctypes.util.find_library(library) else ""
