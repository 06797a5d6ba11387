"""Differences between frames of the same shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_DIFFERENCE", "max_difference", "mean_difference"]

MAX_DIFFERENCE = {"cpu": 2, "cuda": 3}
"""Largest difference of a channel from ``pyav`` that counts as the same, by type of device."""


def max_difference(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> int:
    """Return the largest difference of a channel between frames of the same shape, 0 to 255; 0 if there are none."""
    return int(_differences(frames, others).max()) if frames.size else 0


def mean_difference(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> float:
    """Return the mean difference of a channel between frames of the same shape, 0 to 255."""
    return float(_differences(frames, others).mean())


def _differences(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    # of unsigned bytes: the difference of the larger and the smaller one needs no wider type
    return np.asarray(np.maximum(frames, others) - np.minimum(frames, others), np.uint8)
