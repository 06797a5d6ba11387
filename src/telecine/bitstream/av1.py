"""AV1 (AV1 Bitstream & Decoding Process Specification): shown, key and disposable frames of temporal units.

Everything that a later frame can refer to (pictures, probabilities, segmentation, motion vectors) is in the eight
reference slots. So a frame with refresh_frame_flags of 0 is disposable.
"""

from __future__ import annotations

from dataclasses import dataclass

from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.obu import SEQUENCE_HEADER, config_obus, split_obus
from telecine.bitstream.scanner import Leading, PacketInfo, RandomAccess, Scanner

__all__ = ["Av1Scanner"]

_FRAME_HEADER, _FRAME = 3, 6
_KEY_FRAME, _INTRA_ONLY, _SWITCH_FRAME = 0, 2, 3
_SELECT = 2
"""SELECT_SCREEN_CONTENT_TOOLS and SELECT_INTEGER_MV: each frame header has the flag."""
_MAX_HEADER_BYTES = 256


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
    is_shown: bool
    is_key: bool
    refreshes_references: bool
    shows_existing_frame: bool = False


class Av1Scanner(Scanner):
    """Scans AV1 temporal units (low-overhead OBU format)."""

    def __init__(self, extradata: bytes) -> None:
        self._sequence: _Sequence | None = None
        data = config_obus(extradata)
        for obu in split_obus(data):
            if obu.type == SEQUENCE_HEADER:
                self._read_sequence_header(data[obu.payload : obu.end])

    def _read_sequence_header(self, payload: bytes) -> None:
        try:
            self._sequence = _parse_sequence(BitReader(payload))
        except InvalidHeader:
            self._sequence = None

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        frames: list[_Frame] = []
        updates = False
        for obu in split_obus(packet):
            payload = bytes(packet[obu.payload : min(obu.end, obu.payload + _MAX_HEADER_BYTES)])
            if obu.type == SEQUENCE_HEADER:
                updates = True
                self._read_sequence_header(payload)
            elif obu.type in (_FRAME_HEADER, _FRAME):
                try:
                    frames.append(_parse_frame(BitReader(payload), self._sequence, obu.extension))
                except InvalidHeader:
                    return PacketInfo(leading=Leading.DECODABLE)
        if not frames:
            return PacketInfo(shown=False, leading=Leading.DECODABLE)
        is_single = len(frames) == 1 and frames[0].is_shown
        return PacketInfo(
            shown=any(frame.is_shown for frame in frames),
            disposable=not updates and all(frame.is_shown and not frame.refreshes_references for frame in frames),
            random_access=RandomAccess.CLOSED if is_single and frames[0].is_key else RandomAccess.NONE,
            leading=Leading.DECODABLE,
            has_single_shown_frame=is_single and not frames[0].shows_existing_frame,
        )


def _parse_sequence(bits: BitReader) -> _Sequence:
    """Read sequence_header_obu(), 5.5."""
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
    """Read uncompressed_header(), 5.9.2, up to refresh_frame_flags."""
    if sequence is None:
        raise InvalidHeader("a frame without a sequence header")
    if sequence.reduced_still_picture:
        return _Frame(is_shown=True, is_key=True, refreshes_references=True)
    if bits.flag():  # show_existing_frame: refreshes every slot if it is a key frame, which the header does not say
        return _Frame(is_shown=True, is_key=False, refreshes_references=True, shows_existing_frame=True)
    kind, shown = bits.u(2), bits.flag()
    if shown and sequence.decoder_model_info and not sequence.equal_picture_interval:
        bits.skip(sequence.presentation_time_bits)
    if not shown:
        bits.skip(1)  # showable_frame
    if kind == _KEY_FRAME and shown:
        return _Frame(is_shown=True, is_key=True, refreshes_references=True)
    error_resilient = kind == _SWITCH_FRAME or bits.flag()
    bits.skip(1)  # disable_cdf_update
    screen = bits.u(1) if sequence.force_screen_content_tools == _SELECT else sequence.force_screen_content_tools
    if screen and sequence.force_integer_mv == _SELECT:
        bits.skip(1)
    bits.skip(sequence.frame_id_bits)
    if kind != _SWITCH_FRAME:
        bits.skip(1)  # frame_size_override_flag
    bits.skip(sequence.order_hint_bits)
    if not (kind in (_KEY_FRAME, _INTRA_ONLY) or error_resilient):
        bits.skip(3)  # primary_ref_frame
    if sequence.decoder_model_info and bits.flag():
        _skip_removal_times(bits, sequence, extension)
    return _Frame(shown, is_key=False, refreshes_references=kind == _SWITCH_FRAME or bits.u(8) != 0)


def _skip_removal_times(bits: BitReader, sequence: _Sequence, extension: int) -> None:
    """Skip buffer_removal_time of the operating points that the frame belongs to (5.9.2)."""
    temporal, spatial = extension >> 5, (extension >> 3) & 3
    for idc, has_model in sequence.operating_points:
        applies = idc == 0 or ((idc >> temporal) & 1 and (idc >> (spatial + 8)) & 1)
        if has_model and applies:
            bits.skip(sequence.buffer_removal_bits)
