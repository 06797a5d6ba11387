"""MPEG-1/2 video (ISO/IEC 13818-2), MPEG-4 part 2 (14496-2) and VC-1 (SMPTE 421M): B pictures and intra pictures.

B pictures of these codecs are never referred to. Output order follows from the picture types alone: a B picture is
shown ahead of the I or P picture decoded before it.
"""

from __future__ import annotations

from contextlib import suppress

from telecine.bitstream import Leading, PacketInfo, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated

__all__ = ["Mpeg2Scanner", "Mpeg4Scanner", "Vc1Scanner", "allows_fields"]

_INTRA, _PREDICTED, _BIDIRECTIONAL = "I", "P", "B"


class _PictureTypes:
    """Turns the picture types of a stream, in decoding order, into facts."""

    def __init__(self) -> None:
        self._anchors = 0
        self._pictures = 0
        self._closed = self._broken = False

    def facts(
        self, kind: str, is_key: bool, want_order: bool, closed: bool = False, broken: bool = False
    ) -> PacketInfo:
        self._pictures += 1
        bidirectional = kind == _BIDIRECTIONAL
        if not bidirectional:
            self._anchors += 1
            self._closed, self._broken = closed, broken and not closed
        # sorts B pictures between the two anchors decoded before them, and an anchor behind the B pictures that follow
        place = (self._anchors, self._pictures if bidirectional else 1 << 62)
        leading = Leading.NO if self._closed else Leading.UNKNOWN
        if bidirectional and self._broken:  # what they refer to was cut off
            leading = Leading.NEVER
        return PacketInfo(
            unreferenced=0 if bidirectional else -1,
            random_access=RandomAccess.OPEN if is_key and kind == _INTRA else RandomAccess.NONE,
            leading=leading,
            display_order=place if want_order else None,
        )


class Mpeg2Scanner:
    """Scans MPEG-1 and MPEG-2 video."""

    picture = None

    def __init__(self, extradata: bytes) -> None:
        self._types = _PictureTypes()

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        data = bytes(packet[:4096])
        at = data.find(b"\0\0\1\0")  # picture_start_code
        if at < 0 or at + 6 > len(data):
            return self._types.facts(_PREDICTED, False, want_order)
        group = data.find(b"\0\0\1\xb8", 0, at)  # group_start_code, then 25 bits of time code and closed_gop
        flags = data[group + 7] if group >= 0 and group + 8 <= len(data) else 0
        closed, broken = bool(flags & 0x40), bool(flags & 0x20)  # closed_gop, broken_link
        kind = {1: _INTRA, 3: _BIDIRECTIONAL}.get((data[at + 5] >> 3) & 7, _PREDICTED)
        return self._types.facts(kind, is_key, want_order, closed, broken)


class Mpeg4Scanner:
    """Scans MPEG-4 part 2, also as DivX and Xvid write it into AVI files.

    There a packet may hold a reference VOP and the B-VOP decoded after it ("packed bitstream"). A VOP that is not coded
    follows in a packet of its own, and the decoder gives the B picture in its place. A coded one that follows instead
    waits in its turn. Other VOPs that are not coded repeat the picture before, and bring none.
    """

    picture = None

    def __init__(self, extradata: bytes) -> None:
        self._types = _PictureTypes()
        self._time_bits: int | None = None
        self._interlaced = self._begun = False
        self._owed: str | None = None
        self._remember(extradata)

    def _remember(self, data: bytes) -> None:
        # video_object_layer_start_code: 0x20 to 0x2f
        at = data.find(b"\0\0\1")
        while 0 <= at < len(data) - 4:
            if data[at + 3] >> 4 == 2:
                with suppress(Truncated):
                    bits = BitReader(data[at + 4 : at + 96])
                    self._time_bits = _vop_time_bits(bits)
                    self._interlaced = _vol_interlaced(bits, self._time_bits)
                return
            at = data.find(b"\0\0\1", at + 3)

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        data = bytes(packet)
        at = data.find(b"\0\0\1\xb6")  # vop_start_code, then vop_coding_type in two bits
        if at < 0 or at + 5 > len(data):
            return self._types.facts(_PREDICTED, False, want_order)
        if at >= 4:
            self._remember(data[:at])
        kind, owed = _vop_type(data, at), self._owed
        coded = self._coded(data[at + 4 : at + 32])
        second = data.find(b"\0\0\1\xb6", at + 4)
        if 0 <= second < len(data) - 4:
            self._owed = _vop_type(data, second)
        else:
            # while one is owed, a coded VOP waits in turn: the decoder gives the one before it
            self._owed = kind if coded and owed is not None else None
        if coded and (owed is None or second >= 0):
            facts = self._types.facts(kind, is_key, want_order)
            if self._interlaced:
                # the distance of fields (Tframe, 7.7.2.2) is measured by the first B-VOP that a decoder meets, and kept
                facts = facts._replace(
                    unreferenced=-1, random_access=RandomAccess.NONE if self._begun else facts.random_access
                )
            self._begun = True
            return facts if second < 0 else facts._replace(unreferenced=-1, packed=True)
        if owed is None:
            return PacketInfo(shown=False)
        return self._types.facts(owed, False, want_order)._replace(unreferenced=-1)

    def _coded(self, header: bytes) -> bool:
        """vop_coded, 6.2.5; a VOP whose header cannot be read is taken as coded."""
        if self._time_bits is None:
            return True
        bits = BitReader(header, start=2)
        try:
            while bits.flag():  # modulo_time_base
                pass
            bits.skip(1 + self._time_bits + 1)
            return bits.flag()
        except Truncated:
            return True


def _vop_type(data: bytes, at: int) -> str:
    return {0: _INTRA, 2: _BIDIRECTIONAL}.get(data[at + 4] >> 6, _PREDICTED)


def _vop_time_bits(bits: BitReader) -> int:
    """Bits of vop_time_increment, from VideoObjectLayer(), 6.2.3."""
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
    return max(1, (bits.u(16) - 1).bit_length())


def _vol_interlaced(bits: BitReader, time_bits: int) -> bool:
    """interlaced of VideoObjectLayer(), 6.2.3, behind vop_time_increment_resolution; of rectangular shape."""
    try:
        bits.skip(1)
        if bits.flag():  # fixed_vop_rate
            bits.skip(time_bits)
        bits.skip(1 + 13 + 1 + 13 + 1)
        return bits.flag()
    except Truncated:
        return True


class Vc1Scanner:
    """Scans VC-1: the advanced profile, and WMV3's simple and main ones."""

    picture = None

    def __init__(self, extradata: bytes) -> None:
        self._types = _PictureTypes()
        self.interlaced = False
        """Whether the sequence header of the advanced profile allows fields."""
        self._finterp = self._rangered = self._b_pictures = False
        sequence = extradata.find(b"\0\0\1\x0f")
        self._advanced = sequence >= 0
        try:
            if self._advanced:
                self._parse_advanced(BitReader(extradata[sequence + 4 :]))
            else:
                self._parse_main(BitReader(extradata[:4]))
            self._known = True
        except Truncated:
            self._known = False

    def _parse_advanced(self, bits: BitReader) -> None:
        """Sequence header of the advanced profile, 6.1, as far as INTERLACE."""
        bits.skip(2 + 3 + 2 + 3 + 5 + 1 + 12 + 12 + 1)
        self.interlaced = bits.flag()

    def _parse_main(self, bits: BitReader) -> None:
        """STRUCT_C of the simple and main profiles, annex J."""
        bits.skip(4 + 3 + 5 + 1 + 1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 1 + 1)
        self._rangered = bits.flag()
        self._b_pictures = bits.u(3) > 0
        bits.skip(2)
        self._finterp = bits.flag()

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        try:
            kind = self._kind(bytes(packet[:512])) if self._known else _PREDICTED
        except Truncated:
            kind = _PREDICTED
        return self._types.facts(kind, is_key, want_order)

    def _kind(self, data: bytes) -> str:
        if not self._advanced:
            bits = BitReader(data[:8])
            bits.skip(int(self._finterp) + 2 + int(self._rangered))
            if bits.flag():
                return _PREDICTED
            return _BIDIRECTIONAL if self._b_pictures and not bits.flag() else _INTRA
        frame = data.find(b"\0\0\1\x0d")
        if frame >= 0:
            data = data[frame + 4 :]
        elif data[:3] == b"\0\0\1":
            raise Truncated("no frame header at the start of the packet")
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
        # 1110 is BI: intra, but never referred to; 1111 repeats the picture before
        return _PREDICTED if bits.flag() else _BIDIRECTIONAL


def allows_fields(header: bytes) -> bool:
    """See :func:`telecine.bitstream.allows_fields`: INTERLACE of VC-1's sequence header."""
    return Vc1Scanner(header).interlaced
