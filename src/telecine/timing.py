"""Presentation times of frames from the times of packets, also where those are missing or nonsense."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NO_TIME", "is_variable", "rebuild", "usable"]

NO_TIME = -(1 << 63)
"""A time that the container does not give: FFmpeg's AV_NOPTS_VALUE."""

_Ticks = npt.NDArray[np.int64]
_MOST_HELD_BACK = 32
"""Pictures that are decoded ahead of a picture and shown behind it. A decoder keeps 16 at most (H.264, A.3.1)."""


def usable(pts: _Ticks) -> bool:
    """Whether presentation times can be taken as they are: none is missing, no two are the same, and none is so early
    that no decoder could have held back the pictures in between, as where recordings were joined.

    Args:
        pts: ``int64 [S]`` of the packets that bring a frame.
    """
    if (pts == NO_TIME).any() or len(np.unique(pts)) < len(pts):
        return False
    sequence = np.argsort(pts)
    return bool((sequence - np.arange(len(pts)) <= _MOST_HELD_BACK).all())


def rebuild(pts: _Ticks, dts: _Ticks, places: _Ticks | None, step: int) -> _Ticks:
    """Make presentation times where the container's cannot be used.

    Order comes from the bitstream where it tells, else from what times there are. Each known time is kept if it agrees
    with that order; a missing one follows its neighbours at the spacing of the decoding times. Where time jumps back,
    what follows goes on one step after what was before.

    Args:
        pts: ``int64 [S]`` in decoding order, with :data:`NO_TIME`.
        dts: ``int64 [S]`` likewise.
        places: ``int64 [S]`` the rank of each packet in output order, or None if the bitstream does not say.
        step: ticks between frames where nothing else says.

    Returns:
        ``int64 [S]`` in decoding order, no two the same.
    """
    count = len(pts)
    known_dts = bool((dts != NO_TIME).all())
    if places is None:
        # a picture without a time is shown behind the one decoded before it
        before = np.maximum.accumulate(np.where(pts != NO_TIME, np.arange(count), 0))
        places = np.argsort(np.argsort(pts[before], kind="stable"), kind="stable")
    sequence = np.argsort(places, kind="stable")
    in_order = pts[sequence]
    spacing = np.sort(dts) if known_dts and len(np.unique(dts)) == count else np.arange(count, dtype=np.int64) * step
    known = _agreeing(in_order)
    if known.any():
        # the offset between spacing and true time, carried from the last known frame to the ones without a time
        offset = np.where(known, in_order, 0) - spacing
        last_known = np.maximum.accumulate(np.where(known, np.arange(count), -1))
        last_known[last_known < 0] = int(np.argmax(known))
        spacing = spacing + offset[last_known]
        back = np.minimum(np.diff(spacing), 0)
        spacing[1:] += np.cumsum(np.where(back <= -step, step - back, 0))
    steps = np.arange(count, dtype=np.int64)
    strictly = np.maximum.accumulate(spacing - steps) + steps
    times = np.empty(count, np.int64)
    times[sequence] = strictly
    return times


def _agreeing(in_order: _Ticks) -> npt.NDArray[np.bool_]:
    """Which times are known and do not stick out from between neighbours that agree with each other."""
    known: npt.NDArray[np.bool_] = in_order != NO_TIME
    times = in_order[known]
    agreeing = np.ones(len(times), np.bool_)
    before, at, after = times[:-2], times[1:-1], times[2:]
    agreeing[1:-1] = (before >= after) | ((before <= at) & (at <= after))
    known[known] = agreeing
    return known


def is_variable(ticks: _Ticks) -> bool:
    """Whether frames are unevenly spaced, beyond what rounding to ticks explains.

    A constant rate puts each frame on a straight line through the first and the last one, give or take a tick at either
    end; 30000/1001 in milliseconds is not variable. Anything up to a twentieth of the spacing is jitter that no label
    shows. Where a tick is about as long as a frame, one frame left out is already variable.

    Args:
        ticks: ``int64 [T]`` increasing.
    """
    if len(ticks) < 3:
        return False
    interval = (int(ticks[-1]) - int(ticks[0])) / (len(ticks) - 1)
    off = np.abs(ticks - ticks[0] - interval * np.arange(len(ticks)))
    return bool(off.max() > max(min(2.0, 0.4 * interval), interval / 20))
