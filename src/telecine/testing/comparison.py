"""Differences between frames of the same shape, and reference frames of the ffmpeg command line."""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_DIFFERENCE", "decode_with_ffmpeg", "max_difference", "mean_difference"]

MAX_DIFFERENCE = {"cpu": 2, "cuda": 3}
"""Largest difference of a channel from the reference frames that counts as the same, by type of device."""
_FFMPEG_SECONDS = 60.0


def decode_with_ffmpeg(data: bytes, width: int, height: int) -> npt.NDArray[np.uint8] | None:
    """Return all frames of a file by the ffmpeg command line of the package ``imageio-ffmpeg``.

    Args:
        data: the file.
        width: of the pictures as displayed, pixels.
        height: of the pictures as displayed, pixels.

    Returns:
        ``uint8 [T, H, W, 3]`` RGB; None if the package is not installed, or ffmpeg decodes pictures of another size.
    """
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError:
        return None
    options = "-map 0:V:0 -fps_mode passthrough -pix_fmt rgb24 -f rawvideo -loglevel error pipe:1".split()
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = [get_ffmpeg_exe(), "-nostdin", "-i", file.name, *options]
        pixels = subprocess.run(command, capture_output=True, timeout=_FFMPEG_SECONDS).stdout
    count, rest = divmod(len(pixels), width * height * 3)
    return np.frombuffer(pixels, np.uint8).reshape(count, height, width, 3) if count and not rest else None


def max_difference(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> int:
    """Return the largest difference of a channel between frames of the same shape, 0 to 255; 0 if there are none."""
    return int(_differences(frames, others).max()) if frames.size else 0


def mean_difference(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> float:
    """Return the mean difference of a channel between frames of the same shape, 0 to 255."""
    return float(_differences(frames, others).mean())


def _differences(frames: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    # of unsigned bytes: the difference of the larger and the smaller one needs no wider type
    return np.asarray(np.maximum(frames, others) - np.minimum(frames, others), np.uint8)
