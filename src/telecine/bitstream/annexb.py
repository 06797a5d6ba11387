"""Conversion of packets to byte streams with start codes, and with the extradata prepended if decoding starts there."""

from __future__ import annotations

from telecine.bitstream.av1 import config_obus, sequence_header_obu
from telecine.bitstream.nal import (
    SPS_TYPE,
    extradata_units,
    has_start_codes,
    has_zeroed_slice,
    join_annex_b,
    nal_length_size,
    nal_type,
    split_annex_b,
    split_length_prefixed,
)

__all__ = ["AnnexBConverter"]

_VC1_SEQUENCE, _VC1_FRAME = b"\0\0\1\x0f", b"\0\0\1\x0d"


class AnnexBConverter:
    """Converts the packets of a stream, in decode order, to the byte stream that the parser of NVIDIA's driver reads.

    This is Annex B for H.264 and HEVC, Annex G for VC-1 and the low-overhead format for AV1. Packets of other codecs
    stay as they are. Not thread-safe.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self.sequence_headers: tuple[bytes, ...] = ()
        """The sequence headers that apply to the last converted packet. If they change, a decoder made before may be
        unsuitable, because the size of pictures or the number of references may change."""
        self.update_extradata(extradata)

    def update_extradata(self, extradata: bytes) -> None:
        """Take new codec private data, which a container may bring in mid-stream."""
        self._is_new = True
        self._length_size = 0
        self._headers = b""
        if self._codec in SPS_TYPE:
            self._length_size = nal_length_size(self._codec, extradata)
            self._headers = join_annex_b(extradata_units(self._codec, extradata)) if self._length_size else extradata
        elif self._codec == "vc1":
            # in ASF and Matroska there may be bytes before the sequence header
            self._headers = extradata[max(0, extradata.find(b"\0\0\1")) :]
        elif self._codec == "av1":
            self._headers = config_obus(extradata)
        found = _sequence_headers(self._codec, self._headers)
        self._extradata_headers = found or ((self._headers,) if self._codec == "vc1" else ())

    def convert(self, packet: bytes | memoryview, prepend_extradata: bool, is_random_access: bool) -> bytes | None:
        """Return the bytes of a packet; None if it is empty, or so damaged that no decoder takes all of it.

        Args:
            packet: its bytes.
            prepend_extradata: True if the parser starts here, so that it needs the headers of the extradata.
            is_random_access: True if decoding can start here. No other packet brings new headers.
        """
        data = bytes(packet)
        if self._length_size and not has_start_codes(self._codec, data, self._length_size):
            units = split_length_prefixed(data, self._length_size)
            if units is None or has_zeroed_slice(self._codec, data, self._length_size):
                return None
            data = join_annex_b(units)
        elif self._codec == "vc1" and data[:3] != b"\0\0\1":
            data = _VC1_FRAME + data
        own = _sequence_headers(self._codec, data) if prepend_extradata or is_random_access else ()
        headers = b""
        if prepend_extradata or self._is_new:
            headers, self.sequence_headers, self._is_new = self._headers, self._extradata_headers, False
        if own:
            self.sequence_headers = own
            if self._codec not in SPS_TYPE:  # parameter sets may be repeated, sequence headers must not
                headers = b""
        return headers + data if data else None


def _sequence_headers(codec: str, data: bytes) -> tuple[bytes, ...]:
    """Return the different sequence headers in a converted packet or in headers, sorted."""
    if codec in SPS_TYPE:
        units = split_annex_b(data)
        return tuple(sorted({unit for unit in units if unit and nal_type(codec, unit) == SPS_TYPE[codec]}))
    header = _vc1_sequence_header(data) if codec == "vc1" else sequence_header_obu(data) if codec == "av1" else b""
    return (header,) if header else ()


def _vc1_sequence_header(data: bytes) -> bytes:
    """Return the sequence header, with its start code, before the first frame; empty if there is none."""
    head = data.partition(_VC1_FRAME)[0]
    at = head.find(_VC1_SEQUENCE)
    if at < 0:
        return b""
    following = head.find(b"\0\0\1", at + 3)
    return head[at : following if following >= 0 else len(head)]
