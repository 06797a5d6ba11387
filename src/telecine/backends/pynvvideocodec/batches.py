"""Batches of packets for the driver's parser, with checks for what it changes without reporting it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from telecine.backends.base import DecodeRequest
from telecine.backends.cuda_output import NVDEC_CODECS
from telecine.bitstream import can_contain_fields, scanner_for
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.h264 import FrameNumGapDetector
from telecine.errors import UnsupportedVideoError
from telecine.index.display_order import order_conflicts

__all__ = ["DEINTERLACES", "DISPLAYED_IN_DECODE_ORDER", "BatchReader", "PacketBatch", "PassState", "refusal"]

DEINTERLACES = "it deinterlaces, but frames must come out as they are, with both fields"
DISPLAYED_IN_DECODE_ORDER = frozenset({"vp8", "vp9", "av1"})
"""Codecs whose frames are displayed in the order of their packets, and whose streams can contain hidden frames."""
_KEY_FRAMES_WITH_SIZE = frozenset({"vp8", "vp9"})
"""Codecs without sequence headers: each key frame has the size of the pictures up to the next one."""
_BATCH_PACKETS = 32
"""Packets that are prepared together: calls of the library then return with little Python in between."""


def refusal(reason: str, codec: str = "") -> UnsupportedVideoError:
    """Return an error that names backends to use instead: pyav, and nvdec if it decodes the codec."""
    also = " or 'nvdec'" if codec in NVDEC_CODECS else ""
    return UnsupportedVideoError(f"pynvvideocodec: {reason}; use backend='pyav'{also}")


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


class PacketBatch(NamedTuple):
    """Packets prepared together, up to position ``stop`` of the decode pass; all have the same decoder key."""

    packets: list[tuple[int, int, int, bytes]]
    """(position in the decode pass, ordinal, pts, data for the parser)."""
    stop: int
    decoder_key: tuple[object, ...]
    """The sequence headers, or the size in the key frame: a decoder made for another one may be unsuitable."""
    check: ParserCheck


@dataclass
class PassState:
    """The packets of a decode pass: the ordinals fed up to ``position``, and those whose frame came out so far."""

    ordinals: npt.NDArray[np.int64]
    pts: Mapping[int, int]
    """By ordinal: the position of the packet's frame in display order."""
    targets: Mapping[int, tuple[int, ...]]
    position: int = 0
    decoded: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    """Ordinals of packets that are corrupt, or follow a gap."""
    frame_width: int | None = None
    """Width of the pictures that are fed, if each key frame says it (VP8, VP9)."""
    ambiguous: set[int] = field(default_factory=set)
    """Ordinals of packets whose frame may have the pts of another one."""


class BatchReader:
    """Reads and prepares the packets of a request. Not thread-safe."""

    def __init__(self, request: DecodeRequest) -> None:
        self._request, self._index = request, request.index
        codec = self._index.codec
        self._header = self._extradata = request.demuxer.extradata
        self._stream = AnnexBConverter(codec, self._extradata)
        self._checked_headers: tuple[bytes, ...] = ()
        self._frame_size: tuple[int, ...] = ()
        self._scanner = scanner_for(codec, self._extradata) if codec in DISPLAYED_IN_DECODE_ORDER else None
        self.packets_done = 0
        """Packets of earlier decode passes."""

    def read(self, decode_pass: PassState, start: int, end: int) -> Iterator[PacketBatch]:
        """Yield the packets from ``start`` up to ``end``, or to one that needs another session; skip corrupt ones."""
        request, index = self._request, self._index
        packets: list[tuple[int, int, int, bytes]] = []
        self._update_extradata(index.extradata_at(int(decode_pass.ordinals[start]), self._header))
        check: ParserCheck | None = None
        key: tuple[object, ...] = ()
        for position, (ordinal, packet) in enumerate(request.reader.read(decode_pass.ordinals[start:end]), start):
            request.deadline.check("decoding", self.packets_done + position, request.plan.packets_fed)
            is_updated = ordinal in index.new_extradata
            if check is not None and packets and (is_updated or len(packets) == _BATCH_PACKETS):
                yield PacketBatch(packets, position, key, check)
                packets = []
            if is_updated:
                self._update_extradata(bytes(index.new_extradata[ordinal]))
            data = None
            if not index.corrupt[ordinal]:
                data = self._stream.convert(memoryview(packet), check is None, bool(index.random_access[ordinal]))
            if data is None:
                decode_pass.damaged.add(ordinal)
                continue
            self._refuse_misreported(packet, bool(index.key[ordinal]))
            packet_key = self._decoder_key(ordinal, memoryview(packet))
            if check is None:
                check, key = ParserCheck(index.codec, self._extradata), packet_key
                decode_pass.frame_width = next(iter(self._frame_size), None)
            elif packet_key != key:
                end = position
                break
            pts = decode_pass.pts[ordinal]
            if check.add_packet(ordinal, pts, memoryview(packet), bool(index.key[ordinal])):
                decode_pass.damaged.add(ordinal)
            packets.append((position, ordinal, pts, data))
        if check is not None and packets:
            yield PacketBatch(packets, end, key, check)

    def _decoder_key(self, ordinal: int, packet: memoryview) -> tuple[object, ...]:
        """Return what a decoder is made for, of a packet that was just converted."""
        codec = self._index.codec
        if codec not in _KEY_FRAMES_WITH_SIZE:
            return self._stream.sequence_headers
        if self._index.random_access[ordinal]:
            scanner = scanner_for(codec, b"")
            assert scanner is not None  # there is one for both codecs
            scanner.scan(packet, True, with_order=False)
            if scanner.picture is not None:
                self._frame_size = scanner.picture.width, scanner.picture.height
        return self._frame_size

    def _update_extradata(self, extradata: bytes) -> None:
        """Set the extradata that apply to the next packet; a position may be fed a second time with earlier ones."""
        if extradata != self._extradata:
            self._extradata = extradata
            self._stream.update_extradata(extradata)

    def _refuse_misreported(self, packet: Any, is_key: bool) -> None:
        """Raise UnsupportedVideoError at packets whose frames the library changes or gives the wrong pts."""
        codec = self._index.codec
        if self._stream.sequence_headers != self._checked_headers:
            self._checked_headers = self._stream.sequence_headers
            if any(can_contain_fields(codec, header) for header in self._checked_headers):
                raise refusal(DEINTERLACES, codec)
        if self._scanner is None:
            return
        if not self._scanner.scan(memoryview(packet), is_key, with_order=False).has_single_shown_frame:
            raise refusal(f"it gives frames of {codec} the pts of others if there are hidden frames", codec)
