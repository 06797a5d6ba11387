"""The labels by which a parser that sorts frames for presentation gives them back, and what it does not tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from telecine.bitstream import scanner_for
from telecine.bitstream.h264 import FrameNumbers
from telecine.container.timestamps import NO_TIME
from telecine.index.packet_index import PacketIndex

__all__ = ["IN_ORDER", "Watch", "labels", "places"]

IN_ORDER = frozenset({"vp8", "vp9", "av1"})
"""Codecs whose frames are shown in the order of their packets."""


class Watch:
    """Looks for what the driver's parser passes over in silence. Not thread-safe: one for each stretch."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._numbers = FrameNumbers(extradata) if codec == "h264" else None
        self._scanner = None if codec in IN_ORDER else scanner_for(codec, extradata)
        self._known = True
        self._frames: list[tuple[int, int, tuple[int, int]]] = []  # (ordinal, label, place that the stream says)

    def look(self, ordinal: int, label: int, packet: memoryview, is_key: bool) -> bool:
        """Look at a packet that is fed; say whether a picture is missing in front of it that it may be built on."""
        if self._scanner is not None:
            facts = self._scanner.scan(packet, is_key, want_order=True)
            if facts.shown and facts.display_order is not None:
                self._frames.append((ordinal, label, facts.display_order))
            self._known &= not facts.shown or facts.display_order is not None
        return self._numbers is not None and self._numbers.gap_before(packet)

    def exchanged(self) -> set[int]:
        """Ordinals of the packets whose labels contradict the stream's own order: the parser exchanges those."""
        if not self._known:
            return set()
        by_label = sorted(self._frames, key=lambda frame: frame[1])
        by_stream = sorted(self._frames, key=lambda frame: frame[2])
        return {one[0] for one, other in zip(by_label, by_stream, strict=True) if one is not other}


def places(index: PacketIndex, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``int64`` the place of each packet in order of presentation among those given.

    NVDEC's parser insists on timestamps that ascend in that order: it exchanges them where they do not, and frames
    would change their names. So labels are places, not decoding order, nor the container's times where those are
    rebuilt. What no viewer sees has its place by its own time.
    """
    frame = np.full(index.num_packets, -1, np.int64)
    frame[index.display_order] = np.arange(index.num_frames)
    shown = frame[ordinals] >= 0
    times = np.full(len(ordinals), NO_TIME, np.int64)
    times[shown] = index.timeline.ticks[frame[ordinals[shown]]]
    timed = ~shown & (index.pts[ordinals] != NO_TIME) & (not index.synthetic_times)
    times[timed] = index.pts[ordinals[timed]] - index.pts[index.display_order[0]]
    found = np.empty(len(ordinals), np.int64)
    found[np.lexsort((ordinals, times))] = np.arange(len(ordinals))
    return found


def labels(index: PacketIndex, ordinals: npt.NDArray[np.int64]) -> dict[int, int]:
    """The place of each packet's frame, as of :func:`places`, by ordinal. A second field has that of its picture."""
    found = places(index, ordinals)
    second = np.flatnonzero(index.second_field[ordinals])
    second = second[second > 0]
    found[second] = found[second - 1]
    return dict(zip(ordinals.tolist(), found.tolist(), strict=True))
