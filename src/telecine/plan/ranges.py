"""Decode ranges, and how they are split and shortened. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex

__all__ = [
    "DecodeRange",
    "closed_points",
    "find_undecodable_targets",
    "keep_targets",
    "last_packets",
    "output_rows",
    "split_at_closed_points",
    "split_at_resets",
]


@dataclass(frozen=True, eq=False)
class DecodeRange:
    """Packets to feed from one random access point up to the last frame wanted from it."""

    packets: npt.NDArray[np.int64]
    """``int64 [P]`` ordinals of the packets to feed, ascending; the first is a random access point."""
    required: npt.NDArray[np.bool_]
    """``bool [P]`` True if the packet has a picture, shown or not, that must decode without damage."""
    targets: Mapping[int, tuple[int, ...]]
    """Output rows to fill, by the ordinal of each wanted packet."""
    reset: bool
    """True if the decoder must be drained and reset before this range; False if it follows in the same decode pass."""


def output_rows(ranges: Iterable[DecodeRange]) -> dict[int, tuple[int, ...]]:
    """Return the output rows of all targets of some ranges, by packet ordinal."""
    return {packet: rows for range_ in ranges for packet, rows in range_.targets.items()}


def split_at_resets(ranges: Iterable[DecodeRange]) -> Iterator[tuple[DecodeRange, ...]]:
    """Yield the decode passes of a plan: ranges that are fed without resetting the decoder in between."""
    decode_pass: list[DecodeRange] = []
    for range_ in ranges:
        if range_.reset and decode_pass:
            yield tuple(decode_pass)
            decode_pass = []
        decode_pass.append(range_)
    if decode_pass:
        yield tuple(decode_pass)


def closed_points(index: PacketIndex, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions in ``packets`` of closed random access points, ascending."""
    return np.flatnonzero(index.random_access[packets] == int(RandomAccess.CLOSED))


def split_at_closed_points(
    index: PacketIndex, ranges: Iterable[DecodeRange], min_packets: int = 1, keep_all: bool = False
) -> list[DecodeRange]:
    """Split ranges at their closed random access points into ranges that can be decoded independently.

    Ranges without a target are dropped, and so are the packets after the last target of each range,
    unless ``keep_all``. A split is made only if the range before it keeps at least ``min_packets``.
    """
    found = []
    for range_ in ranges:
        bounds = [0]
        for position in closed_points(index, range_.packets).tolist():
            if position - bounds[-1] >= min_packets:
                bounds.append(position)
        for start, stop in pairwise([*bounds, len(range_.packets)]):
            packets = range_.packets[start:stop]
            targets = {packet: range_.targets[packet] for packet in packets.tolist() if packet in range_.targets}
            independent = DecodeRange(packets, range_.required[start:stop], targets, reset=True)
            if keep_all:
                found.append(independent)
            elif targets:
                found.append(keep_targets(index, independent, targets))
    return found


def keep_targets(index: PacketIndex, range_: DecodeRange, targets: Iterable[int]) -> DecodeRange:
    """Return a range for some of its targets only, without the packets after the last of them."""
    kept = {target: range_.targets[target] for target in targets}
    last = last_packets(index, np.array([max(kept)]))[0]
    stop = int(np.searchsorted(range_.packets, last, side="right"))
    return DecodeRange(range_.packets[:stop], range_.required[:stop], kept, reset=True)


def last_packets(index: PacketIndex, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the packet that completes each target: its second field if that is a packet of its own, else itself."""
    following = np.minimum(targets + 1, index.num_packets - 1)
    return targets + (index.second_field[following] & (following > targets))


def find_undecodable_targets(
    index: PacketIndex, range_: DecodeRange, decode: Callable[[DecodeRange], bool]
) -> set[int]:
    """Find by bisection which targets cannot be decoded by a library that returns nothing if any frame fails."""
    # the range has no closed random access point inside, so all targets after a failure fail too
    failed: set[int] = set()

    def search(targets: list[int]) -> bool:
        if decode(keep_targets(index, range_, targets)):
            return True
        half = len(targets) // 2
        if half and search(targets[:half]):
            return search(targets[half:])
        failed.update(targets[half:])
        return False

    search(sorted(range_.targets))
    return failed
