"""Rules for how damage spreads: which frames are unreliable after a packet was lost, corrupt or not decodable."""

from __future__ import annotations

from collections.abc import Collection, Set

import numpy as np
import numpy.typing as npt

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange, output_rows

__all__ = ["DamageTracker", "leads_across_gap", "lost_packets", "unreliable_rows", "unreliable_targets"]


def lost_packets(index: PacketIndex, ranges: Collection[DecodeRange], missing: Set[int], damaged: Set[int]) -> set[int]:
    """Return the packets whose pictures are lost, of those that must decode; see :attr:`DecodeRange.required`.

    A picture that is not shown is never among the decoder's output, so it is lost only if it is damaged.

    Args:
        index: the video's index.
        ranges: the decode ranges that were fed.
        missing: packets that gave no picture.
        damaged: packets that are corrupt, that the decoder refused, or whose picture is damaged.
    """
    required = (packet for range_ in ranges for packet in range_.packets[range_.required].tolist())
    return {packet for packet in required if packet in damaged or (packet in missing and index.presentable[packet])}


def unreliable_targets(
    index: PacketIndex, ranges: Collection[DecodeRange], missing: Set[int], damaged: Set[int] = frozenset(),
    gaps: Set[int] = frozenset(),
) -> set[int]:  # fmt: skip
    """Return the targets that are lost, or that were decoded from something lost or missing.

    Damage spreads in decode order up to the next closed random access point, unless no other picture refers to the
    damaged one. Damage before an open random access point, or of a leading picture, reaches only leading pictures.
    The ranges are one decode pass; ``missing`` and ``damaged`` are those of :func:`lost_packets`, and ``gaps`` are
    packets before which others are missing according to the bitstream.
    """
    tracker, lost = DamageTracker(index), lost_packets(index, ranges, missing, damaged)
    unreliable: set[int] = set()
    for range_ in ranges:
        has_gap = index.has_gap_before(range_.packets).tolist()
        for packet, gap in zip(range_.packets.tolist(), has_gap, strict=True):
            if tracker.is_unreliable(packet, packet in lost, gap, packet in gaps):
                unreliable.add(packet)
    return unreliable & output_rows(ranges).keys()


def unreliable_rows(
    index: PacketIndex, ranges: Collection[DecodeRange], missing: Set[int], damaged: Set[int] = frozenset(),
    gaps: Set[int] = frozenset(),
) -> list[int]:  # fmt: skip
    """Return the output rows of the targets that :func:`unreliable_targets` returns."""
    rows = output_rows(ranges)
    return [row for target in unreliable_targets(index, ranges, missing, damaged, gaps) for row in rows[target]]


class DamageTracker:
    """Follows how damage spreads along the packets of one decode pass; see :func:`unreliable_targets`."""

    def __init__(self, index: PacketIndex) -> None:
        self._index = index
        self._damaged = self._damaged_before_point = False

    def is_unreliable(self, packet: int, is_lost: bool, has_gap: bool, has_bitstream_gap: bool) -> bool:
        """Return True if the next packet, in decode order, is lost or was decoded from something lost or missing.

        Packets before it are missing according to the index (``has_gap``) or to the bitstream.
        """
        index, access = self._index, self._index.random_access[packet]
        if access:
            self._damaged_before_point = (self._damaged or has_gap) and bool(access == int(RandomAccess.OPEN))
            self._damaged = False
        elif has_gap or has_bitstream_gap:
            self._damaged = index.exact_random_access
        is_leading = bool(index.leading[packet])
        is_unreliable = is_lost or self._damaged or (self._damaged_before_point and is_leading)
        if is_lost and not index.disposable[packet] and index.exact_random_access:
            # decoding may start at the point, without its leading pictures: only they refer to each other
            self._damaged_before_point |= is_leading
            self._damaged |= not is_leading
        return is_unreliable


def leads_across_gap(
    index: PacketIndex, packets: npt.NDArray[np.int64], has_gap: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which packets are leading pictures that may refer to packets missing before their random access point."""
    access = index.random_access[packets]
    point = np.maximum.accumulate(np.where(access > 0, np.arange(len(access)), 0))
    across: npt.NDArray[np.bool_] = index.leading[packets] & has_gap[point] & (access[point] == int(RandomAccess.OPEN))
    return across
