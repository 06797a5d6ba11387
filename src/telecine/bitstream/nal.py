"""Cutting a packet of H.264 or HEVC into NAL units, in both of the ways they are framed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

__all__ = [
    "MOST_UNITS", "PARAMETER_SETS", "SEQUENCE_SETS", "NalUnits", "SetsInForce", "annex_b", "nal_type", "unescape",
]  # fmt: skip

_HEADER_BYTES = 256
"""How much of a NAL unit is handed out, unless it is a parameter set: enough for a slice header's beginning."""
MOST_UNITS = 10_000
"""Looked at in one packet. No picture has so many slices, and a flood of empty units takes time."""
SEQUENCE_SETS = {"h264": 7, "hevc": 33}
"""The type of a sequence parameter set, by codec (H.264 table 7-1, HEVC table 7-1)."""
PARAMETER_SETS = {"h264": frozenset({7, 8, 13, 15}), "hevc": frozenset({32, 33, 34})}
"""The types of all parameter sets."""
_BUILT_ON = {7: frozenset({8}), 32: frozenset({33, 34}), 33: frozenset({34})}
"""By the type of a set, those of the sets that refer to it; no type means one thing in H.264 and another in HEVC."""
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
        self._whole = _SET_BEGINNINGS[codec]

    def __call__(self, packet: bytes | memoryview) -> Iterator[bytes]:
        """Yield the beginning of each NAL unit of ``packet``, in order; a broken length ends the packet."""
        return islice(self._prefixed(packet) if self.length_size else annex_b(packet, self._whole), MOST_UNITS)

    def _prefixed(self, packet: bytes | memoryview) -> Iterator[bytes]:
        size, at, end = self.length_size, 0, len(packet)
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            most = length if packet[at] in self._whole else _HEADER_BYTES
            yield bytes(packet[at : min(at + length, at + most, end)])
            at += length


def annex_b(packet: bytes | memoryview, whole: frozenset[int] | None = None) -> Iterator[bytes]:
    """Yield the beginning of each NAL unit between start codes.

    Args:
        packet: bytes.
        whole: first bytes of units that are wanted to their end; None for all.
    """
    data = bytes(packet)
    at = data.find(b"\0\0\1")
    while at >= 0:
        at += 3
        following = data.find(b"\0\0\1", at)
        stop = following if following >= 0 else len(data)
        most = stop - at if whole is None or (at < stop and data[at] in whole) else _HEADER_BYTES
        yield data[at : min(stop, at + most)]
        at = following


class SetsInForce:
    """Which parameter sets of a stream are not those of its header any more. Not thread-safe.

    A decoder knows the sets of the header, and those that it has met. So where one has ever become another, decoding
    can start only at a packet that brings it: what was in force there before cannot be known to one that begins.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bytes] = {}
        self._changed: set[tuple[int, int]] = set()
        self._brought: set[tuple[int, int]] = set()
        self._met: list[tuple[int, int, bytes]] = []

    def of_header(self, kind: int, number: int, unit: bytes) -> None:
        """Note a set of the header."""
        self._known[kind, number] = unit.rstrip(b"\0")

    def meet(self, kind: int, number: int, unit: bytes) -> None:
        """Note a set that is in a packet; it is :meth:`complete` that says whether to believe it."""
        self._met.append((kind, number, unit))

    def bring(self, kind: int, number: int, unit: bytes) -> None:
        """Note a set that the container brings beside the packet that is next."""
        key, unit = (kind, number), unit.rstrip(b"\0")  # zeros at the end belong to the next start code
        if self._known.get(key) != unit:
            self._known[key] = unit
            # FFmpeg's decoders drop what was built on a set when that becomes another
            self._changed |= {key, *(other for other in self._known if other[0] in _BUILT_ON.get(kind, ()))}
        self._brought.add(key)

    @property
    def waiting(self) -> bool:
        """Whether any came beside the packet that is next."""
        return bool(self._brought)

    def complete(self, believed: bool) -> bool:
        """Whether a decoder that starts at this packet has all sets. What comes from now on belongs to the next one.

        Args:
            believed: whether those that were met in it count.
        """
        if believed:
            for parameters in self._met:
                self.bring(*parameters)
        self._met.clear()
        found = self._changed <= self._brought
        self._brought.clear()
        return found


def nal_type(codec: str, unit: bytes) -> int:
    """``nal_unit_type`` of a NAL unit that is not empty (H.264 7.3.1, HEVC 7.3.1.2)."""
    shift, mask = _TYPE_IN_HEAD[codec]
    return unit[0] >> shift & mask


_SET_BEGINNINGS = {
    codec: frozenset(first for first in range(256) if nal_type(codec, bytes([first])) in kinds)
    for codec, kinds in PARAMETER_SETS.items()
}
"""The first bytes of parameter sets, by codec."""


def unescape(nal: bytes) -> bytes:
    """Remove the emulation prevention bytes of a NAL unit (H.264 and HEVC, 7.3.1)."""
    return nal.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in nal else nal
