"""Repair of packet timestamps: 33-bit wrap, missing or contradictory presentation times, variable frame rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "MPEG_CLOCK_TICKS", "NO_TIME", "are_usable_timestamps", "has_variable_rate", "rebuild_timestamps",
    "respects_random_access", "unwrap_timestamps",
]  # fmt: skip

NO_TIME = -(1 << 63)
"""A time that the container does not give: FFmpeg's AV_NOPTS_VALUE."""
MPEG_CLOCK_TICKS = 1 << 33
"""Ticks after which the 90 kHz timestamps of transport and program streams wrap (ISO/IEC 13818-1, 2.4.3.7)."""
_MAX_PACKET_GAP = 60 * 90_000
"""Ticks between two packets at most for a backward jump to count as a wrap."""
_MAX_REORDERED = 32
"""Pictures decoded before and displayed after another one. A decoder keeps 16 at most (H.264, A.3.1)."""

_Ticks = npt.NDArray[np.int64]


def unwrap_timestamps(pts: _Ticks, dts: _Ticks) -> tuple[_Ticks, _Ticks]:
    """Unwrap 33-bit MPEG-TS/PS timestamps: add 2**33 after each backward jump of almost the full range.

    pts and dts are ``int64 [P]`` in decode order, with :data:`NO_TIME`.
    """
    base = np.where(dts != NO_TIME, dts, pts)
    known = np.flatnonzero(base != NO_TIME)
    if len(known) < 2:
        return pts, dts
    jumps = np.diff(base[known])
    forward, backward = (np.abs(jumps + sign * MPEG_CLOCK_TICKS) < _MAX_PACKET_GAP for sign in (1, -1))
    wraps = np.zeros(len(base), np.int64)
    wraps[known[1:]] = np.cumsum(forward.astype(np.int64) - backward)
    wraps = wraps[np.maximum.accumulate(np.where(base != NO_TIME, np.arange(len(base)), 0))]
    dts = np.where(dts != NO_TIME, dts + wraps * MPEG_CLOCK_TICKS, NO_TIME)
    # a pts belongs near its dts, and may be on the other side of a wrap
    has_both = (pts != NO_TIME) & (base != NO_TIME)
    distance = np.where(has_both, base, 0) + wraps * MPEG_CLOCK_TICKS - np.where(has_both, pts, 0)
    wraps = np.rint(distance / MPEG_CLOCK_TICKS).astype(np.int64)
    return np.where(has_both, pts + wraps * MPEG_CLOCK_TICKS, NO_TIME), dts


def respects_random_access(
    pts: _Ticks, shown: npt.NDArray[np.bool_], is_open: npt.NDArray[np.bool_], is_closed: npt.NDArray[np.bool_]
) -> bool:
    """Return True if pictures decoded before a random access point are displayed before it.

    That fails where recordings were joined. Arrays have ``[P]`` elements in decode order. pts are known for all shown
    packets. Leading pictures of open random access points are displayed before them.
    """
    before = np.full(len(pts), np.iinfo(np.int64).min)
    before[1:] = np.maximum.accumulate(np.where(shown, pts, before))[:-1]
    after = np.minimum.accumulate(np.where(shown, pts, np.iinfo(np.int64).max)[::-1])[::-1]
    return not ((is_closed & (before >= after)) | (is_open & shown & (before >= pts))).any()


def are_usable_timestamps(pts: _Ticks) -> bool:
    """Return True if presentation times of shown packets are complete, distinct, and in an order that decoders output.

    A picture that comes too many pictures early would need a larger picture buffer than any decoder has. That happens
    where recordings were joined.
    """
    if (pts == NO_TIME).any():
        return False
    sequence = np.argsort(pts, kind="stable")  # fast if nearly in order
    return bool((np.diff(pts[sequence]) > 0).all() and (sequence - np.arange(len(pts)) <= _MAX_REORDERED).all())


def rebuild_timestamps(
    pts: _Ticks, dts: _Ticks, output_positions: _Ticks | None, step: float, durations: _Ticks | None = None
) -> _Ticks:
    """Make presentation times if the container's cannot be used.

    The order is the bitstream's output order if known, else that of the known times. A known time that agrees with the
    order is kept. A missing one follows its neighbours at the spacing of the decoding times, delayed by the number of
    pictures that a decoder must hold back. After a backward jump the times continue one step after the last one.

    Args:
        pts: ``int64 [S]`` in decode order, with :data:`NO_TIME`.
        dts: ``int64 [S]`` in the same form.
        output_positions: ``int64 [S]`` position of each packet in output order; None if unknown.
        step: ticks between frames if the times do not give a spacing.
        durations: ``int64 [S]`` display durations that the bitstream declares; they give the spacing. Known times that
            differ by less than a step were derived from decoding times, and do not count.

    Returns:
        ``int64 [S]`` in decode order, all different.
    """
    count = len(pts)
    if output_positions is None:
        # a picture without a time is displayed after the one decoded before it
        latest_known = np.maximum.accumulate(np.where(pts != NO_TIME, np.arange(count), 0))
        output_positions = np.argsort(np.argsort(pts[latest_known], kind="stable"), kind="stable")
    sequence = np.argsort(output_positions, kind="stable")
    in_order = pts[sequence]
    times = np.rint(np.arange(count) * step).astype(np.int64)
    if durations is not None:
        times = np.cumsum(durations[sequence]) - durations[sequence]
    elif bool((dts != NO_TIME).all()) and len(np.unique(dts)) == count:
        # a picture is displayed when the decoder has those that are decoded before it and displayed after it
        delay = min(int((np.arange(count) - output_positions).max()), _MAX_REORDERED)
        times = np.sort(dts)
        spacing = int(np.median(np.diff(times))) if count > 1 else 1
        times = np.append(times[delay:], times[-1] + spacing * np.arange(1, delay + 1))
    known = _agree_with_neighbours(in_order)
    if known.any():
        # the offset between spacing and known time holds until the next known one
        offset = np.where(known, in_order, 0) - times
        if durations is not None:
            offset = _without_small_changes(offset, known, step)
        last_known = np.maximum.accumulate(np.where(known, np.arange(count), -1))
        last_known[last_known < 0] = int(np.argmax(known))
        times = times + offset[last_known]
        backward = np.minimum(np.diff(times), 0)
        times[1:] += np.cumsum(np.where(backward <= -step, round(step) - backward, 0))
    positions = np.arange(count, dtype=np.int64)
    rebuilt = np.empty(count, np.int64)
    rebuilt[sequence] = np.maximum.accumulate(times - positions) + positions  # strictly increasing
    return rebuilt


def _without_small_changes(offset: _Ticks, known: npt.NDArray[np.bool_], step: float) -> _Ticks:
    """Return known offsets in which each that is less than a step from the one before it is replaced by that."""
    kept = offset.copy()
    current = int(offset[np.argmax(known)])
    for position in np.flatnonzero(known).tolist():
        if abs(int(offset[position]) - current) >= step:
            current = int(offset[position])
        kept[position] = current
    return kept


def _agree_with_neighbours(in_order: _Ticks) -> npt.NDArray[np.bool_]:
    """Return True for each time that is known and does not stick out from between two rising neighbours."""
    known: npt.NDArray[np.bool_] = in_order != NO_TIME
    times = in_order[known]
    agree = np.ones(len(times), np.bool_)
    previous, current, following = times[:-2], times[1:-1], times[2:]
    agree[1:-1] = (previous >= following) | ((previous <= current) & (current <= following))
    known[known] = agree
    return known


def has_variable_rate(ticks: _Ticks) -> bool:
    """Return True if frames at ascending ticks are unevenly spaced, beyond rounding to ticks and small jitter.

    At a constant rate each frame lies on a straight line from the first frame to the last, give or take a tick at
    either end; 30000/1001 fps in milliseconds is constant. Up to a twentieth of the spacing is jitter. If a tick is
    about as long as a frame, one missing frame already makes the rate variable.
    """
    if len(ticks) < 3:
        return False
    interval = (int(ticks[-1]) - int(ticks[0])) / (len(ticks) - 1)
    deviation = np.abs(ticks - ticks[0] - interval * np.arange(len(ticks)))
    return bool(deviation.max() > max(min(2.0, 0.4 * interval), interval / 20))
