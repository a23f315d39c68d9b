"""A dataset whose every value tells where it lies."""

import numpy as np
import pytest

from lerobot.data.writer import DatasetWriter

LENGTHS = [5, 3, 4]
NUMBERED = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
    "action": {"dtype": "float32", "shape": (1,), "names": None},
}


@pytest.fixture(scope="session")
def numbered(tmp_path_factory):
    """Three episodes of 5, 3 and 4 frames; the action of frame f in episode e is 1000 e + f."""
    root = tmp_path_factory.mktemp("numbered") / "dataset"
    with DatasetWriter(root, fps=10, features=NUMBERED) as writer:
        for episode, length in enumerate(LENGTHS):
            action = 1000.0 * episode + np.arange(length)
            state = np.stack([action, -action], axis=1)
            writer.add_episode({"observation.state": state, "action": action}, task=f"task {episode % 2}")
    return root
