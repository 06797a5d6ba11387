"""Presentation times of the frames of a video, on which sampling works."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["Timeline"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Presentation times of the presentable frames, in integer ticks.

    Ticks stay integers until the last conversion. So no frame is missed because seconds were rounded.
    """

    ticks: npt.NDArray[np.int64]
    """``int64 [T]`` time of each frame after the first presentable one, strictly increasing from 0."""
    time_base: Fraction
    """Seconds per tick."""
    end_tick: int
    """End of the last frame, in ticks after the first presentable frame; greater than ``ticks[-1]``."""
    key: npt.NDArray[np.bool_]
    """``bool [T]`` True if the frame comes from a packet flagged as a key frame."""

    @property
    def num_frames(self) -> int:
        """Number of presentable frames, T."""
        return len(self.ticks)

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the end of the last one."""
        return float(self.end_tick * self.time_base)

    @property
    def average_fps(self) -> float:
        """Measured rate, (T-1) / (t_last - t_first) per second; 1/duration for a single frame, 0 if unknown."""
        if self.num_frames >= 2:
            return float((self.num_frames - 1) / (int(self.ticks[-1]) * self.time_base))
        return 1.0 / self.duration if self.num_frames and self.end_tick > 0 else 0.0

    def seconds(self, indices: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
        """Return times of frames in seconds after the first presentable frame.

        Args:
            indices: ``int64 [N]`` frame indices; all frames when omitted.

        Returns:
            ``float64 [N]``, each the nearest double to the exact rational time.
        """
        ticks = self.ticks if indices is None else self.ticks[indices]
        # numerator first: this rounds once, ticks * float(time_base) would round twice
        return ticks * self.time_base.numerator / self.time_base.denominator
