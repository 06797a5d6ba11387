"""NAL units of H.264 and HEVC: types, splitting and joining, in Annex B and in length-prefixed framing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

__all__ = [
    "MAX_NAL_UNITS", "PARAMETER_SET_TYPES", "SPS_TYPE", "START_CODE", "NalSplitter", "join_annex_b",
    "join_length_prefixed", "nal_length_size", "nal_type", "replace_nal_units", "split_annex_b",
    "split_length_prefixed", "unescape",
]  # fmt: skip

START_CODE = b"\0\0\0\1"
MAX_NAL_UNITS = 10_000
"""Limit of NAL units read from one packet. No picture has so many slices, and a flood of empty units takes time."""
SPS_TYPE = {"h264": 7, "hevc": 33}
"""``nal_unit_type`` of a sequence parameter set, by codec (H.264 table 7-1, HEVC table 7-1)."""
PARAMETER_SET_TYPES = {"h264": frozenset({7, 8, 13, 15}), "hevc": frozenset({32, 33, 34})}
"""``nal_unit_type`` of all parameter sets, by codec."""
_MAX_SLICE_BYTES = 256
"""Bytes of a unit other than a parameter set that :class:`NalSplitter` gives: enough for a slice header."""
_TYPE_SHIFT_AND_MASK = {"h264": (0, 0x1F), "hevc": (1, 0x3F)}
_LENGTH_SIZE_OFFSET = {"h264": 4, "hevc": 21}
"""Offset of ``lengthSizeMinusOne`` in ``avcC`` and ``hvcC`` (ISO/IEC 14496-15)."""


def nal_type(codec: str, unit: bytes) -> int:
    """Return ``nal_unit_type`` of a NAL unit that is not empty (H.264 7.3.1, HEVC 7.3.1.2)."""
    shift, mask = _TYPE_SHIFT_AND_MASK[codec]
    return unit[0] >> shift & mask


_PARAMETER_SET_FIRST_BYTES = {
    codec: frozenset(first for first in range(256) if nal_type(codec, bytes([first])) in types)
    for codec, types in PARAMETER_SET_TYPES.items()
}


def unescape(unit: bytes) -> bytes:
    """Remove the emulation prevention bytes of a NAL unit (H.264 and HEVC, 7.3.1)."""
    return unit.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in unit else unit


def nal_length_size(codec: str, extradata: bytes) -> int:
    """Return the size in bytes of the length before each NAL unit of a stream; 0 if it is in Annex B."""
    offset = _LENGTH_SIZE_OFFSET[codec]
    # avcC and hvcC begin with configurationVersion 1, a start code with 0
    is_record = len(extradata) > offset and extradata[0] == 1
    return (extradata[offset] & 3) + 1 if is_record else 0


class NalSplitter:
    """Splits the packets of one stream into the beginnings of their NAL units, which is enough to read headers.

    Args:
        codec: "h264" or "hevc".
        extradata: the stream's ``avcC``/``hvcC``, or Annex B parameter sets, or nothing.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.length_size = nal_length_size(codec, extradata)
        """Bytes of the length before each NAL unit; 0 for Annex B."""
        self._whole = _PARAMETER_SET_FIRST_BYTES[codec]

    def split(self, packet: bytes | memoryview) -> Iterator[bytes]:
        """Yield parameter sets whole and up to 256 bytes of other units, in order; a wrong length ends the packet."""
        units = self._length_prefixed(packet) if self.length_size else split_annex_b(packet, self._whole)
        return islice(units, MAX_NAL_UNITS)

    def _length_prefixed(self, packet: bytes | memoryview) -> Iterator[bytes]:
        size, at, end = self.length_size, 0, len(packet)
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            most = length if packet[at] in self._whole else _MAX_SLICE_BYTES
            yield bytes(packet[at : min(at + length, at + most, end)])
            at += length


def split_annex_b(data: bytes | memoryview, whole: frozenset[int] | None = None) -> Iterator[bytes]:
    """Yield the NAL units between start codes, without the zeros that belong to the next start code.

    Args:
        data: bytes of the stream. A unit at the end may be cut off.
        whole: first bytes of the units that are wanted whole, others are cut to 256 bytes; None for all.
    """
    data = bytes(data)
    at = data.find(b"\0\0\1")
    while at >= 0:
        at += 3
        following = data.find(b"\0\0\1", at)
        stop = following if following >= 0 else len(data)
        if whole is not None and stop - at > _MAX_SLICE_BYTES and data[at] not in whole:
            yield data[at : at + _MAX_SLICE_BYTES]
        else:
            yield data[at:stop].rstrip(b"\0")
        at = following


def split_length_prefixed(data: bytes, length_size: int) -> list[bytes] | None:
    """Return the whole NAL units of a length-prefixed packet; None if a length exceeds the packet."""
    units: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        length = int.from_bytes(data[at : at + length_size], "big")
        at += length_size
        if at + length > end:
            return None
        if length:
            units.append(data[at : at + length])
        at += length
    return units


def join_annex_b(units: Iterable[bytes]) -> bytes:
    """Return NAL units joined with a start code before each."""
    return b"".join(START_CODE + unit for unit in units)


def join_length_prefixed(units: Iterable[bytes], length_size: int) -> bytes:
    """Return NAL units joined with their length before each; raises ``OverflowError`` if a length does not fit."""
    return b"".join(len(unit).to_bytes(length_size, "big") + unit for unit in units)


def replace_nal_units(data: bytes, replace: Callable[[bytes], bytes]) -> bytes:
    """Return Annex B data with each NAL unit that is not empty replaced; start codes and zeros stay as they are."""
    first, *units = data.split(b"\0\0\1")
    bare = [unit.rstrip(b"\0") for unit in units]  # zeros at the end belong to the next start code
    return first + b"".join(
        b"\0\0\1" + (replace(one) if one else one) + unit[len(one) :] for one, unit in zip(bare, units, strict=True)
    )
