"""Packets as the parser of NVIDIA's driver reads them: bytes with start codes, and the headers in front of a start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from telecine.bitstream.extradata import read_record
from telecine.bitstream.nal import SEQUENCE_SETS, NalUnits, nal_type

__all__ = ["ByteStream"]

_CODE = b"\0\0\0\1"
_VC1_SEQUENCE, _VC1_FRAME = b"\0\0\1\x0f", b"\0\0\1\x0d"


class ByteStream:
    """Turns the packets of a stream, in decoding order, into what the parser takes. Not thread-safe.

    Args:
        codec: FFmpeg's name of it.
        extradata: the stream's codec private data; may be empty.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self.sequence: tuple[bytes, ...] = ()
        """The sequence headers that hold for the packet given last. Where they change, so may all that a decoder was
        made for: the size of pictures, and how many of them it must keep."""
        self.update_extradata(extradata)

    def update_extradata(self, extradata: bytes) -> None:
        """Take other codec private data, as a container may bring it in mid-stream."""
        self._is_new = True
        self._length_size = 0
        self._headers = extradata
        found: list[bytes] = [extradata] if extradata else []
        if self._codec in SEQUENCE_SETS:
            if extradata[:1] == b"\1":
                self._length_size = NalUnits(extradata, self._codec).length_size
                units = read_record(self._codec, extradata)
                self._headers = b"".join(_CODE + unit for unit in units)
            else:
                units = list(_annex_b(extradata))
            found = self._sets(units)
        elif self._codec == "vc1":
            # in ASF and Matroska there may be bytes in front of the sequence header
            self._headers = extradata[max(0, extradata.find(b"\0\0\1")) :]
            found = [_vc1_sequence(self._headers) or self._headers]
        elif self._codec == "av1":
            # av1C (AV1 Codec ISO Media File Format Binding, 2.3) has four bytes ahead of its OBUs
            self._headers = extradata[4:] if extradata[:1] == b"\x81" else extradata
            found = [_av1_sequence(self._headers)]
        else:
            self._headers, found = b"", []
        self._of_headers = tuple(found)

    def __call__(self, packet: bytes | memoryview, starts: bool, is_access: bool) -> bytes | None:
        """The bytes of a packet; None where it is damaged, so that no decoder takes all of it, or has nothing in it.

        Args:
            packet: its bytes.
            starts: whether the parser has to begin here: then the headers come first.
            is_access: whether decoding can start here. No other packet brings new headers.
        """
        data = bytes(packet)
        own: list[bytes] = []
        if self._codec in SEQUENCE_SETS:
            units: list[bytes] | None = None
            if self._length_size and not (self._length_size == 4 and data[:4] == _CODE):
                units = _prefixed(data, self._length_size)
                if units is None:
                    return None
                data = b"".join(_CODE + unit for unit in units)
            if starts or is_access:
                own = self._sets(units if units is not None else _annex_b(data))
        elif self._codec == "vc1":
            if starts or is_access:
                own = [header] if (header := _vc1_sequence(data)) else []
            if data[:3] != b"\0\0\1":
                data = _VC1_FRAME + data
        elif self._codec == "av1" and (starts or is_access):
            own = [header] if (header := _av1_sequence(data)) else []
        headers = b""
        if starts or self._is_new:
            headers, self.sequence, self._is_new = self._headers, self._of_headers, False
        if own:
            self.sequence = tuple(own)
            if self._codec not in SEQUENCE_SETS:  # parameter sets may stand twice, but a sequence begins only once
                headers = b""
        return headers + data if data else None

    def _sets(self, units: Iterable[bytes]) -> list[bytes]:
        kind = SEQUENCE_SETS[self._codec]
        return sorted({unit for unit in units if unit and nal_type(self._codec, unit) == kind})


def _prefixed(data: bytes, length_size: int) -> list[bytes] | None:
    """The NAL units of a packet in which their lengths stand in front of them."""
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


def _annex_b(data: bytes) -> Iterator[bytes]:
    at = data.find(b"\0\0\1")
    while at >= 0:
        at += 3
        following = data.find(b"\0\0\1", at)
        # zeros in front of a start code belong to it
        yield data[at : following if following >= 0 else len(data)].rstrip(b"\0")
        at = following


def _vc1_sequence(data: bytes) -> bytes:
    """The sequence header, with its start code, in front of the first frame."""
    head = data.partition(_VC1_FRAME)[0]
    at = head.find(_VC1_SEQUENCE)
    if at < 0:
        return b""
    following = head.find(b"\0\0\1", at + 3)
    return head[at : following if following >= 0 else len(head)]


def _av1_sequence(data: bytes) -> bytes:
    """The sequence header OBU, where data begins with one (AV1, 5.3: behind a temporal delimiter at most)."""
    at = 2 if data[:2] == b"\x12\0" else 0
    if len(data) < at + 2 or data[at] >> 3 & 15 != 1 or not data[at] & 2:
        return b""
    start, at = at, at + 1 + (data[at] >> 2 & 1)
    size = shift = 0
    for byte in data[at : at + 8]:  # leb128
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return data[start : at + size]
