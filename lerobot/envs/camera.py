"""Draws frames of a MuJoCo model without a screen."""
# mujoco's names come from compiled modules that have no stubs.
# pyright: reportAttributeAccessIssue=false

import importlib
from collections.abc import Sequence
from contextlib import suppress

import mujoco
import numpy as np

from lerobot.envs import gl


class Camera:
    """One GL context and frame buffer for all cameras of a model; `sizes` are the `(height, width)` to be drawn.

    MuJoCo's own renderer binds to the backend that was set when `mujoco` was first imported; this one asks when made.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, sizes: Sequence[tuple[int, int]]) -> None:
        _load_compiler()
        height, width = (max(side) for side in zip(*sizes, strict=True))
        model.vis.global_.offheight = height
        model.vis.global_.offwidth = width
        self._model, self._data = model, data
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._options = mujoco.MjvOption()
        self._perturbation = mujoco.MjvPerturb()
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._gl = importlib.import_module(f"mujoco.{gl.backend()}").GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def draw(self, camera: str, height: int, width: int) -> np.ndarray:
        """A frame `(h, w, 3)` uint8, top row first, from the model's camera of that name."""
        # Another environment of this process may have been drawn in between, or closed.
        self._gl.make_current()
        self._view.fixedcamid = self._model.cam(camera).id
        shown = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(
            self._model, self._data, self._options, self._perturbation, self._view, shown, self._scene
        )
        frame = np.empty((height, width, 3), np.uint8)
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(area, self._scene, self._context)
        mujoco.mjr_readPixels(frame, None, area, self._context)
        return np.ascontiguousarray(frame[::-1])  # GL counts rows from the bottom

    def close(self) -> None:
        """Free the context; drawing afterwards fails."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _load_compiler() -> None:
    """Load triton's LLVM before Mesa's: the other way round, the process crashes when torch imports triton later."""
    with suppress(ImportError):
        importlib.import_module("triton._C.libtriton")
