"""AV1 (AV1 Bitstream & Decoding Process Specification): temporal units whose frames refresh nothing.

Everything a later frame can build on - pictures, probabilities, segmentation, motion vectors - is kept in the eight
reference slots, so a frame whose refresh_frame_flags are 0 leaves no trace once it has been shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from telecine.bitstream import Leading, PacketInfo, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated
from telecine.bitstream.nal import MOST_UNITS

__all__ = ["Av1Scanner"]

_SEQUENCE_HEADER, _FRAME_HEADER, _FRAME = 1, 3, 6
_KEY_FRAME, _INTRA_ONLY, _SWITCH_FRAME = 0, 2, 3
_SELECT = 2


@dataclass(frozen=True)
class _Sequence:
    """The fields of sequence_header_obu(), 5.5, that a frame header's beginning depends on."""

    reduced_still_picture: bool
    decoder_model_info: bool
    equal_picture_interval: bool
    buffer_removal_bits: int
    presentation_time_bits: int
    operating_points: tuple[tuple[int, bool], ...]
    frame_id_bits: int
    force_screen_content_tools: int
    force_integer_mv: int
    order_hint_bits: int


@dataclass(frozen=True)
class _Frame:
    shown: bool
    key: bool
    refreshes: bool
    repeats: bool = False
    """Whether it only shows a frame that was decoded before."""


class Av1Scanner:
    """Scans AV1 temporal units (low-overhead OBU format)."""

    picture = None

    def __init__(self, extradata: bytes) -> None:
        self._sequence: _Sequence | None = None
        # av1C (AV1 Codec ISO Media File Format Binding, 2.3) has four bytes ahead of its OBUs
        for kind, _, payload in _units(extradata[4:] if extradata[:1] == b"\x81" else extradata):
            if kind == _SEQUENCE_HEADER:
                self._remember(payload)

    def _remember(self, payload: bytes) -> None:
        try:
            self._sequence = _parse_sequence(BitReader(payload))
        except Truncated:
            self._sequence = None

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        frames: list[_Frame] = []
        updates = False
        for kind, extension, payload in _units(packet):
            if kind == _SEQUENCE_HEADER:
                updates = True
                self._remember(payload)
            elif kind in (_FRAME_HEADER, _FRAME):
                try:
                    frames.append(_parse_frame(BitReader(payload), self._sequence, extension))
                except Truncated:
                    return PacketInfo(leading=Leading.NO)
        if not frames:
            return PacketInfo(shown=False, leading=Leading.NO)
        return PacketInfo(
            shown=any(frame.shown for frame in frames),
            unreferenced=-1 if updates or any(frame.refreshes or not frame.shown for frame in frames) else 0,
            random_access=RandomAccess.CLOSED
            if len(frames) == 1 and frames[0].key and frames[0].shown
            else RandomAccess.NONE,
            leading=Leading.NO,
            plain=len(frames) == 1 and frames[0].shown and not frames[0].repeats,
        )


def _units(data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
    """Yield (obu_type, extension byte or 0, beginning of the payload) of each OBU, 5.3."""
    at, end = 0, len(data)
    for _ in range(MOST_UNITS):
        if at >= end:
            return
        header = data[at]
        at += 1
        extension = 0
        if header & 4 and at < end:
            extension, at = data[at], at + 1
        size = end - at
        if header & 2:
            size = shift = 0
            while at < end and shift < 56:
                byte, at = data[at], at + 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
        yield (header >> 3) & 15, extension, bytes(data[at : at + min(size, 256)])
        at += size


def _parse_sequence(bits: BitReader) -> _Sequence:
    bits.skip(3 + 1)  # seq_profile, still_picture
    reduced = bits.flag()
    model = equal_interval = False
    removal_bits = presentation_bits = 0
    points: list[tuple[int, bool]] = []
    if reduced:
        bits.skip(5)
    else:
        delay_bits = 0
        if bits.flag():  # timing_info_present_flag
            bits.skip(64)
            equal_interval = bits.flag()
            if equal_interval:
                bits.ue()  # uvlc() is coded like ue(v)
            model = bits.flag()
            if model:
                delay_bits = bits.u(5) + 1
                bits.skip(32)
                removal_bits, presentation_bits = bits.u(5) + 1, bits.u(5) + 1
        display_delay = bits.flag()
        for _ in range(bits.u(5) + 1):
            idc = bits.u(12)
            if bits.u(5) > 7:
                bits.skip(1)  # seq_tier
            has_model = model and bits.flag()
            if has_model:
                bits.skip(2 * delay_bits + 1)
            if display_delay and bits.flag():
                bits.skip(4)
            points.append((idc, has_model))
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    bits.skip(width_bits + height_bits)
    id_bits = 0
    if not reduced and bits.flag():
        delta = bits.u(4) + 2
        id_bits = bits.u(3) + delta + 1
    bits.skip(3)  # use_128x128_superblock, enable_filter_intra, enable_intra_edge_filter
    screen = integer_mv = _SELECT
    hint_bits = 0
    if not reduced:
        bits.skip(4)  # interintra, masked compound, warped motion, dual filter
        order_hint = bits.flag()
        if order_hint:
            bits.skip(2)  # jnt_comp, ref_frame_mvs
        if not bits.flag():
            screen = bits.u(1)
        if screen > 0 and not bits.flag():
            integer_mv = bits.u(1)
        hint_bits = bits.u(3) + 1 if order_hint else 0
    return _Sequence(
        reduced, model, equal_interval, removal_bits, presentation_bits, tuple(points), id_bits, screen, integer_mv,
        hint_bits,
    )  # fmt: skip


def _parse_frame(bits: BitReader, sequence: _Sequence | None, extension: int) -> _Frame:
    """uncompressed_header(), 5.9.2, as far as refresh_frame_flags."""
    if sequence is None:
        raise Truncated("a frame without a sequence header")
    if sequence.reduced_still_picture:
        return _Frame(shown=True, key=True, refreshes=True)
    if bits.flag():  # show_existing_frame: a key frame shown again refreshes every slot, which this field does not tell
        return _Frame(shown=True, key=False, refreshes=True, repeats=True)
    kind, shown = bits.u(2), bits.flag()
    if shown and sequence.decoder_model_info and not sequence.equal_picture_interval:
        bits.skip(sequence.presentation_time_bits)
    if not shown:
        bits.skip(1)  # showable_frame
    if kind == _KEY_FRAME and shown:
        return _Frame(shown=True, key=True, refreshes=True)
    resilient = kind == _SWITCH_FRAME or bits.flag()
    bits.skip(1)  # disable_cdf_update
    screen = bits.u(1) if sequence.force_screen_content_tools == _SELECT else sequence.force_screen_content_tools
    if screen and sequence.force_integer_mv == _SELECT:
        bits.skip(1)
    bits.skip(sequence.frame_id_bits)
    if kind != _SWITCH_FRAME:
        bits.skip(1)  # frame_size_override_flag
    bits.skip(sequence.order_hint_bits)
    if not (kind in (_KEY_FRAME, _INTRA_ONLY) or resilient):
        bits.skip(3)  # primary_ref_frame
    if sequence.decoder_model_info and bits.flag():
        _skip_removal_times(bits, sequence, extension)
    refreshes = kind == _SWITCH_FRAME or bits.u(8) != 0
    return _Frame(shown=shown, key=False, refreshes=refreshes)


def _skip_removal_times(bits: BitReader, sequence: _Sequence, extension: int) -> None:
    temporal, spatial = extension >> 5, (extension >> 3) & 3
    for idc, has_model in sequence.operating_points:
        applies = idc == 0 or ((idc >> temporal) & 1 and (idc >> (spatial + 8)) & 1)
        if has_model and applies:
            bits.skip(sequence.buffer_removal_bits)
