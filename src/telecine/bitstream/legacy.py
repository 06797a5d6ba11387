"""Legacy codecs in which each picture refers to the one before: intra pictures, from the first bits of a packet.

The key frame flags of containers are not enough. FFmpeg's H.263 parser flags every packet as a key frame, and so does
its AVI demuxer if the file has no index.

Two decoders keep the picture before for what they cannot decode, without a sign: FFV1 and QuickTime Animation. Their
packets are checked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress

from telecine.bitstream import CORRUPT_PICTURE, Leading, PacketInfo, RandomAccess, Scanner
from telecine.bitstream.bit_reader import BitReader, InvalidHeader

__all__ = ["LegacyScanner", "TheoraScanner"]

_HEADER_BYTES = 16
_FFV1_FOOTER_BYTES = 8
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_MAX_QTRLE_ZEROS = 16
_INTRA = PacketInfo(random_access=RandomAccess.CLOSED, leading=Leading.DECODABLE)
_PREDICTED = PacketInfo(leading=Leading.DECODABLE)
_HEADERS = PacketInfo(shown=False, has_picture=False, leading=Leading.DECODABLE)
_FIRST_HEADER = _HEADERS._replace(random_access=RandomAccess.CLOSED)
_IDENTIFICATION, _COMMENT, _SETUP = 0x80, 0x81, 0x82
"""First bytes of Theora's header packets (Theora specification, 6.1)."""


class LegacyScanner(Scanner):
    """Scans legacy codecs for random access points only; the container has the other facts."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._is_intra = _INTRA_TESTS[codec]
        self._has_started = False
        self._is_intact = {"ffv1": _has_right_checksums, "qtrle": _is_whole_qtrle}.get(codec)
        self._is_checkable = False
        """True if a packet has passed the check, which some variants of a codec never do."""

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        if self._is_intact is not None and not self._is_intact(bytes(packet)):
            if self._is_checkable:
                return CORRUPT_PICTURE
        else:
            self._is_checkable = True
        is_intra = not self._has_started  # decoding can start nowhere before the first packet
        self._has_started = True
        if is_key and not is_intra:
            with suppress(InvalidHeader):
                is_intra = self._is_intra(BitReader(bytes(packet[:_HEADER_BYTES])))
        return _INTRA if is_intra else _PREDICTED


class TheoraScanner(LegacyScanner):
    """Scans Theora. Header packets in mid-stream begin the next link of a chained Ogg file, and decoders need them."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        super().__init__(codec, extradata)
        self._extradata = extradata
        self._has_changed_headers = False

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        kind, name = packet[:1], packet[1:7]
        if name == b"theora" and kind[0] in (_IDENTIFICATION, _COMMENT, _SETUP):
            self._has_changed_headers |= kind[0] != _COMMENT and bytes(packet) not in self._extradata
            return _FIRST_HEADER if kind[0] == _IDENTIFICATION else _HEADERS
        # a decoder that starts at a picture has the headers of the first link
        return super().scan(packet, is_key and not self._has_changed_headers, with_order)


def _is_h263_intra(bits: BitReader) -> bool:
    """Read the picture header of ITU-T H.263, 5.1."""
    bits.skip(22 + 8)  # picture start code, temporal reference
    if bits.u(2) != 2:
        return False
    bits.skip(3)
    if bits.u(3) != 7:  # source format: 7 is extended PTYPE
        return not bits.flag()
    if bits.u(3) == 1:  # UFEP: OPPTYPE follows
        bits.skip(18)
    return bits.u(3) == 0


def _is_flv1_intra(bits: BitReader) -> bool:
    """Read the picture header of Sorenson H.263 (FLV specification, annex E.4.3.2)."""
    bits.skip(17 + 5 + 8)  # start code, version, temporal reference
    bits.skip({0: 16, 1: 32}.get(bits.u(3), 0))
    return bits.u(2) == 0


def _has_right_checksums(packet: bytes) -> bool:
    """Check the slices of FFV1, from the last one on: size, error status and CRC end each (RFC 9043, 4.9)."""
    end = len(packet)
    while end >= _FFV1_FOOTER_BYTES:
        size = int.from_bytes(packet[end - 8 : end - 5], "big")
        start = end - _FFV1_FOOTER_BYTES - size
        # zlib's CRC is that of the bits in reverse order
        if not size or start < 0 or zlib.crc32(packet[start:end].translate(_REVERSED), 0xFFFFFFFF) != 0xFFFFFFFF:
            return False
        end = start
    return end == 0


def _is_whole_qtrle(packet: bytes) -> bool:
    """Check that the lines of QuickTime Animation end where the packet does, if zeros may have ended them early."""
    if bytes(_MAX_QTRLE_ZEROS) not in packet:
        return True  # nearly every packet
    return any(_qtrle_rest(packet, width) in range(_MAX_QTRLE_ZEROS) for width in (4, 3, 2))


def _qtrle_rest(packet: bytes, width: int) -> int:
    """Return the number of bytes after the last line; negative if it ends beyond. Codes are for ``width`` bytes."""
    at = 6
    with suppress(IndexError, struct.error):
        size, flags = struct.unpack_from(">IH", packet)
        if size & 0x3FFFFFFF != len(packet):
            return -1
        lines = 1 << 16
        if flags & 8:
            (lines,) = struct.unpack_from(">H", packet, at + 4)
            at += 8
        while lines and packet[at]:  # pixels to skip, and 1
            at, lines, code = at + 1, lines - 1, 0
            while code != -1:
                (code,) = struct.unpack_from("b", packet, at)
                at += 1 if code == -1 else 2 if code == 0 else 1 + width * (code if code > 0 else 1)
        return len(packet) - at - 1
    return -1


def _type_after(skipped: int, width: int) -> Callable[[BitReader], bool]:
    """Return a test for a picture type of ``width`` bits after ``skipped`` bits, in which 0 means intra."""
    return lambda bits: bits.u(skipped + width) & ((1 << width) - 1) == 0


_INTRA_TESTS: dict[str, Callable[[BitReader], bool]] = {
    "h263": _is_h263_intra,
    "flv1": _is_flv1_intra,
    "msmpeg4v1": _type_after(32 + 5, 2),
    "msmpeg4v2": _type_after(0, 2),
    "msmpeg4v3": _type_after(0, 2),
    "wmv1": _type_after(0, 2),
    "wmv2": _type_after(0, 1),
    "svq1": _type_after(22 + 8, 2),
    "qtrle": lambda bits: False,
    # a header packet begins with 1 (Theora specification, 6.1 and 7.1)
    "theora": _type_after(0, 2),
    "vp6": _type_after(0, 1),
    "vp6f": _type_after(0, 1),
    "vp7": _type_after(7, 1),  # the lowest bit of the first byte
    # RFC 9043, 3.8.1: keyframe is the first bit of the range coder, which starts with a range of 0xFF00 in halves
    "ffv1": lambda bits: bits.u(16) >= 0x7F80,
}
"""Tests by FFmpeg's name of the codec. Codecs without a public specification follow FFmpeg's decoder."""
