"""H.264 (ITU-T H.264): references, random access and display order, from NAL unit and slice headers."""

from __future__ import annotations

from contextlib import suppress

from telecine.bitstream import CORRUPT_PICTURE, PacketInfo, PictureFormat, RandomAccess
from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, RGB_MATRIX, UNSPECIFIED, UNSPECIFIED_RANGE
from telecine.bitstream.nal import (
    NalScanner,
    ParameterSetKey,
    extradata_units,
    is_filler,
    is_sei,
    join_annex_b,
    nal_length_size,
    sei_messages,
    unescape,
    unwrap_poc,
)

__all__ = ["FrameNumGapDetector", "H264Scanner", "SliceHeader", "can_contain_fields", "without_broken_sets"]

_SLICE, _PARTITION_A, _IDR, _SEI, _SPS, _PPS, _DELIMITER, _END_OF_STREAM, _FILLER = 1, 2, 5, 6, 7, 8, 9, 11, 12
_PICTURE_TYPES = (_SLICE, _PARTITION_A, _IDR)
_RECOVERY_POINT = 6
_HIGH_PROFILES = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})

_REFERENCE_INFO, _DISPOSABLE_INFO = PacketInfo(), PacketInfo(disposable=True)


class _Sps:
    """The beginning of a sequence parameter set, 7.3.2.1.1."""

    def __init__(self, nal: bytes) -> None:
        bits = BitReader(unescape(nal), start=8)
        profile = bits.u(8)
        bits.skip(16)  # constraint flags and level
        self.number = bits.ue()
        if self.number > 31:  # 7.4.2.1.1
            raise InvalidHeader("seq_parameter_set_id above 31")
        self.separate_colour_planes, chroma, depth = False, 1, 8
        if profile in _HIGH_PROFILES:
            chroma = bits.ue()
            self.separate_colour_planes = chroma == 3 and bits.flag()
            depth = bits.ue() + 8
            bits.ue()  # bit_depth_chroma_minus8, which decoders require to be the same
            bits.skip(1)
            if bits.flag():
                for i in range(8 if chroma != 3 else 12):
                    if bits.flag():
                        _skip_scaling_list(bits, 16 if i < 6 else 64)
        self.frame_num_bits = bits.ue() + 4
        self.poc_type = bits.ue()
        self.poc_lsb_bits = bits.ue() + 4 if self.poc_type == 0 else 0
        if max(self.frame_num_bits, self.poc_lsb_bits) > 16:  # 7.4.2.1.1
            raise InvalidHeader("frame_num or pic_order_cnt_lsb of more than 16 bits")
        self.poc_deltas_coded = self.poc_type == 1 and not bits.flag()
        self.offset_for_non_reference = self.offset_for_bottom_field = 0
        self.offsets_for_references: tuple[int, ...] = ()
        if self.poc_type == 1:
            self.offset_for_non_reference, self.offset_for_bottom_field = bits.se(), bits.se()
            self.offsets_for_references = tuple(bits.se() for _ in range(min(bits.ue(), 255)))
        bits.ue()  # max_num_ref_frames
        self.gaps_allowed = bits.flag()  # gaps_in_frame_num_value_allowed_flag
        width, height = 16 * (bits.ue() + 1), 16 * (bits.ue() + 1)  # pic_width_in_mbs_minus1 and the like
        self.frame_mbs_only = bits.flag()
        height *= 1 if self.frame_mbs_only else 2
        crop, color_range, codes = _crop_and_colour(bits, self.frame_mbs_only)
        self.crops_left = crop[0] > 0
        width, height = _cropped(width, height, crop, chroma * (not self.separate_colour_planes), self.frame_mbs_only)
        self.picture = _picture_format(chroma, depth, color_range, codes)._replace(width=width, height=height)

    def expected_poc(self, count: int, is_reference: bool) -> int:
        """Return expectedPicOrderCnt (8.2.1.2); ``count`` is FrameNumOffset + frame_num."""
        offsets = self.offsets_for_references
        count = max(0, count - (not is_reference)) if offsets else 0
        cycles, rest = divmod(count - 1, len(offsets)) if count else (0, -1)
        poc = cycles * sum(offsets) + sum(offsets[: rest + 1])
        return poc if is_reference else poc + self.offset_for_non_reference


class SliceHeader:
    """The beginning of a slice header, 7.3.3, up to the picture order count."""

    def __init__(self, nal: bytes, sequences: dict[int, _Sps], pictures: dict[int, int]) -> None:
        bits = BitReader(unescape(nal), start=8)
        bits.ue()  # first_mb_in_slice
        self.is_intra = bits.ue() % 5 in (2, 4)
        sps = sequences.get(pictures.get(bits.ue(), -1))
        if sps is None:
            raise InvalidHeader("the slice's parameter sets are missing")
        self.sps = sps
        bits.skip(2 * sps.separate_colour_planes)
        self.frame_num = bits.u(sps.frame_num_bits)
        self.is_field = not sps.frame_mbs_only and bits.flag()
        self.is_bottom = self.is_field and bits.flag()
        self.is_reference, self.is_idr = (nal[0] >> 5) & 3 != 0, nal[0] & 31 == _IDR
        if self.is_idr:
            bits.ue()  # idr_pic_id
        self.poc_lsb = bits.u(sps.poc_lsb_bits) if sps.poc_type == 0 else 0
        self.poc_delta = bits.se() if sps.poc_deltas_coded else 0


class H264Scanner(NalScanner):
    """Scans H.264, length-prefixed or Annex B.

    Display order does not follow memory_management_control_operation 5, which no known encoder uses between IDR
    pictures.
    """

    codec = "h264"

    def __init__(self, extradata: bytes) -> None:
        self._sequences: dict[int, _Sps] = {}
        self._pictures: dict[int, int] = {}
        self._may_have_fields = True
        self._open_field: tuple[int, bool] | None = None
        super().__init__(extradata)

    @property
    def has_one_frame_per_packet(self) -> bool:
        return not self._may_have_fields

    def _parse_parameter_set(self, unit: bytes) -> ParameterSetKey | None:
        key: ParameterSetKey | None = None
        kind = unit[0] & 31 if unit else 0
        try:
            if kind == _SPS:
                sps = _Sps(unit)
                self._sequences[sps.number] = sps
                self.crops_left |= sps.crops_left
                key = kind, sps.number
            elif kind == _PPS:
                bits = BitReader(unescape(unit[:32]), start=8)
                key = kind, bits.ue()
                self._pictures[key[1]] = bits.ue()
        except InvalidHeader:
            key = None
        # fields cannot be told from frames without a sequence parameter set
        self._may_have_fields = not all(s.frame_mbs_only for s in self._sequences.values()) or not self._sequences
        return key

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        needs_more = is_key or with_order or self._may_have_fields or bool(self._with_packet)
        if not needs_more and self._nal_units.length_size == 4 and len(packet) > 4:
            # fast path for nearly every packet of most files: the first NAL unit is a slice, and its header is enough
            head = packet[4]
            if head & 31 == _SLICE and int.from_bytes(packet[:4], "big") + 4 <= len(packet):
                return _REFERENCE_INFO if head & 0x60 else _DISPOSABLE_INFO
        is_reference = is_idr = False
        in_band: list[bytes] = []
        recovery: tuple[int, bool] | None = None
        slices: list[bytes] = []
        is_damaged = False
        for nal in self._nal_units.split(packet):
            if not nal:
                return CORRUPT_PICTURE  # FFmpeg refuses a packet with a wrong length as a whole
            kind = nal[0] & 31
            if not self._has_valid_header(nal):
                is_damaged = True
            elif kind in _PICTURE_TYPES:
                slices.append(nal)
                is_reference |= (nal[0] >> 5) & 3 != 0
                is_idr |= kind == _IDR
                # the other slices of a frame agree on nal_ref_idc (7.4.1); only a second field may differ
                if not self._may_have_fields or (is_reference and not is_key):
                    break
            elif kind in (_SPS, _PPS):
                in_band.append(nal)
            elif kind == _SEI and is_key:
                recovery = recovery or _recovery_point(nal)
        if not slices:
            return self._end_without_picture(packet, in_band)
        can_start = self._can_start(in_band, is_key)
        if self.picture is None and (first := self._slice_header(slices[0])) is not None:
            self.picture = first.sps.picture
        is_known, second_field, order = self._follow_fields(slices, is_reference, with_order)
        recovers = recovery is not None and self._is_exact(*recovery, slices[0])
        access = RandomAccess.CLOSED if is_idr else RandomAccess.OPEN if recovers else RandomAccess.NONE
        return PacketInfo(
            shown=not second_field,
            # Parameter sets outlive their picture. Both fields of a picture are needed if one is, and a picture that
            # may be a field or a frame must not be skipped.
            disposable=not (is_reference or in_band or second_field or self._open_field or is_damaged) and is_known,
            random_access=access if can_start and not second_field else RandomAccess.NONE,
            display_order=order,
            second_field=second_field,
        )

    def is_parameter_set(self, unit: bytes) -> bool:
        """Return True for a parameter set that can be read."""
        return self._parse_parameter_set(unit) is not None

    def _has_valid_header(self, unit: bytes) -> bool:
        # forbidden_zero_bit, nal_unit_type, nal_ref_idc of an IDR picture (7.4.1)
        return unit[0] <= 127 and unit[0] & 31 != 0 and unit[0] != _IDR

    def _is_intact(self, unit: bytes) -> bool:
        kind = unit[0] & 31
        if kind in (_SPS, _PPS, _SEI):
            return self._has_valid_header(unit) and (kind != _SEI or is_sei(unit, 1))
        return is_filler(unit[1:]) if unit[0] == _FILLER else _DELIMITER <= unit[0] <= _END_OF_STREAM and len(unit) <= 2

    def first_slice(self, packet: bytes | memoryview) -> SliceHeader | None:
        """Return the header of the packet's first slice, None if it cannot be read."""
        for nal in self._nal_units.split(packet):
            if nal and nal[0] & 31 in _PICTURE_TYPES:
                return self._slice_header(nal)
            self._parse_parameter_set(nal)
        return None

    def _slice_header(self, nal: bytes) -> SliceHeader | None:
        try:
            return SliceHeader(nal, self._sequences, self._pictures)
        except InvalidHeader:
            return None

    def _is_exact(self, frame_count: int, exact_match: bool, nal: bytes) -> bool:
        """Return True if decoding from this recovery point is exact from its own picture on (D.2.8)."""
        # without exact_match the encoder promises "approximately correct", which a picture of P slices may not be
        return not frame_count and (exact_match or ((head := self._slice_header(nal)) is not None and head.is_intra))

    def _follow_fields(
        self, slices: list[bytes], is_reference: bool, with_order: bool
    ) -> tuple[bool, bool, tuple[int, int] | None]:
        """Return (it is known if this is a frame or a field, it is a second field, display order)."""
        if not self._may_have_fields and not with_order:
            return True, False, None
        first, last = self._slice_header(slices[0]), self._slice_header(slices[-1])
        if first is None or last is None:
            return not self._may_have_fields, False, None
        second_field = False
        if first.is_field and last.is_bottom == first.is_bottom:
            second_field = self._open_field == (first.frame_num, not first.is_bottom)
            self._open_field = None if second_field else (first.frame_num, first.is_bottom)
        else:
            self._open_field = None
        is_idr = any(nal[0] & 31 == _IDR for nal in slices)
        return True, second_field, self._display_order(first, is_idr, is_reference) if with_order else None

    def _display_order(self, head: SliceHeader, is_idr: bool, is_reference: bool) -> tuple[int, int]:
        """Return the number of the coded video sequence, which an IDR picture begins, and the picture order count."""
        if is_idr or self._sequence < 0:
            self._sequence += 1
            self._previous_poc = 0
        sps = head.sps
        if sps.poc_type == 0:
            poc = unwrap_poc(head.poc_lsb, sps.poc_lsb_bits, self._previous_poc)
            if is_reference:
                self._previous_poc = poc
            return self._sequence, poc
        # FrameNumOffset + frame_num, which only rises although frame_num wraps
        wrap = 1 << sps.frame_num_bits
        previous = self._previous_poc % wrap
        count = self._previous_poc - previous + head.frame_num + wrap * (head.frame_num < previous)
        self._previous_poc = count
        poc = 2 * count - (not is_reference) if sps.poc_type == 2 else sps.expected_poc(count, is_reference)
        return self._sequence, poc + head.poc_delta + (sps.offset_for_bottom_field if head.is_bottom else 0)


class FrameNumGapDetector:
    """Detects missing reference pictures by frame_num, which counts them (7.4.3); a decoder conceals them silently.

    Not thread-safe: use one for each decode pass.
    """

    def __init__(self, extradata: bytes) -> None:
        self._scanner = H264Scanner(extradata)
        self._previous: int | None = None
        self.update_extradata = self._scanner.update_extradata

    def has_gap_before(self, packet: bytes | memoryview) -> bool:
        """Return True if a reference picture is missing between the packet of the last call and this one."""
        head = self._scanner.first_slice(packet)
        if head is None or head.sps.gaps_allowed:
            return False
        previous = self._previous
        if head.is_reference or head.is_idr:
            self._previous = head.frame_num
        if previous is None or head.is_idr:
            return False
        # a second field repeats the number
        return head.frame_num not in (previous, (previous + 1) % (1 << head.sps.frame_num_bits))


def can_contain_fields(sequence_header: bytes) -> bool:
    """Return True if frame_mbs_only_flag of a sequence parameter set is 0; False if it cannot be read."""
    try:
        return not _Sps(sequence_header).frame_mbs_only
    except InvalidHeader:
        return False


def without_broken_sets(extradata: bytes) -> bytes:
    """Return extradata in Annex B without broken parameter sets, at which FFmpeg stops reading; other as it is."""
    scanner, units = H264Scanner(b""), extradata_units("h264", extradata)
    if nal_length_size("h264", extradata) or all(map(scanner.is_parameter_set, units)):
        return extradata
    return join_annex_b(filter(scanner.is_parameter_set, units))


def _crop_and_colour(bits: BitReader, frames_only: bool) -> tuple[list[int], int, list[int]]:
    """Return (crop offsets, range, [primaries, transfer, matrix]) from the rest of the SPS and its VUI (E.1.1)."""
    color_range, codes, crop = UNSPECIFIED_RANGE, [UNSPECIFIED] * 3, [0] * 4
    with suppress(InvalidHeader):
        bits.skip(1 if frames_only else 2)  # mb_adaptive_frame_field_flag, direct_8x8_inference_flag
        if bits.flag():
            crop = [bits.ue() for _ in crop]  # left, right, top, bottom, in crop units
        if bits.flag():  # vui_parameters_present_flag
            if bits.flag() and bits.u(8) == 255:  # aspect_ratio_idc Extended_SAR
                bits.skip(32)
            if bits.flag():
                bits.skip(1)  # overscan_appropriate_flag
            if bits.flag():  # video_signal_type_present_flag
                bits.skip(3)
                is_full, is_described = bits.flag(), bits.flag()
                codes = [bits.u(8) for _ in codes] if is_described else codes
                color_range = FULL_RANGE if is_full else LIMITED_RANGE
    return crop, color_range, codes


def _cropped(width: int, height: int, crop: list[int], chroma: int, frames_only: bool) -> tuple[int, int]:
    """Return the size without the cropped samples; the offsets are in crop units (7.4.2.1.1)."""
    across, down = 2 if chroma in (1, 2) else 1, (2 if chroma == 1 else 1) * (1 if frames_only else 2)
    cropped = width - across * (crop[0] + crop[1]), height - down * (crop[2] + crop[3])
    # FFmpeg ignores a crop that leaves nothing
    return cropped if min(cropped) > 0 else (width, height)


def _picture_format(chroma: int, depth: int, color_range: int, codes: list[int]) -> PictureFormat:
    """Return the format that FFmpeg's decoder gives, which is 4:2:0 for monochrome."""
    primaries, transfer, matrix = codes
    layout = {2: "422", 3: "444"}.get(chroma, "420")
    if chroma == 3 and matrix == RGB_MATRIX:
        name = "gbrp"
    else:
        name = f"yuv{'j' if color_range == FULL_RANGE and depth == 8 else ''}{layout}p"
    if depth > 8:
        name += f"{depth}le"
    return PictureFormat(name, depth, matrix, color_range, primaries, transfer, monochrome=chroma == 0)


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    """Skip scaling_list(), 7.3.2.1.1.1, which ends early if the next scale becomes 0."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _recovery_point(nal: bytes) -> tuple[int, bool] | None:
    """Return (recovery_frame_cnt, exact_match_flag) of a recovery point SEI message (D.1.8), None if there is none.

    With a count above 0 the picture is refreshed gradually, so decoding that starts there is not exact at once.
    """
    for kind, payload, _ in sei_messages(nal, 1):
        if kind == _RECOVERY_POINT:
            with suppress(InvalidHeader):
                bits = BitReader(payload)
                return bits.ue(), bits.flag()
            return None
    return None
