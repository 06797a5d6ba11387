"""Display order: from the container's times if they can be trusted, else from the bitstream's output order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from telecine.bitstream import REORDERING_CODECS, Leading, RandomAccess
from telecine.container.timestamps import (
    NO_TIME,
    are_usable_timestamps,
    rebuild_timestamps,
    respects_random_access,
    unwrap_timestamps,
)
from telecine.index.output_order import find_output_order, positions_by_keys
from telecine.index.packet_scan import PacketScan

__all__ = ["PacketTimes", "display_positions", "display_times", "leading_pictures", "order_conflicts"]

# Enum members are compared with arrays as int(): NumPy reads attributes of other objects, and drops an exception that a
# signal handler raises there.
_MPEG_SYSTEMS = frozenset({"mpegts", "mpeg"})
"""FFmpeg's names of the containers with 33-bit timestamps."""
_HIDDEN_PACKET_CODECS = ("vp8", "vp9")
"""Codecs in which a packet may be a hidden frame alone."""
_BITSTREAM_DURATIONS = frozenset({"mpegts", "mpeg", "mpegvideo"})
"""FFmpeg's names of the containers in which durations of packets come from the headers of the pictures."""
_MAX_STRAY = 0.04
"""Share of the pictures that may seem to be reordered because their headers are damaged."""
_MAX_TICKS = 1 << 56
"""Larger times are damage. Sums and differences of smaller ones stay within 64 bits."""
_MIN_TIMES = 4
"""Times that are needed to tell that another one is absurd."""
_MAX_MISSING_FRAMES = 1 << 23
"""Times farther from the others than so many frames are damage: three days at 30 frames per second."""
_Ticks = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


class PacketTimes:
    """Times and output order of all packets of a video, in decode order, as container and bitstream give them.

    ``with_order`` as of :func:`telecine.index.packet_scan.scan_packets`.
    """

    def __init__(self, scan: PacketScan, container: str, with_order: bool) -> None:
        self.pts: _Ticks = np.array(scan.pts)
        self.dts: _Ticks = np.array(scan.dts)
        for times in (self.pts, self.dts):
            times[(times < -_MAX_TICKS) | (times > _MAX_TICKS)] = NO_TIME
            known = times[times != NO_TIME]
            step = np.median(np.abs(np.diff(known))) if len(known) > _MIN_TIMES else 0
            if step and container not in _MPEG_SYSTEMS:  # whose times have 33 bits
                times[np.abs(times - np.median(known)) > (len(known) + _MAX_MISSING_FRAMES) * step] = NO_TIME
        if container in _MPEG_SYSTEMS:
            self.pts, self.dts = unwrap_timestamps(self.pts, self.dts)
        self._has_time_tables = container.startswith(("mov", "matroska"))
        self.shown = scan.fact("shown", np.bool_) & ~np.frombuffer(bytes(scan.discard), np.bool_)
        """``bool [P]`` True if the packet's frame is displayed. Times of other packets may be anything."""
        if scan.codec in _HIDDEN_PACKET_CODECS and (damaged := scan.fact("is_damaged", np.bool_)).any():
            # a hidden frame has the time of the shown one after it, or in IVF a tick less
            steps = np.abs(np.diff(self.pts))
            self.shown[:-1] &= ~(damaged[:-1] & (self.pts[:-1] != NO_TIME) & (4 * steps <= min(4, np.median(steps))))
        self._is_reordered = scan.codec in REORDERING_CODECS
        self.leading = scan.fact("leading", np.int8)
        self.output_positions: _Ticks | None = None
        """``int64 [S]`` position of each shown packet in the bitstream's output order; None if not known."""
        self.uncertain = np.zeros_like(self.shown)
        """``bool [P]`` True if that position is uncertain, because headers are destroyed."""
        if scan.codec not in REORDERING_CODECS:
            self.output_positions = np.arange(np.count_nonzero(self.shown))
        elif with_order:
            ordinals = np.flatnonzero(self.shown)
            self.output_positions, uncertain = find_output_order([scan.facts[i].display_order for i in ordinals])
            self.uncertain[ordinals[list(uncertain)]] = True
        # packets with packed B-frames carry the times of other pictures
        has_others_pts = bool(scan.fact("has_packed_b_frame", np.bool_).any())
        steps, positions = np.diff(self.pts[self.shown]), self.output_positions
        # pts that rise monotonically in decode order although the stream has B-pictures are probably dts
        may_be_dts = len(steps) > 0 and bool((steps > 0).all() and scan.fact("disposable", np.bool_).any())
        # one damaged picture may seem to be reordered
        num_reordered = 0 if positions is None else int((np.diff(positions) < 0).sum())
        is_reordered = num_reordered > _MAX_STRAY * len(steps)
        # without times of their own, packets of FLV and MP4 still have the offset from dts to pts
        base = self.dts[self.shown] if (self.dts != NO_TIME).all() else self.pts[self.shown]
        is_constant = (
            len(base) > 1 and bool((base == base[0]).all()) and not are_usable_timestamps(self.pts[self.shown])
        )
        self.has_wrong_pts = has_others_pts or (may_be_dts and is_reordered) or is_constant
        """True if the bitstream shows that pts belong to other pictures, or are dts, or if all have the same time."""
        durations = np.array(scan.duration)[self.shown]
        varies = container in _BITSTREAM_DURATIONS and len(durations) and 0 < 5 * durations.min() < 4 * durations.max()
        self.durations: _Ticks | None = durations if varies else None
        """``int64 [S]`` display durations of shown packets if they vary: fields of pictures are repeated (telecine)."""
        self.set_random_access(scan.fact("random_access", np.uint8))
        trusted = self.has_plausible_pts and not has_others_pts and not may_be_dts
        self.are_sufficient = positions is not None or trusted
        """True if display times can be derived without reading the output order from the bitstream."""

    def set_random_access(self, random_access: npt.NDArray[np.uint8]) -> None:
        """Set the random access points, and check pts with them."""
        self.random_access = random_access
        pts = self.pts[self.shown]
        self.has_plausible_pts = (
            (self._is_reordered or bool((np.diff(pts) > 0).all()))
            and are_usable_timestamps(pts)
            and (
                # these files cannot be joined by appending one to another: a contradiction is damage of the bitstream
                self._has_time_tables
                or respects_random_access(
                    self.pts,
                    self.shown,
                    random_access == int(RandomAccess.OPEN),
                    random_access == int(RandomAccess.CLOSED),
                )
            )
        )
        """True if pts are complete, distinct, and consistent with the random access points."""


def display_times(packets: PacketTimes, step: float) -> tuple[_Ticks, _Flags, bool]:
    """Derive display times and leading pictures.

    Args:
        packets: times and output order of the packets.
        step: ticks between frames if the times do not show it.

    Returns:
        ``int64 [P]`` display times, the container's for packets that are not shown; ``bool [P]`` True if the packet
        needs packets before the random access point that precedes it; True if the container's times were missing or
        contradictory, and were rebuilt.
    """
    shown, are_synthetic = packets.shown, packets.has_wrong_pts or not packets.has_plausible_pts
    ticks = packets.pts.copy()
    if are_synthetic and shown.any():
        known = np.full_like(ticks, NO_TIME) if packets.has_wrong_pts else ticks
        ticks[shown] = rebuild_timestamps(
            known[shown], packets.dts[shown], packets.output_positions, step, packets.durations
        )
    # only times of shown packets may have been rebuilt: if one of the two is not shown, the container's are compared
    own = ticks if packets.has_wrong_pts else packets.pts
    return ticks, leading_pictures(packets.random_access, packets.leading, shown, ticks, own), are_synthetic


def leading_pictures(
    access: npt.NDArray[np.uint8], facts: npt.NDArray[np.int8], shown: _Flags, ticks: _Ticks, own: _Ticks
) -> _Flags:
    """Return which packets need packets before the random access point that precedes them.

    Args:
        access: :class:`RandomAccess` of consecutive packets.
        facts: :class:`Leading` of each.
        shown: True if its frame is displayed.
        ticks: display times.
        own: times to compare if a packet or the point before it is not shown; :data:`NO_TIME` if unknown.
    """
    position = np.maximum.accumulate(np.where(access > 0, np.arange(len(ticks)), -1))
    point = np.maximum(position, 0)
    follows_open = (position >= 0) & (access[point] == int(RandomAccess.OPEN))
    comparable = (own != NO_TIME) & (own[point] != NO_TIME) & ~(shown & shown[point])
    precedes = np.where(comparable, own < own[point], (ticks < ticks[point]) & (ticks != NO_TIME))
    unknown = facts == int(Leading.UNKNOWN)
    leading: _Flags = (facts == int(Leading.SKIPPED)) | (unknown & follows_open & precedes)
    return leading


def display_positions(ticks: _Ticks, shown: _Flags, second_field: _Flags) -> _Ticks:
    """Return the position of each packet in display order among those given, from 0 and without repeats.

    Times are in decode order, and known for shown packets. A second field follows its first field. A hidden packet
    without a time precedes all shown packets after it in decode order, because a decoder may output it there.
    """
    following = np.minimum.accumulate(np.where(shown, ticks, np.iinfo(np.int64).max)[::-1])[::-1]
    timed = ticks != NO_TIME
    keys = np.where(timed, ticks, following)
    fields = np.flatnonzero(second_field)
    fields = fields[fields > 0]
    keys[fields], timed[fields] = keys[fields - 1], timed[fields - 1]
    return positions_by_keys(np.arange(len(keys)), timed, keys)


def order_conflicts(positions: Mapping[int, int], orders: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the packets whose display position contradicts the bitstream's output order, both by packet ordinal."""
    by_position, by_output = sorted(orders, key=positions.__getitem__), sorted(orders, key=orders.__getitem__)
    return {one for one, other in zip(by_position, by_output, strict=True) if one != other}
