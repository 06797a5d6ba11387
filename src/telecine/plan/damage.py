"""Rules for how damage spreads: which frames are unreliable after a packet was lost, corrupt or not decodable."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
import numpy.typing as npt

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange

__all__ = ["leads_across_gap", "required_losses", "unreliable_targets"]


def required_losses(ranges: Iterable[DecodeRange], lost: Set[int]) -> set[int]:
    """Return the packets in ``lost`` that had to decode without damage; see :attr:`DecodeRange.required`."""
    return {packet for range_ in ranges for packet in range_.packets[range_.required].tolist() if packet in lost}


def unreliable_targets(
    index: PacketIndex, ranges: Iterable[DecodeRange], lost: Set[int], gaps: Set[int] = frozenset()
) -> set[int]:
    """Return the targets that are lost, or that were decoded from something lost or missing.

    Damage spreads in decode order up to the next closed random access point, unless no other picture refers to the
    damaged one. Damage before an open random access point reaches only its leading pictures.

    Args:
        index: packet index of the video.
        ranges: decode ranges that were fed in one decode pass.
        lost: ordinals of packets that gave no frame or a damaged one.
        gaps: ordinals of packets before which packets are missing, according to the bitstream.

    Returns:
        Packet ordinals of the unreliable targets.
    """
    unreliable: set[int] = set()
    damaged = damaged_before_point = False
    for range_ in ranges:
        has_gap = index.has_gap_before(range_.packets).tolist()
        for packet, required, gap in zip(range_.packets.tolist(), range_.required.tolist(), has_gap, strict=True):
            is_lost = required and packet in lost
            if index.random_access[packet]:
                is_open = index.random_access[packet] == RandomAccess.OPEN
                damaged_before_point, damaged = (damaged or gap) and is_open, False
            elif gap or packet in gaps:
                damaged = index.exact_random_access
            is_unreliable = is_lost or damaged or (damaged_before_point and index.leading[packet])
            if is_unreliable and packet in range_.targets:
                unreliable.add(packet)
            damaged |= is_lost and not index.disposable[packet] and index.exact_random_access
    return unreliable


def leads_across_gap(
    index: PacketIndex, packets: npt.NDArray[np.int64], has_gap: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which packets are leading pictures that may refer to packets missing before their random access point.

    Args:
        index: packet index of the video.
        packets: ``int64 [N]`` ordinals of one or more decode ranges, ascending.
        has_gap: ``bool [N]`` True if packets may be missing before this one.

    Returns:
        ``bool [N]``.
    """
    access = index.random_access[packets]
    point = np.maximum.accumulate(np.where(access > 0, np.arange(len(access)), 0))
    across: npt.NDArray[np.bool_] = index.leading[packets] & has_gap[point] & (access[point] == RandomAccess.OPEN)
    return across
