"""H.264 (ITU-T H.264): references, random access and output order, from NAL and slice headers."""

from __future__ import annotations

from dataclasses import dataclass

from telecine.bitstream import Access, Facts
from telecine.bitstream.bits import BitReader, Truncated
from telecine.bitstream.nal import NalUnits, annex_b, unescape

__all__ = ["H264Scanner"]

_SLICE, _PARTITION_A, _IDR, _SEI, _SPS, _PPS = 1, 2, 5, 6, 7, 8
_RECOVERY_POINT = 6
_HIGH_PROFILES = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})


@dataclass(frozen=True)
class _Sps:
    frame_num_bits: int
    poc_type: int
    poc_lsb_bits: int
    frame_mbs_only: bool
    separate_colour_planes: bool


class _Slice:
    """The beginning of a slice header, 7.3.3, as far as the picture order count."""

    def __init__(self, nal: bytes, sps: _Sps) -> None:
        bits = BitReader(unescape(nal), start=8)
        bits.ue()  # first_mb_in_slice
        self.type = bits.ue() % 5
        bits.ue()  # pic_parameter_set_id
        if sps.separate_colour_planes:
            bits.skip(2)
        self.frame_num = bits.u(sps.frame_num_bits)
        self.is_field = not sps.frame_mbs_only and bits.flag()
        self.is_bottom = self.is_field and bits.flag()
        if nal[0] & 31 == _IDR:
            bits.ue()  # idr_pic_id
        self.poc_lsb = bits.u(sps.poc_lsb_bits) if sps.poc_type == 0 else 0


class H264Scanner:
    """Scans H.264, length-prefixed or Annex-B.

    Only one SPS is remembered, the latest: the fields used here do not differ between those of one stream in practice,
    and where they did, a wrong order would show up as repeated times and never as a skipped reference.
    """

    def __init__(self, extradata: bytes) -> None:
        self._nal_units = NalUnits(extradata, length_size_at=4)
        self._sps: _Sps | None = None
        self._open_field: tuple[int, bool] | None = None
        self._sequence = -1
        self._msb = self._lsb = 0
        for nal in _parameter_sets(extradata) if self._nal_units.length_size else annex_b(extradata):
            self._remember(nal)

    def _remember(self, nal: bytes) -> None:
        if nal and nal[0] & 31 == _SPS:
            try:
                self._sps = _parse_sps(nal)
            except Truncated:
                self._sps = None

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> Facts:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        referenced = is_idr = recovers = updates = False
        slices: list[bytes] = []
        fields_possible = self._sps is None or not self._sps.frame_mbs_only
        for nal in self._nal_units(packet):
            if not nal:
                continue
            kind = nal[0] & 31
            if kind in (_SLICE, _PARTITION_A, _IDR):
                slices.append(nal)
                referenced |= (nal[0] >> 5) & 3 != 0
                is_idr |= kind == _IDR
                # the other slices of a frame agree on nal_ref_idc (7.4.1); only a second field may differ
                if not fields_possible or (referenced and not is_key):
                    break
            elif kind == _PPS:
                updates = True
            elif kind == _SPS:
                updates = True
                self._remember(nal)
                fields_possible = self._sps is None or not self._sps.frame_mbs_only
            elif kind == _SEI and is_key:
                recovers |= _recovery_frame_count(nal) == 0
        if not slices:
            return Facts(shown=False)
        access = Access.CLOSED if is_idr else Access.OPEN if is_key and recovers else Access.NONE
        second_field, order = self._follow(slices, is_idr, referenced, want_order)
        return Facts(
            shown=not second_field,
            # parameter sets outlive their picture; fields in packets of their own stand or fall together, and
            # without the SPS they cannot be told from frames: none of these is ever skipped
            unreferenced=-1 if referenced or updates or second_field or self._open_field or not self._sps else 0,
            access=Access.NONE if second_field else access,
            order=order,
        )

    def _follow(
        self, slices: list[bytes], is_idr: bool, referenced: bool, want_order: bool
    ) -> tuple[bool, tuple[int, int] | None]:
        """Whether the packet is the second field of the picture before it, and its place in output order."""
        sps = self._sps
        if sps is None or (sps.frame_mbs_only and not want_order):
            return False, None
        try:
            first, last = _Slice(slices[0], sps), _Slice(slices[-1], sps)
        except (Truncated, IndexError):
            return False, None
        second_field = False
        if first.is_field and last.is_bottom == first.is_bottom:
            second_field = self._open_field == (first.frame_num, not first.is_bottom)
            self._open_field = None if second_field else (first.frame_num, first.is_bottom)
        else:
            self._open_field = None
        return second_field, self._place(first, sps, is_idr, referenced)

    def _place(self, head: _Slice, sps: _Sps, is_idr: bool, referenced: bool) -> tuple[int, int]:
        """Picture order count, 8.2.1.1, under a counter of IDR pictures; decoding order where it is not coded."""
        if is_idr or self._sequence < 0:
            self._sequence += 1
            self._msb = self._lsb = 0
        if sps.poc_type != 0:
            # type 2 means that output order is decoding order (8.2.1.3); type 1 is treated the same
            self._lsb += 1
            return self._sequence, self._lsb
        wrap, msb = 1 << sps.poc_lsb_bits, self._msb
        if head.poc_lsb < self._lsb and self._lsb - head.poc_lsb >= wrap // 2:
            msb += wrap
        elif head.poc_lsb > self._lsb and head.poc_lsb - self._lsb > wrap // 2:
            msb -= wrap
        if referenced:
            self._msb, self._lsb = msb, head.poc_lsb
        return self._sequence, msb + head.poc_lsb


def _parameter_sets(avcc: bytes) -> list[bytes]:
    """The SPSs of an ``avcC`` record (ISO/IEC 14496-15, 5.3.3.1)."""
    found, at = [], 6
    for _ in range(avcc[5] & 31 if len(avcc) > 5 else 0):
        length = int.from_bytes(avcc[at : at + 2], "big")
        found.append(avcc[at + 2 : at + 2 + length])
        at += 2 + length
    return found


def _parse_sps(nal: bytes) -> _Sps:
    """The beginning of a sequence parameter set, 7.3.2.1.1."""
    bits = BitReader(unescape(nal), start=8)
    profile = bits.u(8)
    bits.skip(16)  # constraint flags and level
    bits.ue()  # seq_parameter_set_id
    separate = False
    if profile in _HIGH_PROFILES:
        chroma = bits.ue()
        separate = chroma == 3 and bits.flag()
        bits.ue()  # bit_depth_luma_minus8
        bits.ue()  # bit_depth_chroma_minus8
        bits.skip(1)
        if bits.flag():
            for i in range(8 if chroma != 3 else 12):
                if bits.flag():
                    _skip_scaling_list(bits, 16 if i < 6 else 64)
    frame_num_bits = bits.ue() + 4
    poc_type = bits.ue()
    poc_lsb_bits = bits.ue() + 4 if poc_type == 0 else 0
    if poc_type == 1:
        bits.skip(1)
        bits.se()
        bits.se()
        for _ in range(min(bits.ue(), 255)):
            bits.se()
    bits.ue()  # max_num_ref_frames
    bits.skip(1)
    bits.ue()  # pic_width_in_mbs_minus1
    bits.ue()  # pic_height_in_map_units_minus1
    return _Sps(frame_num_bits, poc_type, poc_lsb_bits, bits.flag(), separate)


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    """Pass over scaling_list(), 7.3.2.1.1.1: it ends early where the next scale becomes 0."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _recovery_frame_count(nal: bytes) -> int | None:
    """recovery_frame_cnt of a recovery point SEI message (D.1.8), None where the NAL unit has none.

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
                return BitReader(data[at : at + size]).ue()
            except Truncated:
                return None
        at += size
    return None
