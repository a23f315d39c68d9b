import subprocess
import sys
from pathlib import Path

import pytest

from lerobot.envs import gl
from lerobot.envs.metaworld_config import MetaWorldConfig
from lerobot.errors import ConfigError
from lerobot.features import Feature

CAMERA = {"observation.images.corner2": Feature("VISUAL", [3, 96, 96])}


def test_a_camera_without_gl_is_refused_with_what_to_type(no_gl, states):
    """EVAL-06: before anything is trained."""
    with pytest.raises(ConfigError, match=r"observation\.images\.corner2 needs a GL context .*: unset MUJOCO_GL "):
        MetaWorldConfig().check({**states.inputs, **CAMERA}, states.outputs)


def test_asking_for_videos_without_gl_is_refused(no_gl, states):
    with pytest.raises(ConfigError, match=r"eval\.videos=1 or more needs a GL context"):
        MetaWorldConfig().check(states.inputs, states.outputs, render=True)


def test_states_alone_need_no_gl(no_gl, states):
    MetaWorldConfig().check(states.inputs, states.outputs)
    env = MetaWorldConfig().make("push-v3", states.inputs)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


PROBE = """
from lerobot.envs import gl
if {missing}:
    gl.ctypes.util.find_library = lambda name: None
from lerobot.envs.metaworld_config import MetaWorldConfig
config = MetaWorldConfig()
works, reason = config.can_render()
assert not works
env = config.make("push-v3", {{}})
env.reset(seed=0)
env.step(config.expert("push-v3")(env))
print(gl.os.environ["MUJOCO_GL"], reason, sep=": ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="egl and osmesa are Linux's")
@pytest.mark.parametrize(("value", "missing", "reason"), [
    ("broken", False, "MUJOCO_GL=broken is none of egl, osmesa, glfw, glx"),
    ("wgl", False, "MUJOCO_GL=wgl is none of egl, osmesa, glfw, glx"),
    ("osmesa", True, "osmesa: libOSMesa is not installed"),
])  # fmt: skip
def test_states_alone_need_no_gl_that_mujoco_can_import(monkeypatch, value, missing, reason):
    """MuJoCo itself refuses to be imported with these."""
    monkeypatch.setenv("MUJOCO_GL", value)
    code, root = PROBE.format(missing=missing), Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout == f"{value}: {reason}\n", done.stderr


def test_a_senseless_backend_is_refused_where_something_must_be_drawn(gl_asked_anew, states, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "broken")
    with pytest.raises(ConfigError, match=r"MUJOCO_GL=broken is none of .*: unset MUJOCO_GL or type MUJOCO_GL="):
        MetaWorldConfig().check(states.inputs, states.outputs, render=True)
    with pytest.raises(ConfigError, match="a camera needs a GL context"):
        gl.backend()


@pytest.mark.skipif(sys.platform != "linux", reason="egl and osmesa are Linux's")
@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_a_missing_library_is_named(gl_asked_anew, monkeypatch, backend):
    monkeypatch.setenv("MUJOCO_GL", backend)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    works, reason = gl.can_render()
    assert not works
    assert reason == f"{backend}: lib{'EGL' if backend == 'egl' else 'OSMesa'} is not installed"
    with pytest.raises(ConfigError, match=r"a video needs a GL context .*: install libegl1 "):
        gl.require("a video")


@pytest.mark.skipif(sys.platform != "linux", reason="egl is Linux's")
def test_a_driver_that_is_there_and_broken_is_found_out(gl_asked_anew, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "there")
    works, reason = gl.can_render()
    assert not works
    assert reason.startswith("egl: ")
    assert "\n" not in reason


def test_the_backend_found_is_left_to_processes_started_later(needs_gl, gl_asked_anew, monkeypatch):
    works, name = gl.can_render()
    assert works
    assert gl.os.environ["MUJOCO_GL"] == name
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("tried twice"))
    assert gl.can_render() == (True, name)
    assert gl.backend() == name


def test_torch_may_load_its_compiler_after_something_was_drawn(needs_gl):
    """Mesa's LLVM before triton's killed the process, at the first optimizer made after a video."""
    pytest.importorskip("triton", exc_type=ImportError)
    code = """
from lerobot.envs.metaworld_config import MetaWorldConfig
env = MetaWorldConfig().make("push-v3", {}, render=True)
env.reset(seed=0)
env.render()
env.close()
import triton._C.libtriton
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "alive\n", done.stderr
