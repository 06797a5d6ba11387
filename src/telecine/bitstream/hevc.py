"""HEVC (ITU-T H.265): sub-layer references, random access, leading pictures and output order."""

from __future__ import annotations

from dataclasses import dataclass

from telecine.bitstream import Leading, PacketInfo, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated
from telecine.bitstream.extradata import header_units
from telecine.bitstream.nal import NalUnits, SetsInForce, unescape

__all__ = ["HevcScanner", "allows_fields", "is_progressive"]

# NAL unit types, table 7-1
_RADL_N, _RASL_R = 6, 9
_BLA_W_LP, _BLA_N_LP, _IDR_W_RADL, _IDR_N_LP, _CRA, _LAST_IRAP = 16, 18, 19, 20, 21, 23
_LAST_VCL, _VPS, _SPS, _PPS, _END_OF_SEQUENCE, _END_OF_BITSTREAM = 31, 32, 33, 34, 36, 37


@dataclass(frozen=True)
class _Pps:
    output_flag_present: bool
    extra_slice_header_bits: int


class HevcScanner:
    """Scans HEVC, length-prefixed or Annex-B."""

    picture = None

    def __init__(self, extradata: bytes) -> None:
        self._nal_units = NalUnits(extradata, "hevc")
        self._poc_lsb_bits = 0
        self._separate_colour_planes = False
        self._pps: dict[int, _Pps] = {}
        self._made: dict[tuple[int, int, Leading], PacketInfo] = {}
        self._sequence = -1
        self._previous_poc = 0
        self._begins_sequence = True
        self._skips_leading = False
        self._passed_over = False
        self._sets = SetsInForce()
        for nal in header_units("hevc", extradata):
            if (found := self._remember(nal)) is not None:
                self._sets.of_header(*found, nal)

    def update_extradata(self, extradata: bytes) -> None:
        """See :meth:`telecine.bitstream.Scanner.update_extradata`."""
        self._nal_units = NalUnits(extradata, "hevc")
        for nal in header_units("hevc", extradata):
            if (found := self._remember(nal)) is not None:
                self._sets.bring(*found, nal)

    def _remember(self, nal: bytes) -> tuple[int, int] | None:
        """Take note of a parameter set: its type and number; None where it is none, or broken."""
        found: tuple[int, int] | None = None
        try:
            kind = (nal[0] >> 1) & 63 if nal else -1
            if kind == _VPS and len(nal) > 2:
                found = kind, nal[2] >> 4
            elif kind == _SPS:
                number, self._separate_colour_planes, self._poc_lsb_bits = _parse_sps(nal)
                found = kind, number
            elif kind == _PPS:
                number, pps = _parse_pps(nal)
                self._pps[number] = pps
                found = kind, number
        except Truncated:
            pass  # a damaged parameter set costs the output order, which is needed only where times are missing
        return found

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        looks = is_key or want_order or self._sets.waiting
        if not looks and self._nal_units.length_size == 4 and len(packet) > 6:
            # nearly every packet of nearly every file: one slice of a picture that is no access point
            kind, layer = (packet[4] >> 1) & 63, (packet[4] & 1) | (packet[5] >> 3)
            if kind < _BLA_W_LP and not layer and int.from_bytes(packet[:4], "big") + 4 == len(packet):
                self._begins_sequence = False
                return self._plain(kind, (packet[5] & 7) - 1)
        head: bytes | None = None
        ends_sequence = updates = False
        for nal in self._nal_units(packet):
            if len(nal) < 2:
                continue
            kind = (nal[0] >> 1) & 63
            # pictures of a higher layer (multiview, scalable) are not what a plain decoder shows
            if kind <= _LAST_VCL and not nal[0] & 1 and not nal[1] >> 3:
                head = head or nal
            elif kind in (_VPS, _SPS, _PPS):
                updates = True
                if (found := self._remember(nal)) is not None:
                    self._sets.meet(*found, nal)
            elif kind in (_END_OF_SEQUENCE, _END_OF_BITSTREAM):
                # behind the packet's picture it ends that picture's sequence, in front of it the one before
                ends_sequence = head is not None
                self._begins_sequence |= head is None
        # with a picture that is no key frame, where a container keeps the sets in its header, they are rather damage
        starts = self._sets.complete(is_key or head is None or not self._nal_units.length_size)
        if head is None:
            return PacketInfo(shown=False)
        kind, temporal_id = (head[0] >> 1) & 63, (head[1] & 7) - 1
        if _BLA_W_LP <= kind <= _LAST_IRAP:
            self._passed_over = not starts
        facts = PacketInfo(
            # even types up to RSV_VCL_N14 are sub-layer non-reference pictures; parameter sets outlive their picture
            unreferenced=temporal_id if kind < 16 and kind % 2 == 0 and not updates else -1,
            random_access=_access(kind) if starts else RandomAccess.NONE,
            leading=self._relation(kind),
            display_order=self._place(head, kind, temporal_id) if want_order else None,
            temporal_id=temporal_id,
        )
        self._begins_sequence = ends_sequence
        return facts

    def _plain(self, kind: int, temporal_id: int) -> PacketInfo:
        """The facts of a picture that brings nothing else, made once for each kind."""
        relation = self._relation(kind)
        facts = self._made.get((kind, temporal_id, relation))
        if facts is None:
            unreferenced = temporal_id if kind % 2 == 0 else -1
            facts = PacketInfo(unreferenced=unreferenced, leading=relation, temporal_id=temporal_id)
            self._made[kind, temporal_id, relation] = facts
        return facts

    def _relation(self, kind: int) -> Leading:
        if _BLA_W_LP <= kind <= _LAST_IRAP:
            self._skips_leading = kind != _CRA or self._begins_sequence
        if kind in (_RASL_R - 1, _RASL_R):
            # where nothing can start, what is in front of them is always decoded
            return Leading.NEVER if self._skips_leading else Leading.NO if self._passed_over else Leading.SKIPPED
        return Leading.NO

    def _place(self, head: bytes, kind: int, temporal_id: int) -> tuple[int, int] | None:
        """Picture order count, 8.3.1, under a counter of the points where it starts again."""
        restarts = kind in range(_BLA_W_LP, _IDR_N_LP + 1) or (kind == _CRA and self._begins_sequence)
        if restarts:
            self._sequence += 1
        lsb = 0 if kind in (_IDR_W_RADL, _IDR_N_LP) else self._slice_poc_lsb(head, kind)
        if lsb is None:
            return None
        wrap = 1 << self._poc_lsb_bits
        previous_lsb = self._previous_poc % wrap
        msb = 0 if restarts else self._previous_poc - previous_lsb
        if not restarts:
            if lsb < previous_lsb and previous_lsb - lsb >= wrap // 2:
                msb += wrap
            elif lsb > previous_lsb and lsb - previous_lsb > wrap // 2:
                msb -= wrap
        poc = msb + lsb
        # prevTid0Pic passes over leading and sub-layer non-reference pictures
        if temporal_id == 0 and not _RADL_N <= kind <= _RASL_R and not (kind < 16 and kind % 2 == 0):
            self._previous_poc = poc
        return self._sequence, poc

    def _slice_poc_lsb(self, head: bytes, kind: int) -> int | None:
        """slice_pic_order_cnt_lsb, 7.3.6.1."""
        try:
            bits = BitReader(unescape(head), start=16)
            if not bits.flag():  # first_slice_segment_in_pic_flag
                return None
            if kind >= 16:
                bits.skip(1)  # no_output_of_prior_pics_flag
            pps = self._pps.get(bits.ue())
            if pps is None or not self._poc_lsb_bits:
                return None
            bits.skip(pps.extra_slice_header_bits)
            bits.ue()  # slice_type
            if pps.output_flag_present:
                bits.skip(1)
            if self._separate_colour_planes:
                bits.skip(2)
            return bits.u(self._poc_lsb_bits)
        except Truncated:
            return None


def allows_fields(header: bytes) -> bool:
    """See :func:`telecine.bitstream.allows_fields`: the source is called interlaced, and not progressive (7.4.4)."""
    return _source(header) == (False, True)


def is_progressive(header: bytes) -> bool:
    """Whether a sequence parameter set calls the source progressive, and not interlaced; it need call it nothing."""
    return _source(header) == (True, False)


def _source(header: bytes) -> tuple[bool, bool]:
    """general_progressive_source_flag and general_interlaced_source_flag."""
    try:
        bits = BitReader(unescape(header[:32]), start=16)
        # sps_video_parameter_set_id to sps_temporal_id_nesting_flag, then profile space, tier, profile, compatibility
        bits.skip(4 + 3 + 1 + 2 + 1 + 5 + 32)
        return bits.flag(), bits.flag()
    except Truncated:
        return False, False


def _access(kind: int) -> RandomAccess:
    if kind in (_IDR_W_RADL, _IDR_N_LP):
        return RandomAccess.CLOSED
    return RandomAccess.OPEN if _BLA_W_LP <= kind <= _CRA else RandomAccess.NONE


def _parse_sps(nal: bytes) -> tuple[int, bool, int]:
    """The number, separate_colour_plane_flag and the bits of slice_pic_order_cnt_lsb, 7.3.2.2.1."""
    bits = BitReader(unescape(nal), start=16)
    bits.skip(4)
    sub_layers = bits.u(3)
    bits.skip(1)
    _skip_profile_tier_level(bits, sub_layers)
    number = bits.ue()
    separate = bits.ue() == 3 and bits.flag()
    bits.ue()  # pic_width_in_luma_samples
    bits.ue()  # pic_height_in_luma_samples
    if bits.flag():
        for _ in range(4):
            bits.ue()
    bits.ue()  # bit_depth_luma_minus8
    bits.ue()  # bit_depth_chroma_minus8
    lsb_bits = bits.ue() + 4
    if lsb_bits > 16:  # 7.4.3.2.1
        raise Truncated("a sequence parameter set with numbers of more bits than there are")
    return number, separate, lsb_bits


def _skip_profile_tier_level(bits: BitReader, sub_layers: int) -> None:
    """Pass over profile_tier_level(1, sub_layers), 7.3.3."""
    bits.skip(96)
    present = [(bits.flag(), bits.flag()) for _ in range(sub_layers)]
    if sub_layers:
        bits.skip(2 * (8 - sub_layers))
    for profile, level in present:
        bits.skip(88 * profile + 8 * level)


def _parse_pps(nal: bytes) -> tuple[int, _Pps]:
    """The beginning of a picture parameter set, 7.3.2.3.1."""
    bits = BitReader(unescape(nal), start=16)
    number = bits.ue()
    bits.ue()  # pps_seq_parameter_set_id
    bits.skip(1)  # dependent_slice_segments_enabled_flag
    return number, _Pps(bits.flag(), bits.u(3))
