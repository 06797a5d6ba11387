"""HEVC (ITU-T H.265): sub-layer references, random access, leading pictures and display order."""

from __future__ import annotations

from telecine.bitstream import CORRUPT_PICTURE, Leading, PacketInfo, RandomAccess
from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.nal import NalScanner, ParameterSetKey, is_filler, is_sei, unescape, unwrap_poc

__all__ = ["HevcScanner", "can_contain_fields", "is_picture_type", "is_progressive", "max_temporal_id"]

# NAL unit types, table 7-1
_RADL_N, _RASL_N, _RASL_R = 6, 8, 9
_BLA_W_LP, _IDR_W_RADL, _IDR_N_LP, _CRA, _LAST_IRAP = 16, 19, 20, 21, 23
_RANDOM_ACCESS = dict.fromkeys((16, 17, 18, _CRA), RandomAccess.OPEN) | dict.fromkeys((19, 20), RandomAccess.CLOSED)
_VPS, _SPS, _PPS, _DELIMITER, _END_OF_SEQUENCE, _END_OF_BITSTREAM, _FILLER, _PREFIX_SEI, _SUFFIX_SEI = range(32, 41)


class HevcScanner(NalScanner):
    """Scans HEVC, length-prefixed or Annex B."""

    codec = "hevc"

    def __init__(self, extradata: bytes) -> None:
        self._poc_lsb_bits = 0
        self._separate_colour_planes = False
        self._pps: dict[int, tuple[bool, int]] = {}
        """output_flag_present_flag and num_extra_slice_header_bits of picture parameter sets."""
        self._single_slice_infos: dict[tuple[int, int, Leading], PacketInfo] = {}
        self._starts_sequence = True
        """True if the next picture is the first of a coded video sequence, whatever its type."""
        self._no_rasl_output = False
        """NoRaslOutputFlag of the last IRAP picture (8.1). Not for IDR pictures: a RASL picture after one is damage."""
        self._lacks_parameter_sets = False
        """True if decoding cannot start at the last IRAP picture, because parameter sets are missing there."""
        super().__init__(extradata)

    @property
    def has_one_frame_per_packet(self) -> bool:
        return True

    def _parse_parameter_set(self, unit: bytes) -> ParameterSetKey | None:
        try:
            kind = (unit[0] >> 1) & 63 if unit else -1
            if kind == _VPS and len(unit) > 2:
                return kind, unit[2] >> 4
            if kind == _SPS:
                number, self._separate_colour_planes, self._poc_lsb_bits, crops_left = _parse_sps(unit)
                self.crops_left |= crops_left
                return kind, number
            if kind == _PPS:
                bits = BitReader(unescape(unit), start=16)
                number = bits.ue()
                bits.ue()  # pps_seq_parameter_set_id
                bits.skip(1)  # dependent_slice_segments_enabled_flag
                self._pps[number] = bits.flag(), bits.u(3)
                return kind, number
        except InvalidHeader:
            pass  # only display order depends on it, which is needed only if times are missing
        return None

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        needs_more = is_key or with_order or bool(self._with_packet)
        if not needs_more and self._nal_units.length_size == 4 and len(packet) > 6:
            # fast path for nearly every packet of most files: one slice of a picture that is no random access point
            kind, layer = (packet[4] >> 1) & 63, (packet[4] & 1) | (packet[5] >> 3)
            if (
                kind < _BLA_W_LP
                and not layer
                and packet[5] & 7
                and int.from_bytes(packet[:4], "big") + 4 == len(packet)
            ):
                self._starts_sequence = False
                return self._single_slice_info(kind, (packet[5] & 7) - 1)
        head: bytes | None = None
        ends_sequence = is_damaged = False
        in_band: list[bytes] = []
        for nal in self._nal_units.split(packet):
            if not nal:
                return self._corrupt_picture()  # FFmpeg refuses a packet with a wrong length as a whole
            if not self._has_valid_header(nal):
                is_damaged = True
                continue
            kind = (nal[0] >> 1) & 63
            # a decoder of the base layer does not show pictures of higher layers (multiview, scalable)
            if is_picture_type(kind) and not nal[0] & 1 and not nal[1] >> 3:
                head = head or nal
            elif kind in (_VPS, _SPS, _PPS):
                in_band.append(nal)
            elif kind in (_END_OF_SEQUENCE, _END_OF_BITSTREAM):
                # after the packet's picture it ends that picture's sequence, before it the previous one
                ends_sequence = head is not None
                self._starts_sequence |= head is None
        if head is None:
            info = self._end_without_picture(packet, in_band)
            return self._corrupt_picture() if info.is_damaged else info
        can_start = self._can_start(in_band, is_key)
        kind, temporal_id = (head[0] >> 1) & 63, (head[1] & 7) - 1
        if _BLA_W_LP <= kind <= _LAST_IRAP:
            self._lacks_parameter_sets = not can_start
        info = PacketInfo(
            disposable=_is_sublayer_non_reference(kind)
            and not in_band
            and not is_damaged,  # parameter sets outlive their picture
            random_access=_RANDOM_ACCESS.get(kind, RandomAccess.NONE) if can_start else RandomAccess.NONE,
            leading=self._leading(kind),
            display_order=self._display_order(head, kind, temporal_id) if with_order else None,
            temporal_id=temporal_id,
        )
        self._starts_sequence = ends_sequence
        return info

    def _corrupt_picture(self) -> PacketInfo:
        # it may be an IRAP picture: the RASL pictures after it count
        self._no_rasl_output, self._lacks_parameter_sets = False, True
        return CORRUPT_PICTURE

    def _has_valid_header(self, unit: bytes) -> bool:
        return len(unit) > 1 and unit[0] <= 127 and unit[1] & 7 != 0  # forbidden_zero_bit, nuh_temporal_id_plus1

    def _is_intact(self, unit: bytes) -> bool:
        kind = (unit[0] >> 1) & 63
        if not self._has_valid_header(unit) or not _VPS <= kind <= _SUFFIX_SEI:
            return False
        if kind in (_PREFIX_SEI, _SUFFIX_SEI):
            return is_sei(unit, 2)
        return is_filler(unit[2:]) if kind == _FILLER else kind in (_VPS, _SPS, _PPS) or (_PPS < kind and len(unit) < 4)

    def _single_slice_info(self, kind: int, temporal_id: int) -> PacketInfo:
        """Return the facts of a picture in a single NAL unit, one shared object for each kind."""
        leading = self._leading(kind)
        info = self._single_slice_infos.get((kind, temporal_id, leading))
        if info is None:
            disposable = _is_sublayer_non_reference(kind)
            info = PacketInfo(disposable=disposable, leading=leading, temporal_id=temporal_id)
            self._single_slice_infos[kind, temporal_id, leading] = info
        return info

    def _leading(self, kind: int) -> Leading:
        if _BLA_W_LP <= kind <= _LAST_IRAP:
            self._no_rasl_output = kind < _IDR_W_RADL or (kind == _CRA and self._starts_sequence)
        if kind not in (_RASL_N, _RASL_R):
            return Leading.DECODABLE
        if self._no_rasl_output:
            return Leading.UNDECODABLE
        # if decoding cannot start at the IRAP picture, the pictures before it are always decoded
        return Leading.DECODABLE if self._lacks_parameter_sets else Leading.SKIPPED

    def _display_order(self, head: bytes, kind: int, temporal_id: int) -> tuple[int, int] | None:
        """Return the number of the coded video sequence and the picture order count (8.3.1), None if unknown."""
        restarts = _BLA_W_LP <= kind <= _IDR_N_LP or (kind == _CRA and self._starts_sequence)
        if restarts:
            self._sequence += 1
        lsb = 0 if kind in (_IDR_W_RADL, _IDR_N_LP) else self._slice_poc_lsb(head, kind)
        if lsb is None:
            return None
        poc = lsb if restarts else unwrap_poc(lsb, self._poc_lsb_bits, self._previous_poc)
        # prevTid0Pic is no leading and no sub-layer non-reference picture
        if temporal_id == 0 and not _RADL_N <= kind <= _RASL_R and not _is_sublayer_non_reference(kind):
            self._previous_poc = poc
        return self._sequence, poc

    def _slice_poc_lsb(self, head: bytes, kind: int) -> int | None:
        """Return slice_pic_order_cnt_lsb (7.3.6.1), None if it cannot be read."""
        try:
            bits = BitReader(unescape(head), start=16)
            if not bits.flag():  # first_slice_segment_in_pic_flag
                return None
            if kind >= 16:
                bits.skip(1)  # no_output_of_prior_pics_flag
            pps = self._pps.get(bits.ue())
            if pps is None or not self._poc_lsb_bits:
                return None
            output_flag_present, extra_slice_header_bits = pps
            bits.skip(extra_slice_header_bits)
            bits.ue()  # slice_type
            bits.skip(output_flag_present)
            bits.skip(2 * self._separate_colour_planes)
            return bits.u(self._poc_lsb_bits)
        except InvalidHeader:
            return None


def max_temporal_id(extradata: bytes) -> int:
    """Return the highest temporal id that ``hvcC`` announces (ISO/IEC 14496-15, 8.3.3.1); -1 if it has none."""
    return (extradata[21] >> 3 & 7) - 1 if len(extradata) > 21 else -1


def is_picture_type(kind: int) -> bool:
    """Return True if NAL units of a type hold slices; decoders ignore the reserved types (table 7-1)."""
    return kind <= _RASL_R or _BLA_W_LP <= kind <= _CRA


def can_contain_fields(sequence_header: bytes) -> bool:
    """Return True if a sequence parameter set declares the source interlaced, and not progressive (7.4.4)."""
    return _source_flags(sequence_header) == (False, True)


def is_progressive(sequence_header: bytes) -> bool:
    """Return True if a sequence parameter set declares the source progressive, and not interlaced."""
    return _source_flags(sequence_header) == (True, False)


def _source_flags(sequence_header: bytes) -> tuple[bool, bool]:
    """Return general_progressive_source_flag and general_interlaced_source_flag."""
    try:
        bits = BitReader(unescape(sequence_header[:32]), start=16)
        # sps_video_parameter_set_id to sps_temporal_id_nesting_flag, then profile space, tier, profile, compatibility
        bits.skip(4 + 3 + 1 + 2 + 1 + 5 + 32)
        return bits.flag(), bits.flag()
    except InvalidHeader:
        return False, False


def _is_sublayer_non_reference(kind: int) -> bool:
    """Return True for the even types up to RSV_VCL_N14."""
    return kind < _BLA_W_LP and kind % 2 == 0


def _parse_sps(nal: bytes) -> tuple[int, bool, int, bool]:
    """Return the id, separate_colour_plane_flag, the bits of slice_pic_order_cnt_lsb, and if it crops on the left."""
    bits = BitReader(unescape(nal), start=16)  # 7.3.2.2.1
    bits.skip(4)
    sub_layers = bits.u(3)
    bits.skip(1)
    bits.skip(96)  # profile_tier_level(1, sub_layers), 7.3.3
    present = [(bits.flag(), bits.flag()) for _ in range(sub_layers)]
    bits.skip(2 * (8 - sub_layers) if sub_layers else 0)
    for profile, level in present:
        bits.skip(88 * profile + 8 * level)
    number = bits.ue()
    separate = bits.ue() == 3 and bits.flag()
    bits.ue()  # pic_width_in_luma_samples
    bits.ue()  # pic_height_in_luma_samples
    window = [bits.ue() for _ in range(4)] if bits.flag() else [0]  # the conformance window, left side first
    bits.ue()  # bit_depth_luma_minus8
    bits.ue()  # bit_depth_chroma_minus8
    lsb_bits = bits.ue() + 4
    if lsb_bits > 16:  # 7.4.3.2.1
        raise InvalidHeader("slice_pic_order_cnt_lsb of more than 16 bits")
    return number, separate, lsb_bits, window[0] > 0
