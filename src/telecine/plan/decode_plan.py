"""The decode plan: the packets to feed for the wanted frames, grouped into decode ranges. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange, closed_points, last_packets

__all__ = ["DecodePlan", "make_plan", "split_frames"]


@dataclass(frozen=True, eq=False)
class DecodePlan:
    """The packets to feed and the frames to keep. Backends execute it."""

    ranges: tuple[DecodeRange, ...]
    """Decode ranges in ascending packet order; they do not overlap."""
    frames: npt.NDArray[np.int64]
    """``int64 [N]`` the wanted frame index of each output row; repeats and any order."""
    packets_total: int
    """Number of packets in the stream."""

    @property
    def packets_fed(self) -> int:
        """Number of packets in all decode ranges."""
        return sum(len(range_.packets) for range_ in self.ranges)


def make_plan(index: PacketIndex, frames: npt.NDArray[np.int64], only_closed: bool = False) -> DecodePlan:
    """Plan the decoding of frames.

    A decode range starts at the last random access point from which its targets can be decoded; for a leading picture
    that is the point before its own. It ends at its last target, or at the second field of that. Between the two, all
    packets that another picture may refer to are fed, and of the disposable ones only the targets.
    ``only_closed`` allows ranges to start only at closed random access points, or at the first point of the video.
    """
    rows: dict[int, list[int]] = {}
    for row, packet in enumerate(index.display_order[frames].tolist()):
        rows.setdefault(packet, []).append(row)
    targets = np.array(sorted(rows), dtype=np.int64)
    ranges: list[DecodeRange] = []
    for start, wanted in _group_targets(index, targets, only_closed):
        packets, required = _packets_to_feed(index, start, wanted)
        reset = not ranges or bool(index.random_access[start] != int(RandomAccess.CLOSED))
        ranges.append(DecodeRange(packets, required, {int(t): tuple(rows[int(t)]) for t in wanted}, reset))
    return DecodePlan(tuple(ranges), frames, index.num_packets)


def _group_targets(
    index: PacketIndex, targets: npt.NDArray[np.int64], only_closed: bool
) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Return (first packet, targets) of each decode range, ascending."""
    # each target needs the packets from its random access point up to itself. Needs that overlap are merged, and so are
    # those that touch: that feeds nothing more and saves a reset
    if not len(targets):
        return []
    points = np.flatnonzero(index.random_access)
    last = last_packets(index, targets)
    if only_closed:
        points = np.union1d(points[:1], points[closed_points(index, points)])
    at = np.searchsorted(points, targets, side="right") - 1
    starts = points[at if only_closed else np.maximum(at - index.leading[targets], 0)]
    groups: list[tuple[int, int]] = []  # (first packet, position of the first target)
    for i, start in enumerate(starts.tolist()):
        first = i
        # a leading picture may reach back over groups that were complete so far
        while groups and start <= int(last[first - 1]) + 1:
            earlier, first = groups.pop()
            start = min(start, earlier)
        groups.append((start, first))
    ends = [first for _, first in groups[1:]] + [len(targets)]
    return [(start, targets[first:end]) for (start, first), end in zip(groups, ends, strict=True)]


def _packets_to_feed(
    index: PacketIndex, start: int, targets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the packets to feed from ``start`` to the last target, and which of them must decode without damage."""
    covered = slice(start, int(last_packets(index, targets[-1:])[0]) + 1)
    feed = ~index.disposable[covered]
    required = index.has_picture[covered].copy()
    # leading pictures of the first point lack their references; those of later points have them
    later = np.flatnonzero(index.random_access[covered][1:])
    before_later = slice(0, int(later[0]) + 1 if len(later) else len(feed))
    undecodable = index.leading[covered][before_later]
    required[before_later] &= ~undecodable
    if index.skips_leading:
        feed[before_later] &= ~undecodable
    feed[targets - start] = True
    positions = np.flatnonzero(feed)
    return positions + start, required[positions]


def split_frames(index: PacketIndex, frames: npt.NDArray[np.int64], min_frames: int, max_frames: int) -> list[slice]:
    """Split wanted frames at random access points into groups that can be decoded one after another.

    Each group but the first begins at a random access point in presentation order. Two neighbours then share no packet
    at a closed point. At an open point they share the point's own picture, and leading pictures that others refer to.
    Neighbouring groups are joined up to ``min_frames`` together. A group of more than ``max_frames`` is split between
    random access points, and the packets before the split are then in the plans of both. Frames out of order are split
    by count.
    """
    count = len(frames)
    if (np.diff(frames) < 0).any():
        return [slice(start, min(start + min_frames, count)) for start in range(0, count, min_frames)]
    points = index.random_access[index.display_order] > 0
    bounds, last = [0], 0
    for cut in [*np.unique(np.searchsorted(frames, np.flatnonzero(points))).tolist(), count]:
        if cut - bounds[-1] > min_frames and last > bounds[-1]:
            bounds.append(last)
        last = cut
    if last > bounds[-1]:
        bounds.append(last)
    return [
        slice(start, min(start + max_frames, end))
        for begin, end in pairwise(bounds)
        for start in range(begin, end, max_frames)
    ]
