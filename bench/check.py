"""Whether a decoder gives the right frames: judged by the ffmpeg command line, and done before anything is timed."""

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
"""Neighbours are compared at every fourth row and column: enough to tell frames apart, at a sixteenth of the memory."""
_WORST_PSNR = 30.0
"""Decibels. Rounding and chroma interpolation stay well above it; the neighbours of these clips do not reach it."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Truth:
    """What ffmpeg makes of the wanted frames."""

    frames: Pixels
    """``uint8 [N, H, W, 3]`` RGB."""
    neighbours: list[list[Pixels]]
    """For each of them, the frames before and after it that exist, thinned out."""

    @property
    def neighbour_psnr(self) -> float:
        """Of the neighbour that is most like its frame: as long as it is low, a neighbour cannot pass for the frame."""
        pairs = zip(self.frames, self.neighbours, strict=True)
        return max(
            (_psnr(_square_error(thin(frame), other)) for frame, others in pairs for other in others), default=0.0
        )


def truth_of(path: Path, indices: list[int], height: int, width: int) -> Truth:
    """Decode a file from its start with ffmpeg, and keep the wanted frames.

    Args:
        path: of the file.
        indices: wanted frame indices, ascending.
        height: of its frames as displayed, pixels.
        width: likewise.

    Raises:
        RuntimeError: ffmpeg failed, or gave other frames than were asked for.
    """
    around = sorted({near for index in indices for near in (index - 1, index, index + 1) if near >= 0})
    spans = "+".join(f"between(n,{index - 1},{index + 1})" for index in indices)
    raw = cases.ffmpeg(
        "-i", path, "-map", "0:v:0", "-vf", f"select='{spans}'", "-fps_mode", "passthrough", "-pix_fmt", "rgb24",
        "-f", "rawvideo", "-",
    )  # fmt: skip
    found, rest = divmod(len(raw), height * width * 3)
    # the frame after the last one of the video does not exist
    if rest or not len(around) - 1 <= found <= len(around):
        raise RuntimeError(f"{path.name}: ffmpeg gave {len(raw)} bytes for {len(around)} frames of {width}x{height}")
    pictures = dict(zip(around, np.frombuffer(raw, np.uint8).reshape(found, height, width, 3), strict=False))
    neighbours = [
        [thin(pictures[near]).copy() for near in (index - 1, index + 1) if near in pictures] for index in indices
    ]
    return Truth(np.stack([pictures[index] for index in indices]), neighbours)


def compare(got: Pixels, truth: Truth) -> dict[str, Any]:
    """Say how far frames are from the true ones, and whether they are the right ones.

    A frame is right if no neighbour of the true frame is nearer to it than the true frame, and if it is near enough.

    Returns:
        ``right``, ``why`` not, largest (``max``) and ``mean`` difference per channel, and the lowest ``psnr``.
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
        own = _square_error(thin(frame), thin(true))
        if any(_square_error(thin(frame), other) < own for other in others):
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


def thin(frame: Pixels) -> Pixels:
    """Every fourth row and column."""
    return frame[::_GRID, ::_GRID]


def _square_error(a: Pixels, b: Pixels) -> float:
    return float(np.square(a.astype(np.float32) - b).mean())


def _psnr(square_error: float) -> float:
    return math.inf if square_error == 0 else 10 * math.log10(255**2 / square_error)
