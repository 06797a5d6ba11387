"""Comparison of decoded frames with those of the ffmpeg command line, before anything is timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import numpy as np
import numpy.typing as npt

from telecine.testing.comparison import max_difference, mean_difference

__all__ = ["Truth", "compare", "truth_of"]

_GRID = 4
"""Neighbours are compared at every fourth row and column: that distinguishes frames, with a sixteenth of the memory."""
_WORST_PSNR = 30.0
"""Lowest allowed PSNR, dB. Rounding and chroma interpolation stay far above it; neighbour frames stay below."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Truth:
    """The wanted frames as ffmpeg decodes them."""

    frames: Pixels
    """``uint8 [N, H, W, 3]`` RGB."""
    neighbours: list[list[Pixels]]
    """For each frame, those before and after it, if they exist, subsampled."""

    @property
    def neighbour_psnr(self) -> float:
        """PSNR of the neighbour that is most like its frame. If it is low, no neighbour is taken for the frame."""
        pairs = zip(self.frames, self.neighbours, strict=True)
        return max(
            (_psnr(_square_error(subsample(frame), other)) for frame, others in pairs for other in others), default=0.0
        )


def truth_of(path: Path, indices: list[int], height: int, width: int) -> Truth:
    """Decode a file from its start with ffmpeg, and keep the wanted frames.

    Args:
        path: path of the file.
        indices: wanted frame indices, ascending.
        height: height of the frames as displayed, pixels.
        width: width of the frames as displayed, pixels.

    Raises:
        RuntimeError: ffmpeg failed, or returned another number of frames.
    """
    around = sorted({near for index in indices for near in (index - 1, index, index + 1) if near >= 0})
    selected = "+".join(f"between(n,{index - 1},{index + 1})" for index in indices)
    raw = cases.ffmpeg(
        "-i", path, "-map", "0:v:0", "-vf", f"select='{selected}'", "-fps_mode", "passthrough", "-pix_fmt", "rgb24",
        "-f", "rawvideo", "-",
    )  # fmt: skip
    found, rest = divmod(len(raw), height * width * 3)
    # the frame after the last one of the video does not exist
    if rest or not len(around) - 1 <= found <= len(around):
        raise RuntimeError(f"{path.name}: ffmpeg gave {len(raw)} bytes for {len(around)} frames of {width}x{height}")
    pictures = dict(zip(around, np.frombuffer(raw, np.uint8).reshape(found, height, width, 3), strict=False))
    neighbours = [
        [subsample(pictures[near]).copy() for near in (index - 1, index + 1) if near in pictures] for index in indices
    ]
    return Truth(np.stack([pictures[index] for index in indices]), neighbours)


def compare(got: Pixels, truth: Truth) -> dict[str, Any]:
    """Return whether frames are the true ones, and how much they differ.

    A frame is right if no neighbour of the true frame is nearer to it, and if its PSNR is high enough.

    Returns:
        ``right``, ``why`` if not, largest (``max``) and ``mean`` difference per channel, and the lowest ``psnr``.
    """
    if got.shape != truth.frames.shape:
        return {"right": False, "why": f"shape {got.shape} instead of {truth.frames.shape}"}
    largest, total, worst = 0, 0.0, math.inf
    swapped, far = [], []
    for row, (frame, true, others) in enumerate(zip(got, truth.frames, truth.neighbours, strict=True)):
        largest = max(largest, max_difference(frame, true))
        total += mean_difference(frame, true)
        psnr = _psnr(_square_error(frame, true))
        worst = min(worst, psnr)
        own = _square_error(subsample(frame), subsample(true))
        if any(_square_error(subsample(frame), other) < own for other in others):
            swapped.append(row)
        elif psnr <= _WORST_PSNR:
            far.append(row)
    why = []
    if swapped:
        why.append(f"{len(swapped)} of {len(got)} are nearer to a neighbour frame")
    if far:
        why.append(f"{len(far)} of {len(got)} are not like the true frame ({worst:.1f} dB at worst)")
    return {
        "right": not why,
        "why": "; ".join(why) or None,
        "max": largest,
        "mean": round(total / len(got), 4),
        "psnr": None if math.isinf(worst) else round(worst, 2),
    }


def subsample(frame: Pixels) -> Pixels:
    """Return every fourth row and column of a frame."""
    return frame[::_GRID, ::_GRID]


def _square_error(a: Pixels, b: Pixels) -> float:
    return float(np.square(a.astype(np.float32) - b).mean())


def _psnr(square_error: float) -> float:
    return math.inf if square_error == 0 else 10 * math.log10(255**2 / square_error)
