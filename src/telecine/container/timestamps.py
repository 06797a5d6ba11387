"""Presentation times of frames from the times of packets, also where those are missing or nonsense."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NO_TIME", "OVERFLOW", "follows_points", "is_variable", "rebuild", "unwrapped", "usable"]

NO_TIME = -(1 << 63)
"""A time that the container does not give: FFmpeg's AV_NOPTS_VALUE."""
OVERFLOW = 1 << 33
"""Ticks after which the 90 kHz clock of transport and program streams begins anew (ISO/IEC 13818-1, 2.4.3.7)."""
_NEAR = 60 * 90_000
"""Ticks between two packets at most, where one looks for an overflow."""

_Ticks = npt.NDArray[np.int64]
_MOST_HELD_BACK = 32
"""Pictures that are decoded ahead of a picture and shown behind it. A decoder keeps 16 at most (H.264, A.3.1)."""


def unwrapped(pts: _Ticks, dts: _Ticks) -> tuple[_Ticks, _Ticks]:
    """Let times of MPEG's containers go on where their clock ran over: where they go back by nearly all of its range.

    Args:
        pts: ``int64 [P]`` in decoding order, with :data:`NO_TIME`.
        dts: ``int64 [P]`` likewise.

    Returns:
        Both, as they would be with a longer clock.
    """
    base = np.where(dts != NO_TIME, dts, pts)
    known = np.flatnonzero(base != NO_TIME)
    if len(known) < 2:
        return pts, dts
    jumps = np.diff(base[known])
    forth, back = np.abs(jumps + OVERFLOW) < _NEAR, np.abs(jumps - OVERFLOW) < _NEAR
    turns = np.zeros(len(base), np.int64)
    turns[known[1:]] = np.cumsum(forth.astype(np.int64) - back)
    turns = turns[np.maximum.accumulate(np.where(base != NO_TIME, np.arange(len(base)), 0))]
    dts = np.where(dts != NO_TIME, dts + turns * OVERFLOW, NO_TIME)
    # a pts belongs near its dts, and may be on the other side of an overflow
    timed = (pts != NO_TIME) & (base != NO_TIME)
    off = np.where(timed, base, 0) + turns * OVERFLOW - np.where(timed, pts, 0)
    return np.where(timed, pts + np.rint(off / OVERFLOW).astype(np.int64) * OVERFLOW, NO_TIME), dts


def follows_points(
    pts: _Ticks, seen: npt.NDArray[np.bool_], opened: npt.NDArray[np.bool_], closed: npt.NDArray[np.bool_]
) -> bool:
    """Whether what is decoded ahead of a random access point is shown ahead of it; not so where recordings were joined.

    Args:
        pts: ``int64 [P]`` in decoding order; known of what is seen.
        seen: ``bool [P]`` which packets bring a frame that a viewer sees.
        opened: ``bool [P]`` where decoding can start, though some of what follows is shown ahead of the point.
        closed: ``bool [P]`` where it can, and nothing is.
    """
    before = np.full(len(pts), np.iinfo(np.int64).min)
    before[1:] = np.maximum.accumulate(np.where(seen, pts, before))[:-1]
    after = np.minimum.accumulate(np.where(seen, pts, np.iinfo(np.int64).max)[::-1])[::-1]
    return not ((closed & (before >= after)) | (opened & seen & (before >= pts))).any()


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
