"""Cutting a packet of H.264 or HEVC into NAL units, in both of the ways they are framed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

__all__ = ["MOST_UNITS", "PARAMETER_SETS", "SEQUENCE_SETS", "NalUnits", "annex_b", "nal_type", "unescape"]

_HEADER_BYTES = 256
"""How much of a NAL unit is handed out: enough for a slice header's beginning and for a sequence parameter set."""
MOST_UNITS = 10_000
"""Looked at in one packet. No picture has so many slices, and a flood of empty units takes time."""
SEQUENCE_SETS = {"h264": 7, "hevc": 33}
"""The type of a sequence parameter set, by codec (H.264 table 7-1, HEVC table 7-1)."""
PARAMETER_SETS = {"h264": frozenset({7, 8, 13, 15}), "hevc": frozenset({32, 33, 34})}
"""The types of all parameter sets."""
_TYPE_IN_HEAD = {"h264": (0, 0x1F), "hevc": (1, 0x3F)}
_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}
"""Where ``avcC`` and ``hvcC`` keep ``lengthSizeMinusOne`` (ISO/IEC 14496-15)."""


class NalUnits:
    """Iterates over the NAL units of packets of one stream.

    Args:
        extradata: the stream's ``avcC``/``hvcC`` record, or Annex-B parameter sets, or nothing.
        codec: "h264" or "hevc".
    """

    def __init__(self, extradata: bytes, codec: str) -> None:
        length_size_at = _LENGTH_SIZE_AT[codec]
        # both records begin with configurationVersion 1, a start code with 0
        framed = len(extradata) > length_size_at and extradata[0] == 1
        self.length_size = (extradata[length_size_at] & 3) + 1 if framed else 0

    def __call__(self, packet: bytes | memoryview) -> Iterator[bytes]:
        """Yield the beginning of each NAL unit of ``packet``, in order; a broken length ends the packet."""
        return islice(self._prefixed(packet) if self.length_size else annex_b(packet), MOST_UNITS)

    def _prefixed(self, packet: bytes | memoryview) -> Iterator[bytes]:
        size, at, end = self.length_size, 0, len(packet)
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            yield bytes(packet[at : min(at + length, at + _HEADER_BYTES, end)])
            at += length


def annex_b(packet: bytes | memoryview) -> Iterator[bytes]:
    """Yield the beginning of each NAL unit between start codes."""
    data = bytes(packet)
    at = data.find(b"\0\0\1")
    while at >= 0:
        at += 3
        following = data.find(b"\0\0\1", at)
        stop = following if following >= 0 else len(data)
        yield data[at : min(stop, at + _HEADER_BYTES)]
        at = following


def nal_type(codec: str, unit: bytes) -> int:
    """``nal_unit_type`` of a NAL unit that is not empty (H.264 7.3.1, HEVC 7.3.1.2)."""
    shift, mask = _TYPE_IN_HEAD[codec]
    return unit[0] >> shift & mask


def unescape(nal: bytes) -> bytes:
    """Remove the emulation prevention bytes of a NAL unit (H.264 and HEVC, 7.3.1)."""
    return nal.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in nal else nal
