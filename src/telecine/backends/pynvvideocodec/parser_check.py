"""Checks for what the driver's parser does without reporting it: exchanged timestamps, missing reference pictures."""

from __future__ import annotations

from telecine.bitstream import scanner_for
from telecine.bitstream.h264 import FrameNumGapDetector
from telecine.index.display_order import order_conflicts

__all__ = ["DISPLAYED_IN_DECODE_ORDER", "ParserCheck"]

DISPLAYED_IN_DECODE_ORDER = frozenset({"vp8", "vp9", "av1"})
"""Codecs whose frames are displayed in the order of their packets, and whose streams can contain hidden frames."""


class ParserCheck:
    """Compares the timestamps given to the parser with the bitstream. Not thread-safe: one per decoder session.

    The parser expects timestamps that rise in the bitstream's output order. It exchanges those that do not, and frames
    then come out under the timestamps of others.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._numbers = FrameNumGapDetector(extradata) if codec == "h264" else None
        self._scanner = None if codec in DISPLAYED_IN_DECODE_ORDER else scanner_for(codec, extradata)
        self._is_order_known = True
        self._timestamps: dict[int, int] = {}
        self._orders: dict[int, tuple[int, int]] = {}

    def add_packet(self, ordinal: int, timestamp: int, packet: memoryview, is_key: bool) -> bool:
        """Record a packet that is fed. Returns True if frame numbers show a missing reference before it."""
        if self._scanner is not None:
            facts = self._scanner.scan(packet, is_key, with_order=True)
            if facts.shown and facts.display_order is not None:
                self._timestamps[ordinal], self._orders[ordinal] = timestamp, facts.display_order
            self._is_order_known &= not facts.shown or facts.display_order is not None
        return self._numbers is not None and self._numbers.has_gap_before(packet)

    def exchanged_packets(self) -> set[int]:
        """Return the ordinals of packets whose timestamps contradict the bitstream's output order."""
        return order_conflicts(self._timestamps, self._orders) if self._is_order_known else set()
