"""Which packets to feed for the wanted frames, and in which runs. Pure: from the packet index to the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex

__all__ = ["DecodePlan", "DecodeRange", "make_plan", "unreliable_targets"]


@dataclass(frozen=True, eq=False)
class DecodeRange:
    """Packets to feed in one go, from a random access point up to the last wanted frame that it covers."""

    packets: npt.NDArray[np.int64]
    """``int64`` ordinals of the packets to feed, ascending; the first is a random access point."""
    required: npt.NDArray[np.bool_]
    """``bool`` for each of them, whether it must bring a sound frame for those after it to be sound."""
    targets: Mapping[int, tuple[int, ...]]
    """For each packet whose frame is wanted, the rows of the output that it fills."""
    reset: bool
    """Whether the decoder must be drained and reset in front of it. Not so after a run that it follows on exactly."""


@dataclass(frozen=True, eq=False)
class DecodePlan:
    """What a packet backend executes."""

    ranges: tuple[DecodeRange, ...]
    frames: npt.NDArray[np.int64]
    """``int64 [N]`` the wanted frame index of each output row; repeats and any order."""
    packets_total: int
    """Packets of the stream."""

    @property
    def packets_fed(self) -> int:
        """Packets in all runs."""
        return sum(len(run.packets) for run in self.ranges)


def make_plan(index: PacketIndex, frames: npt.NDArray[np.int64]) -> DecodePlan:
    """Plan the decode of frames.

    A run starts at the last random access point from which its frames can be decoded: for a leading picture that is the
    one before the point in front of it. It ends at the last wanted frame, with its second field where that is a packet
    of its own. In between, every packet is fed that another picture may refer to, and of the disposable ones only those
    that are wanted.

    Args:
        index: of the video.
        frames: ``int64 [N]`` wanted frame indices, each in ``[0, T)``; repeats and any order.
    """
    rows: dict[int, list[int]] = {}
    for row, packet in enumerate(index.display_order[frames].tolist()):
        rows.setdefault(packet, []).append(row)
    targets = np.array(sorted(rows), dtype=np.int64)
    runs: list[DecodeRange] = []
    for start, wanted in _spans(index, targets):
        packets, sound = _packets_to_feed(index, start, wanted)
        restart = not runs or bool(index.random_access[start] != RandomAccess.CLOSED)
        runs.append(DecodeRange(packets, sound, {int(t): tuple(rows[int(t)]) for t in wanted}, restart))
    return DecodePlan(tuple(runs), frames, index.num_packets)


def _spans(index: PacketIndex, targets: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """The stretches of packets to walk, ascending: where each begins, and the targets in it.

    Each target asks for the stretch from its starting point up to itself. Stretches that overlap become one, and so do
    those that touch, which costs nothing and saves a restart.
    """
    if not len(targets):
        return []
    points = np.flatnonzero(index.random_access)
    last = _last_packets(index, targets)
    at = np.searchsorted(points, targets, side="right") - 1
    starts = points[np.maximum(at - index.leading[targets], 0)]
    spans: list[tuple[int, int]] = []  # (start, position of its first target)
    for i, start in enumerate(starts.tolist()):
        first = i
        # a leading picture may reach back over stretches that were complete so far
        while spans and start <= int(last[first - 1]) + 1:
            earlier, first = spans.pop()
            start = min(start, earlier)
        spans.append((start, first))
    ends = [first for _, first in spans[1:]] + [len(targets)]
    return [(start, targets[first:end]) for (start, first), end in zip(spans, ends, strict=True)]


def _last_packets(index: PacketIndex, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The packet that completes each target: itself, or its second field."""
    following: npt.NDArray[np.bool_] = np.append(index.second_field[1:], False)
    last: npt.NDArray[np.int64] = targets + following[targets]
    return last


def _packets_to_feed(
    index: PacketIndex, start: int, wanted: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The packets to feed from ``start`` up to the last wanted one, and which of them must bring a sound frame."""
    span = slice(start, int(_last_packets(index, wanted[-1:])[0]) + 1)
    feed = ~index.disposable[span]
    sound = index.presentable[span].copy()
    # leading pictures of the starting point lack what they refer to; those of later points in the span do not
    later = np.flatnonzero(index.random_access[span][1:])
    reach = slice(0, int(later[0]) + 1 if len(later) else len(feed))
    orphans = index.leading[span][reach]
    sound[reach] &= ~orphans
    if index.skips_leading:
        feed[reach] &= ~orphans
    feed[wanted - start] = True
    ordinals = np.flatnonzero(feed)
    return ordinals + start, sound[ordinals]


def unreliable_targets(
    index: PacketIndex, runs: Iterable[DecodeRange], bad: Set[int], gaps: Set[int] = frozenset()
) -> set[int]:
    """The targets that are bad, or built on what is bad or missing.

    Damage spreads along the decoding order up to the next point that looks back at nothing, unless nothing refers to
    what is damaged. What went wrong ahead of an open point reaches no further than the leading pictures behind it.

    Args:
        index: of the video.
        runs: that were decoded without a restart in between.
        bad: ordinals of packets that did not bring a sound frame.
        gaps: ordinals of packets in front of which the bitstream itself says that others are missing.

    Returns:
        Ordinals of targets.
    """
    found: set[int] = set()
    broken = broken_before = False
    for run in runs:
        for ordinal, torn in zip(run.packets.tolist(), index.has_gap_before(run.packets).tolist(), strict=True):
            if index.random_access[ordinal]:
                broken_before, broken = (broken or torn) and index.random_access[ordinal] == RandomAccess.OPEN, False
            elif torn or ordinal in gaps:
                broken = index.exact_random_access
            touched = ordinal in bad or broken or (broken_before and index.leading[ordinal])
            if touched and ordinal in run.targets:
                found.add(ordinal)
            broken |= ordinal in bad and not index.disposable[ordinal] and index.exact_random_access
    return found
