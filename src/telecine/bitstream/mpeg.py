"""MPEG-1/2 video (ISO/IEC 13818-2), MPEG-4 part 2 (14496-2) and VC-1 (SMPTE 421M): B pictures and intra pictures.

B pictures of these codecs are never references. Display order follows from the picture types alone: a B picture is
shown before the I or P picture decoded before it.
"""

from __future__ import annotations

import re
from contextlib import suppress

from telecine.bitstream import (
    CORRUPT_PICTURE,
    LAST_IN_SEQUENCE,
    Leading,
    PacketInfo,
    PictureFormat,
    RandomAccess,
    Scanner,
)
from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.h273 import LIMITED_RANGE, UNSPECIFIED

__all__ = ["Mpeg2Scanner", "Mpeg4Scanner", "Vc1Scanner", "can_contain_fields"]

_INTRA, _PREDICTED, _BIDIRECTIONAL = "I", "P", "B"


_SLICE_OR_PICTURE = re.compile(rb"\x00\x00\x01[\x00-\xaf]", re.DOTALL)
"""Start codes of pictures and slices (ISO/IEC 13818-2, table 6-1)."""


_DISPLAY_EXTENSION = re.compile(rb"\x00\x00\x01\xb5[\x21\x23\x25\x27\x29\x2b\x2d\x2f](...)", re.DOTALL)
"""Extension 2 with the flag colour_description, and its three code points."""
_VC1_FRAME = b"\0\0\1\x0d"
"""Start code of a frame (SMPTE 421M, annex E)."""
_MAX_HEADER_BYTES = 512
"""Bytes of a packet of MPEG-2 headers alone, with matrices, in a container that stores packets whole."""
_MAX_NOT_CODED_BYTES = 64
"""Bytes of a VOP that is not coded, with stuffing; a larger one is a picture whose header is damaged."""


class _PictureTypeScanner(Scanner):
    """Base of the scanners that derive the facts of packets from the picture types of a stream, in decode order."""

    def __init__(self, extradata: bytes) -> None:
        self._references = self._pictures = 0
        self._closed_gop = self._broken_link = False

    def _info(
        self, kind: str, is_key: bool, with_order: bool, closed_gop: bool = False, broken_link: bool = False
    ) -> PacketInfo:
        """Return the facts of the next picture; the flags are those of the group of pictures that begins with it."""
        self._pictures += 1
        bidirectional = kind == _BIDIRECTIONAL
        if not bidirectional:
            self._references += 1
            self._closed_gop, self._broken_link = closed_gop, broken_link and not closed_gop
        # B pictures sort between the two references decoded before them; a reference sorts after its B pictures
        order = (self._references, self._pictures if bidirectional else LAST_IN_SEQUENCE)
        leading = Leading.DECODABLE if self._closed_gop else Leading.UNKNOWN
        if bidirectional and self._broken_link:
            leading = Leading.UNDECODABLE
        return PacketInfo(
            disposable=bidirectional,
            random_access=RandomAccess.OPEN if is_key and kind == _INTRA else RandomAccess.NONE,
            leading=leading,
            display_order=order if with_order else None,
        )


class Mpeg2Scanner(_PictureTypeScanner):
    """Scans MPEG-1 and MPEG-2 video."""

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        data = bytes(packet[:4096])
        at = data.find(b"\0\0\1\0")  # picture_start_code
        if at < 0 and data[:3] == b"\0\0\1" and not _SLICE_OR_PICTURE.search(packet):
            # headers or user data alone, unless the picture behind them is destroyed
            is_whole = self.has_whole_packets and len(packet) > _MAX_HEADER_BYTES
            return CORRUPT_PICTURE if is_whole else PacketInfo(shown=False, has_picture=False)
        if at < 0 or at + 6 > len(data):
            return self._info(_PREDICTED, False, with_order) if b"\0\0\1\0" in bytes(packet) else CORRUPT_PICTURE
        if self.picture is None:
            self.picture = _sequence_colors(data[:at])
        group = data.find(b"\0\0\1\xb8", 0, at)  # group_start_code, 25 bits of time code, closed_gop, broken_link
        flags = data[group + 7] if group >= 0 and group + 8 <= len(data) else 0
        closed_gop, broken_link = bool(flags & 0x40), bool(flags & 0x20)
        kind = {1: _INTRA, 3: _BIDIRECTIONAL}.get((data[at + 5] >> 3) & 7, _PREDICTED)
        return self._info(kind, is_key, with_order, closed_gop, broken_link)


def _sequence_colors(data: bytes) -> PictureFormat:
    """Read colour_description of sequence_display_extension(), 6.2.2.4, in the headers before a picture."""
    codes = [UNSPECIFIED] * 3
    if found := _DISPLAY_EXTENSION.search(data):
        codes = list(found[1])
    primaries, transfer, matrix = codes
    return PictureFormat("unknown", 0, matrix, LIMITED_RANGE, primaries, transfer)


class Mpeg4Scanner(_PictureTypeScanner):
    """Scans MPEG-4 part 2, with the packed B-frames that DivX and Xvid write into AVI files.

    A packet may hold a reference VOP and the B-VOP decoded after it. The decoder outputs the B picture for the next
    packet: a VOP that is not coded, or else a coded one, which is delayed in turn. Other VOPs that are not coded repeat
    the picture before, and bring none.
    """

    def __init__(self, extradata: bytes) -> None:
        super().__init__(extradata)
        self._time_bits: int | None = None
        self._has_started = False
        self._delayed: str | None = None
        """Type of the picture that the decoder has, and outputs for the next packet."""
        self._read_vol(extradata)

    def _read_vol(self, data: bytes) -> None:
        """Read the first VideoObjectLayer() in ``data``; its start code is 0x20 to 0x2f."""
        if found := re.search(rb"\x00\x00\x01[\x20-\x2f]", data):
            with suppress(InvalidHeader):
                self._time_bits, self.interlaced = _parse_vol(BitReader(data[found.end() : found.end() + 92]))

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        data = bytes(packet)
        at = data.find(b"\0\0\1\xb6")  # vop_start_code, then vop_coding_type in two bits
        if at < 0 or at + 5 > len(data):
            return CORRUPT_PICTURE
        if at >= 4:
            self._read_vol(data[:at])
        kind, delayed = _vop_type(data, at), self._delayed
        coded = self._is_coded(data[at + 4 : at + 32])
        second = data.find(b"\0\0\1\xb6", at + 4)
        if 0 <= second < len(data) - 4:
            self._delayed = _vop_type(data, second)
        else:
            # if a picture is delayed, a coded VOP is delayed in turn
            self._delayed = kind if coded and delayed is not None else None
        if coded and (delayed is None or second >= 0):
            info = self._info(kind, is_key, with_order)
            if self.interlaced:
                # a decoder measures the distance of fields (Tframe, 7.7.2.2) once, at the first B-VOP that it decodes
                access = RandomAccess.NONE if self._has_started else info.random_access
                info = info._replace(disposable=False, random_access=access)
            self._has_started = True
            return info if second < 0 else info._replace(disposable=False, has_packed_b_frame=True)
        if delayed is None:
            # the rest of a VOP that is not coded is stuffing
            is_stuffing = len(data) - at <= _MAX_NOT_CODED_BYTES
            return PacketInfo(shown=False, has_picture=False) if is_stuffing else CORRUPT_PICTURE
        return self._info(delayed, False, with_order)._replace(disposable=False)

    def _is_coded(self, header: bytes) -> bool:
        """Return vop_coded (6.2.5); True if the header cannot be read."""
        if self._time_bits is None:
            return True
        bits = BitReader(header, start=2)
        try:
            while bits.flag():  # modulo_time_base
                pass
            bits.skip(1 + self._time_bits + 1)
            return bits.flag()
        except InvalidHeader:
            return True


def _vop_type(data: bytes, at: int) -> str:
    return {0: _INTRA, 2: _BIDIRECTIONAL}.get(data[at + 4] >> 6, _PREDICTED)


def _parse_vol(bits: BitReader) -> tuple[int, bool]:
    """Read VideoObjectLayer(), 6.2.3, and return the bits of vop_time_increment and interlaced (True if cut off)."""
    bits.skip(1 + 8)  # random_accessible_vol, video_object_type_indication
    version = 1
    if bits.flag():
        version = bits.u(4)
        bits.skip(3)
    if bits.u(4) == 15:  # aspect_ratio_info: extended_PAR
        bits.skip(16)
    if bits.flag():  # vol_control_parameters
        bits.skip(2 + 1)
        if bits.flag():  # vbv_parameters
            bits.skip(79)
    shape = bits.u(2)
    if shape == 3 and version != 1:
        bits.skip(4)
    bits.skip(1)
    time_bits = max(1, (bits.u(16) - 1).bit_length())
    try:  # the rest of a rectangular layer
        bits.skip(1)
        if bits.flag():  # fixed_vop_rate
            bits.skip(time_bits)
        bits.skip(1 + 13 + 1 + 13 + 1)
        return time_bits, bits.flag()
    except InvalidHeader:
        return time_bits, True


class Vc1Scanner(_PictureTypeScanner):
    """Scans VC-1: the advanced profile, and the simple and main profiles (WMV3)."""

    def __init__(self, extradata: bytes) -> None:
        super().__init__(extradata)
        self._finterp = self._rangered = self._b_pictures = False
        sequence = extradata.find(b"\0\0\1\x0f")
        self._advanced = sequence >= 0
        self._has_header = False
        with suppress(InvalidHeader):
            if self._advanced:  # sequence header, 6.1, up to INTERLACE
                bits = BitReader(extradata[sequence + 4 :])
                bits.skip(2 + 3 + 2 + 3 + 5 + 1 + 12 + 12 + 1)
                self.interlaced = bits.flag()
            else:  # STRUCT_C of the simple and main profiles, annex J
                bits = BitReader(extradata[:4])
                bits.skip(4 + 3 + 5 + 1 + 1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 1 + 1)
                self._rangered = bits.flag()
                self._b_pictures = bits.u(3) > 0
                bits.skip(2)
                self._finterp = bits.flag()
            self._has_header = True

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        try:
            kind = self._picture_type(bytes(packet[:512])) if self._has_header else _PREDICTED
        except InvalidHeader:
            if _VC1_FRAME not in bytes(packet):
                return CORRUPT_PICTURE
            kind = _PREDICTED
        return self._info(kind, is_key, with_order)

    def _picture_type(self, data: bytes) -> str:
        if not self._advanced:
            bits = BitReader(data[:8])
            bits.skip(int(self._finterp) + 2 + int(self._rangered))
            if bits.flag():
                return _PREDICTED
            return _BIDIRECTIONAL if self._b_pictures and not bits.flag() else _INTRA
        frame = data.find(_VC1_FRAME)
        if frame >= 0:
            data = data[frame + 4 :]
        elif data[:3] == b"\0\0\1":
            raise InvalidHeader("no frame header at the start of the packet")
        bits = BitReader(data[:8])
        if self.interlaced and bits.flag() and bits.flag():
            # field pictures: FPTYPE, table 105; 4 and above are B and BI pairs
            fields = bits.u(3)
            return _BIDIRECTIONAL if fields >= 4 else _INTRA if fields == 0 else _PREDICTED
        if not bits.flag():
            return _PREDICTED
        if not bits.flag():
            return _BIDIRECTIONAL
        if not bits.flag():
            return _INTRA
        # 1110 is BI: intra, but never a reference; 1111 repeats the picture before
        return _PREDICTED if bits.flag() else _BIDIRECTIONAL


def can_contain_fields(sequence_header: bytes) -> bool:
    """Return INTERLACE of a sequence header of VC-1's advanced profile; False if it cannot be read."""
    return Vc1Scanner(sequence_header).interlaced
