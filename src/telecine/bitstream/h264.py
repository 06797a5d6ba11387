"""H.264 (ITU-T H.264): references, random access and output order, from NAL and slice headers."""

from __future__ import annotations

from dataclasses import dataclass

from telecine.bitstream import PacketInfo, PictureFormat, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated
from telecine.bitstream.extradata import header_units
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, RGB_MATRIX, UNSPECIFIED, UNSPECIFIED_RANGE
from telecine.bitstream.nal import NalUnits, SetsInForce, unescape

__all__ = ["FrameNumbers", "H264Scanner", "allows_fields"]

_SLICE, _PARTITION_A, _IDR, _SEI, _SPS, _PPS = 1, 2, 5, 6, 7, 8
_RECOVERY_POINT = 6
_HIGH_PROFILES = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})


_REFERENCED, _UNREFERENCED = PacketInfo(), PacketInfo(unreferenced=0)


@dataclass(frozen=True)
class _Sps:
    frame_num_bits: int
    gaps_allowed: bool
    poc_type: int
    poc_lsb_bits: int
    poc_deltas_coded: bool
    offset_unreferenced: int
    offset_bottom: int
    offsets: tuple[int, ...]
    frame_mbs_only: bool
    separate_colour_planes: bool
    picture: PictureFormat


class _Slice:
    """The beginning of a slice header, 7.3.3, as far as the picture order count."""

    def __init__(self, nal: bytes, sequences: dict[int, _Sps], pictures: dict[int, int]) -> None:
        bits = BitReader(unescape(nal), start=8)
        bits.ue()  # first_mb_in_slice
        self.intra = bits.ue() % 5 in (2, 4)
        sps = sequences.get(pictures.get(bits.ue(), -1))
        if sps is None:
            raise Truncated("the slice's parameter sets are missing")
        self.sps = sps
        if sps.separate_colour_planes:
            bits.skip(2)
        self.frame_num = bits.u(sps.frame_num_bits)
        self.is_field = not sps.frame_mbs_only and bits.flag()
        self.is_bottom = self.is_field and bits.flag()
        self.referenced, self.idr = (nal[0] >> 5) & 3 != 0, nal[0] & 31 == _IDR
        if self.idr:
            bits.ue()  # idr_pic_id
        self.poc_lsb = bits.u(sps.poc_lsb_bits) if sps.poc_type == 0 else 0
        self.poc_delta = bits.se() if sps.poc_type == 1 and sps.poc_deltas_coded else 0


class H264Scanner:
    """Scans H.264, length-prefixed or Annex-B.

    Output order is not followed through memory_management_control_operation 5, which no known encoder uses between
    IDR pictures.
    """

    def __init__(self, extradata: bytes) -> None:
        self._nal_units = NalUnits(extradata, "h264")
        self.picture: PictureFormat | None = None
        self._sequences: dict[int, _Sps] = {}
        self._pictures: dict[int, int] = {}
        self._fields_possible = True
        self._open_field: tuple[int, bool] | None = None
        self._sequence = -1
        self._msb = self._lsb = 0
        self._sets = SetsInForce()
        for nal in header_units("h264", extradata):
            if (found := self._remember(nal)) is not None:
                self._sets.of_header(*found, nal)

    def update_extradata(self, extradata: bytes) -> None:
        """See :meth:`telecine.bitstream.Scanner.update_extradata`."""
        self._nal_units = NalUnits(extradata, "h264")
        for nal in header_units("h264", extradata):
            if (found := self._remember(nal)) is not None:
                self._sets.bring(*found, nal)

    def _remember(self, nal: bytes) -> tuple[int, int] | None:
        """Take note of a parameter set: its type and number; None where it is none, or broken."""
        found: tuple[int, int] | None = None
        kind = nal[0] & 31 if nal else 0
        try:
            if kind == _SPS:
                number, sps = _parse_sps(nal)
                self._sequences[number] = sps
                self.picture = sps.picture
                found = kind, number
            elif kind == _PPS:
                bits = BitReader(unescape(nal[:32]), start=8)
                number = bits.ue()
                self._pictures[number] = bits.ue()
                found = kind, number
        except Truncated:
            self._sequences.clear()  # which of them it replaces cannot be told
        # without any, fields cannot be told from frames
        self._fields_possible = not all(s.frame_mbs_only for s in self._sequences.values()) or not self._sequences
        return found

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        looks = is_key or want_order or self._fields_possible or self._sets.waiting
        if not looks and self._nal_units.length_size == 4 and len(packet) > 4:
            # nearly every packet of nearly every file: the first NAL unit is a slice, and it tells all
            head = packet[4]
            if head & 31 == _SLICE:
                return _REFERENCED if head & 0x60 else _UNREFERENCED
        referenced = is_idr = updates = False
        recovery: tuple[int, bool] | None = None
        slices: list[bytes] = []
        for nal in self._nal_units(packet):
            if not nal:
                continue
            kind = nal[0] & 31
            if kind in (_SLICE, _PARTITION_A, _IDR):
                slices.append(nal)
                referenced |= (nal[0] >> 5) & 3 != 0
                is_idr |= kind == _IDR
                # the other slices of a frame agree on nal_ref_idc (7.4.1); only a second field may differ
                if not self._fields_possible or (referenced and not is_key):
                    break
            elif kind in (_SPS, _PPS):
                updates = True
                if (found := self._remember(nal)) is not None:
                    self._sets.meet(*found, nal)
            elif kind == _SEI and is_key:
                recovery = recovery or _recovery_point(nal)
        # with a picture that is no key frame, where a container keeps the sets in its header, they are rather damage
        starts = self._sets.complete(is_key or not slices or not self._nal_units.length_size)
        if not slices:
            return PacketInfo(shown=False)
        known, second_field, order = self._follow(slices, is_idr, referenced, want_order)
        recovers = recovery is not None and self._recovers(*recovery, slices[0])
        access = RandomAccess.CLOSED if is_idr else RandomAccess.OPEN if recovers else RandomAccess.NONE
        return PacketInfo(
            shown=not second_field,
            # parameter sets outlive their picture; fields in packets of their own stand or fall together, and what
            # may be either field or frame must not be skipped
            unreferenced=-1 if referenced or updates or second_field or self._open_field or not known else 0,
            random_access=access if starts and not second_field else RandomAccess.NONE,
            display_order=order,
            second_field=second_field,
        )

    def head_of(self, packet: bytes | memoryview) -> _Slice | None:
        """The beginning of the packet's first slice, None where it cannot be read."""
        for nal in self._nal_units(packet):
            kind = nal[0] & 31 if nal else 0
            if kind in (_SLICE, _PARTITION_A, _IDR):
                try:
                    return _Slice(nal, self._sequences, self._pictures)
                except Truncated:
                    return None
            self._remember(nal)
        return None

    def _recovers(self, frame_count: int, exact_match: bool, slice_head: bytes) -> bool:
        """Whether decoding that starts here is exact from this picture on, in output order (D.2.8)."""
        try:
            # without exact_match the encoder promises "approximately correct", which a picture of P slices may not be
            return not frame_count and (exact_match or _Slice(slice_head, self._sequences, self._pictures).intra)
        except Truncated:
            return False

    def _follow(
        self, slices: list[bytes], is_idr: bool, referenced: bool, want_order: bool
    ) -> tuple[bool, bool, tuple[int, int] | None]:
        """Whether frame or field is known, whether it completes the picture before, and the place in output order."""
        if not self._fields_possible and not want_order:
            return True, False, None
        try:
            first = _Slice(slices[0], self._sequences, self._pictures)
            last = _Slice(slices[-1], self._sequences, self._pictures)
        except Truncated:
            return not self._fields_possible, False, None
        second_field = False
        if first.is_field and last.is_bottom == first.is_bottom:
            second_field = self._open_field == (first.frame_num, not first.is_bottom)
            self._open_field = None if second_field else (first.frame_num, first.is_bottom)
        else:
            self._open_field = None
        return True, second_field, self._place(first, is_idr, referenced) if want_order else None

    def _place(self, head: _Slice, is_idr: bool, referenced: bool) -> tuple[int, int]:
        """Picture order count, 8.2.1, under a counter of IDR pictures."""
        if is_idr or self._sequence < 0:
            self._sequence += 1
            self._msb = self._lsb = 0
        sps = head.sps
        if sps.poc_type == 0:
            place = self._place_by_lsb(head, 1 << sps.poc_lsb_bits, referenced)
        else:
            # FrameNumOffset, for which the two fields serve that type 0 uses for its own
            self._msb += (1 << sps.frame_num_bits) * (head.frame_num < self._lsb)
            self._lsb = head.frame_num
            count = self._msb + head.frame_num
            place = 2 * count - (not referenced) if sps.poc_type == 2 else _expected(sps, count, referenced)
            place += head.poc_delta + (sps.offset_bottom if head.is_bottom else 0)
        return self._sequence, place

    def _place_by_lsb(self, head: _Slice, wrap: int, referenced: bool) -> int:
        msb = self._msb
        if head.poc_lsb < self._lsb and self._lsb - head.poc_lsb >= wrap // 2:
            msb += wrap
        elif head.poc_lsb > self._lsb and head.poc_lsb - self._lsb > wrap // 2:
            msb -= wrap
        if referenced:
            self._msb, self._lsb = msb, head.poc_lsb
        return msb + head.poc_lsb


class FrameNumbers:
    """Notices that a reference picture is missing in front of a packet: frame_num counts them (7.4.3).

    A decoder goes on with what it has, and says nothing. Not thread-safe: one for each stretch that is decoded
    without a restart.
    """

    def __init__(self, extradata: bytes) -> None:
        self._scanner = H264Scanner(extradata)
        self._previous: int | None = None
        self.update_extradata = self._scanner.update_extradata

    def gap_before(self, packet: bytes | memoryview) -> bool:
        """Whether a reference picture is missing between the last packet and this one."""
        head = self._scanner.head_of(packet)
        if head is None or head.sps.gaps_allowed:
            return False
        previous = self._previous
        if head.referenced or head.idr:
            self._previous = head.frame_num
        if previous is None or head.idr:
            return False
        # the same once more for a second field
        return head.frame_num not in (previous, (previous + 1) % (1 << head.sps.frame_num_bits))


def allows_fields(header: bytes) -> bool:
    """See :func:`telecine.bitstream.allows_fields`: frame_mbs_only_flag is 0."""
    try:
        return not _parse_sps(header)[1].frame_mbs_only
    except Truncated:
        return False


def _expected(sps: _Sps, count: int, referenced: bool) -> int:
    """expectedPicOrderCnt, 8.2.1.2, of the frame with so many reference frames before it."""
    period = len(sps.offsets)
    count = max(0, count - (not referenced)) if period else 0
    cycles, rest = divmod(count - 1, period) if count else (0, -1)
    place = cycles * sum(sps.offsets) + sum(sps.offsets[: rest + 1])
    return place if referenced else place + sps.offset_unreferenced


def _parse_sps(nal: bytes) -> tuple[int, _Sps]:
    """The number and the beginning of a sequence parameter set, 7.3.2.1.1."""
    bits = BitReader(unescape(nal), start=8)
    profile = bits.u(8)
    bits.skip(16)  # constraint flags and level
    number = bits.ue()
    separate, chroma, depth = False, 1, 8
    if profile in _HIGH_PROFILES:
        chroma = bits.ue()
        separate = chroma == 3 and bits.flag()
        depth = bits.ue() + 8
        bits.ue()  # bit_depth_chroma_minus8, which decoders want to be the same
        bits.skip(1)
        if bits.flag():
            for i in range(8 if chroma != 3 else 12):
                if bits.flag():
                    _skip_scaling_list(bits, 16 if i < 6 else 64)
    frame_num_bits = bits.ue() + 4
    poc_type = bits.ue()
    poc_lsb_bits = bits.ue() + 4 if poc_type == 0 else 0
    if max(frame_num_bits, poc_lsb_bits) > 16:  # 7.4.2.1.1
        raise Truncated("a sequence parameter set with numbers of more bits than there are")
    deltas_coded = False
    unreferenced = bottom = 0
    offsets: tuple[int, ...] = ()
    if poc_type == 1:
        deltas_coded = not bits.flag()
        unreferenced, bottom = bits.se(), bits.se()
        offsets = tuple(bits.se() for _ in range(min(bits.ue(), 255)))
    bits.ue()  # max_num_ref_frames
    gaps_allowed = bits.flag()  # gaps_in_frame_num_value_allowed_flag
    bits.ue()  # pic_width_in_mbs_minus1
    bits.ue()  # pic_height_in_map_units_minus1
    frames_only = bits.flag()
    picture = _picture_format(chroma, depth, *_colour(bits, frames_only))
    return number, _Sps(
        frame_num_bits=frame_num_bits,
        gaps_allowed=gaps_allowed,
        poc_type=poc_type,
        poc_lsb_bits=poc_lsb_bits,
        poc_deltas_coded=deltas_coded,
        offset_unreferenced=unreferenced,
        offset_bottom=bottom,
        offsets=offsets,
        frame_mbs_only=frames_only,
        separate_colour_planes=separate,
        picture=picture,
    )


def _colour(bits: BitReader, frames_only: bool) -> tuple[int, int, int, int]:
    """Return (matrix, range, primaries, transfer) from the rest of the SPS and its VUI (E.1.1)."""
    unspecified = UNSPECIFIED, UNSPECIFIED_RANGE, UNSPECIFIED, UNSPECIFIED
    try:
        bits.skip(1 if frames_only else 2)  # mb_adaptive_frame_field_flag, direct_8x8_inference_flag
        if bits.flag():
            for _ in range(4):
                bits.ue()  # frame_cropping
        if not bits.flag():  # vui_parameters_present_flag
            return unspecified
        if bits.flag() and bits.u(8) == 255:  # aspect_ratio_idc Extended_SAR
            bits.skip(32)
        if bits.flag():
            bits.skip(1)  # overscan_appropriate_flag
        if not bits.flag():  # video_signal_type_present_flag
            return unspecified
        bits.skip(3)
        color_range = FULL_RANGE if bits.flag() else LIMITED_RANGE
        if not bits.flag():  # colour_description_present_flag
            return UNSPECIFIED, color_range, UNSPECIFIED, UNSPECIFIED
        primaries, transfer, matrix = bits.u(8), bits.u(8), bits.u(8)
        return matrix, color_range, primaries, transfer
    except Truncated:
        return unspecified


def _picture_format(
    chroma: int, depth: int, matrix: int, color_range: int, primaries: int, transfer: int
) -> PictureFormat:
    """The pixel format that FFmpeg's decoder uses; it gives monochrome as 4:2:0."""
    layout = {2: "422", 3: "444"}.get(chroma, "420")
    if chroma == 3 and matrix == RGB_MATRIX:
        name = "gbrp"
    else:
        name = f"yuv{'j' if color_range == FULL_RANGE and depth == 8 else ''}{layout}p"
    if depth > 8:
        name += f"{depth}le"
    return PictureFormat(name, depth, matrix, color_range, primaries, transfer, monochrome=chroma == 0)


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    """Pass over scaling_list(), 7.3.2.1.1.1: it ends early where the next scale becomes 0."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _recovery_point(nal: bytes) -> tuple[int, bool] | None:
    """recovery_frame_cnt and exact_match_flag of a recovery point SEI message (D.1.8), None where there is none.

    Above 0 the picture is refreshed gradually, so decoding that starts there is not exact at once.
    """
    data, at = unescape(nal), 1
    while at + 2 < len(data):
        kind = size = 0
        while at < len(data) and data[at] == 0xFF:
            kind, at = kind + 255, at + 1
        kind, at = kind + (data[at] if at < len(data) else 0), at + 1
        while at < len(data) and data[at] == 0xFF:
            size, at = size + 255, at + 1
        size, at = size + (data[at] if at < len(data) else 0), at + 1
        if kind == _RECOVERY_POINT:
            try:
                bits = BitReader(data[at : at + size])
                return bits.ue(), bits.flag()
            except Truncated:
                return None
        at += size
    return None
