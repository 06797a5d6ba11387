"""NAL units of H.264 and HEVC: framing, parameter sets, and the base of the two scanners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import ClassVar

from telecine.bitstream import CORRUPT_PICTURE, PacketInfo, Scanner

__all__ = [
    "MAX_NAL_UNITS", "PARAMETER_SET_TYPES", "SPS_TYPE", "START_CODE", "NalScanner", "NalSplitter",
    "ParameterSetKey", "escape", "extradata_units", "has_start_codes", "has_zeroed_slice", "is_filler", "is_sei",
    "join_annex_b", "join_length_prefixed", "nal_length_size", "nal_type", "prepend_parameter_sets",
    "replace_nal_units", "replace_start_codes", "sei_messages", "split_annex_b", "split_length_prefixed",
    "split_packet", "unescape", "unwrap_poc",
]  # fmt: skip

START_CODE = b"\0\0\0\1"
_START_CODES = (START_CODE, START_CODE[1:])
MAX_NAL_UNITS = 10_000
"""Limit of NAL units read from one packet. No picture has so many slices, and a flood of empty units takes time."""
SPS_TYPE = {"h264": 7, "hevc": 33}
"""``nal_unit_type`` of a sequence parameter set, by codec (H.264 table 7-1, HEVC table 7-1)."""
PARAMETER_SET_TYPES = {"h264": frozenset({7, 8, 13, 15}), "hevc": frozenset({32, 33, 34})}
"""``nal_unit_type`` of all parameter sets, by codec."""
ParameterSetKey = tuple[int, int]
"""``nal_unit_type`` and id of a parameter set."""
_DEPENDENT_TYPES = {7: frozenset({8}), 32: frozenset({33, 34}), 33: frozenset({34})}
"""By type of a parameter set, the types of those that refer to it (the types of H.264 and HEVC do not overlap)."""
_SLICE_TYPES = {"h264": range(1, 6), "hevc": range(32)}
_ZEROS = bytes(16)
"""Zeros that count as damage. Three would prove it too, but to search for them takes seven times as long."""
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


def escape(unit: bytes) -> bytes:
    """Insert emulation prevention bytes into a NAL unit (H.264 and HEVC, 7.3.1)."""
    out, zeros = bytearray(), 0
    for byte in unit:
        if zeros >= 2 and byte <= 3:
            out.append(3)
            zeros = 0
        out.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return bytes(out)


def sei_messages(unit: bytes, header_bytes: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (payload type, payload, whole message) of the messages of a SEI unit that are not cut off (7.3.2.3)."""
    data = unescape(unit)
    at, end = header_bytes, len(data) - 1  # the last byte has rbsp_trailing_bits
    while at < end:
        start, values = at, [0, 0]
        for i in range(2):
            while at < end and data[at] == 0xFF:
                values[i], at = values[i] + 255, at + 1
            values[i] += data[at] if at < end else len(data)
            at += 1
        kind, size = values
        if at + size > end:
            return
        yield kind, data[at : at + size], data[start : at + size]
        at += size


def nal_length_size(codec: str, extradata: bytes) -> int:
    """Return the size in bytes of the length before each NAL unit of a stream; 0 if it is in Annex B, or has none."""
    offset = _LENGTH_SIZE_OFFSET.get(codec, len(extradata))
    # avcC and hvcC begin with configurationVersion 1, a start code with 0
    is_record = len(extradata) > offset and extradata[0] == 1
    return (extradata[offset] & 3) + 1 if is_record else 0


_H264_FIRST_BYTES = frozenset(
    (6, 9, *(ref << 5 | kind for ref in range(4) for kind in (1, 5, 7, 8) if ref or kind == 1))
)
_HEVC_TYPES = frozenset((*range(10), *range(16, 22), *range(32, 36), 39, 40))


class NalSplitter:
    """Splits the packets of one stream into the beginnings of their NAL units, which is enough to read headers."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.length_size = nal_length_size(codec, extradata)
        """Bytes of the length before each NAL unit; 0 for Annex B."""
        self.has_start_codes = False
        """True if a packet had start codes although lengths were announced."""
        self._codec, self._whole = codec, _PARAMETER_SET_FIRST_BYTES[codec]

    def split(self, packet: bytes | memoryview) -> Iterator[bytes]:
        """Yield parameter sets whole and 256 bytes of other units at most.

        A wrong length ends in an empty unit. A packet without a start code where there must be one is an empty unit.
        There are no others.
        """
        if self.length_size and has_start_codes(self._codec, packet, self.length_size):
            self.has_start_codes = True
        elif self.length_size:
            return islice(self._length_prefixed(packet), MAX_NAL_UNITS)
        data = bytes(packet)
        if b"\0\0\1" not in data:
            return iter([b""])
        return filter(None, islice(split_annex_b(data, self._whole), MAX_NAL_UNITS))

    def _length_prefixed(self, packet: bytes | memoryview) -> Iterator[bytes]:
        size, at, end = self.length_size, 0, len(packet)
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            most = length if packet[at] in self._whole else _MAX_SLICE_BYTES
            yield bytes(packet[at : min(at + length, at + most, end)])
            at += length
        if at > end:
            yield b""  # the last unit is cut off, or its length is wrong


def split_annex_b(data: bytes | memoryview, whole: frozenset[int] | None = None) -> Iterator[bytes]:
    """Yield the NAL units between start codes, without the zeros that belong to the next start code.

    If ``whole`` is given, units whose first byte is not in it are cut to 256 bytes.
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
    """Return the NAL units of a length-prefixed packet; None if a length is 0 or exceeds it, as FFmpeg refuses it then.

    Bytes at the end that are fewer than a length are padding.
    """
    units: list[bytes] = []
    at = 0
    while len(data) - at >= length_size:
        start = at + length_size
        at = start + int.from_bytes(data[at:start], "big")
        if not start < at <= len(data):
            return None
        units.append(data[start:at])
    return units


def is_sei(unit: bytes, header_bytes: int) -> bool:
    """Return True if a NAL unit consists of whole SEI messages and nothing else."""
    messages = b"".join(message for _, _, message in sei_messages(unit, header_bytes))
    return bool(messages) and messages + b"\x80" == unescape(unit)[header_bytes:]


def split_packet(codec: str, packet: bytes, length_size: int) -> list[bytes]:
    """Return the whole NAL units of a packet, without empty ones; none if a length is wrong."""
    if length_size and not has_start_codes(codec, packet, length_size):
        return split_length_prefixed(packet, length_size) or []
    return list(filter(None, islice(split_annex_b(packet), MAX_NAL_UNITS)))


def has_zeroed_slice(codec: str, packet: bytes | memoryview, length_size: int) -> bool:
    """Return True if bytes inside a slice of a length-prefixed packet were overwritten with zeros.

    Decoders may take such a slice for a valid one. But emulation prevention keeps three zeros in a row out of NAL units
    (7.4.1). Zeros at the end may be padding.
    """
    data = bytes(packet) if length_size else b""
    if data.find(_ZEROS) < 0:
        return False  # nearly every packet
    units = split_length_prefixed(data, length_size) or ()
    return any(nal_type(codec, unit) in _SLICE_TYPES[codec] and _ZEROS in unit.rstrip(b"\0") for unit in units)


def has_start_codes(codec: str, packet: bytes | memoryview, length_size: int) -> bool:
    """Return True if a packet has start codes where its container announces lengths, as some muxers write."""
    head = bytes(packet[:6])
    if not head.startswith(_START_CODES) or split_length_prefixed(bytes(packet), length_size) is not None:
        return False
    # a short start code may also be the length of a unit that is cut off: the unit's type is then one byte later
    is_short = head[2] == 1
    return not is_short or (_is_unit_header(codec, head[3:]) and not _is_unit_header(codec, head[4:]))


def _is_unit_header(codec: str, head: bytes) -> bool:
    """Return True for the first bytes of a usual NAL unit of the base layer."""
    if codec == "h264":
        # nal_ref_idc is 0 for messages and delimiters, and not for IDR pictures and parameter sets (7.4.1)
        return len(head) > 0 and head[0] in _H264_FIRST_BYTES
    return len(head) > 1 and head[0] & 0x81 == 0 and head[0] >> 1 in _HEVC_TYPES and 0 < head[1] < 8


def replace_start_codes(packet: bytes | memoryview, length_size: int) -> bytes:
    """Return a packet of :func:`has_start_codes` with lengths."""
    return join_length_prefixed(filter(None, split_annex_b(packet)), length_size)


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


def extradata_units(codec: str, extradata: bytes) -> list[bytes]:
    """Return the whole NAL units of ``avcC`` or ``hvcC`` (ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1), or of Annex B."""
    if not nal_length_size(codec, extradata):
        return list(split_annex_b(extradata))
    is_avc = codec == "h264"
    at, arrays = (5, 2) if is_avc else (23, extradata[22] if len(extradata) > 22 else 0)
    units: list[bytes] = []
    for i in range(arrays):
        start = at + (1 if is_avc else 3)
        count = int.from_bytes(extradata[at if is_avc else at + 1 : start], "big")
        at = start
        for _ in range(count & 31 if is_avc and i == 0 else count):
            if at >= len(extradata):
                break
            start = at + 2
            at = start + int.from_bytes(extradata[at:start], "big")
            if start < at <= len(extradata):
                units.append(extradata[start:at])
    return units


def prepend_parameter_sets(codec: str, extradata: bytes, new_extradata: bytes, packet: bytes) -> bytes | None:
    """Return a packet with the parameter sets of new extradata prepended, for decoders that accept extradata only once.

    ``extradata`` of the file says how its packets are framed; ``new_extradata`` was attached to this packet. Returns
    None if they do not fit together: another codec, Annex B, or lengths of another size.
    """
    if codec not in PARAMETER_SET_TYPES:
        return None
    size = nal_length_size(codec, extradata)
    if not size or nal_length_size(codec, new_extradata) != size:
        return None
    units = extradata_units(codec, new_extradata)
    if not units or max(map(len, units)) >= 1 << 8 * size:
        return None
    return join_length_prefixed(units, size) + packet


class NalScanner(Scanner, ABC):
    """Tracks which parameter sets of a stream differ from those in its first extradata. Not thread-safe.

    A decoder knows the parameter sets of the extradata, and those that it has read since. So after one of them has
    changed, decoding can start only at a packet that repeats it.
    """

    accepts_new_extradata = True
    codec: ClassVar[str]

    def __init__(self, extradata: bytes) -> None:
        self._known: dict[ParameterSetKey, bytes] = {}
        """The latest parameter sets."""
        self._changed: set[ParameterSetKey] = set()
        self._with_packet: set[ParameterSetKey] = set()
        """Those that come with the current packet, in it or attached by the container."""
        self._sequence = -1
        self._previous_poc = 0
        self.update_extradata(extradata)
        self._changed.clear()
        self._with_packet.clear()

    @property
    def has_start_codes(self) -> bool:
        return self._nal_units.has_start_codes

    @property
    def has_changed_parameter_sets(self) -> bool:
        return bool(self._changed)

    def update_extradata(self, extradata: bytes) -> None:
        self._nal_units = NalSplitter(self.codec, extradata)
        self._record((self._parse_parameter_set(unit), unit) for unit in extradata_units(self.codec, extradata))

    @abstractmethod
    def _parse_parameter_set(self, unit: bytes) -> ParameterSetKey | None:
        """Keep a parameter set for the slices that refer to it; return its type and id, None if it cannot be read."""

    def _record(self, units: Iterable[tuple[ParameterSetKey | None, bytes]]) -> None:
        for key, unit in units:
            if key is None:
                continue
            unit = unit.rstrip(b"\0")  # zeros at the end belong to the next start code
            if self._known.get(key) != unit:
                self._known[key] = unit
                # FFmpeg's decoders drop the parameter sets that refer to one that changes
                dependent = _DEPENDENT_TYPES.get(key[0], ())
                self._changed |= {key, *(other for other in self._known if other[0] in dependent)}
            self._with_packet.add(key)

    def _end_without_picture(self, packet: bytes | memoryview, in_band: list[bytes]) -> PacketInfo:
        """End a packet without a slice of the base layer, which may be a picture that was destroyed."""
        self._with_packet.clear()
        size = self._nal_units.length_size
        units = split_packet(self.codec, bytes(packet), size)
        # a byte stream may end with a packet of any units
        is_whole = size > 0 or self.has_whole_packets
        are_intact = all(map(self._is_intact if is_whole else self._has_valid_header, units))
        if is_whole and any(unit.rstrip(b"\0") not in self._known.values() for unit in in_band):
            # a slice with the type of a parameter set is alone
            first = SPS_TYPE[self.codec]
            are_intact &= {first, first + 1} <= {nal_type(self.codec, unit) for unit in in_band}
        if not are_intact or (not units and len(packet) > size):
            return CORRUPT_PICTURE
        self._record((self._parse_parameter_set(unit), unit) for unit in in_band)
        self._with_packet.clear()
        return PacketInfo(shown=False, has_picture=False)

    @abstractmethod
    def _has_valid_header(self, unit: bytes) -> bool:
        """Return True if the fixed bits of the header of a NAL unit are right."""

    @abstractmethod
    def _is_intact(self, unit: bytes) -> bool:
        """Return True if a unit is no part of a picture, and its content is what its type says."""

    def _can_start(self, in_band: list[bytes], is_key: bool) -> bool:
        """End a packet with a picture, and return True if a decoder that starts at it has all parameter sets."""
        sets = [(self._parse_parameter_set(unit), unit) for unit in in_band]
        # if the container keeps parameter sets in its header, those with a picture that is no key frame are damage
        if is_key or not self._nal_units.length_size:
            self._record(sets)
        is_complete = self._changed <= self._with_packet
        self._with_packet.clear()
        return is_complete


def is_filler(payload: bytes) -> bool:
    """Return True for the content of a filler data unit (H.264 and HEVC, 7.3.2)."""
    return payload.lstrip(b"\xff") in (b"\x80", b"")


def unwrap_poc(lsb: int, lsb_bits: int, previous: int) -> int:
    """Return the picture order count nearest to ``previous`` with these low bits (H.264 8.2.1.1, HEVC 8.3.1)."""
    wrap = 1 << lsb_bits
    previous_lsb = previous % wrap
    poc = previous - previous_lsb + lsb
    if lsb < previous_lsb and previous_lsb - lsb >= wrap // 2:
        return poc + wrap
    if lsb > previous_lsb and lsb - previous_lsb > wrap // 2:
        return poc - wrap
    return poc
