"""AV1 (AV1 Bitstream & Decoding Process Specification): shown, key and disposable frames of temporal units.

Everything that a later frame can refer to (pictures, probabilities, segmentation, motion vectors) is in the eight
reference slots. So a frame with refresh_frame_flags of 0 is disposable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from telecine.bitstream import CORRUPT_PICTURE, CodedFrame, PacketInfo, PictureFormat, Scanner, frames_info
from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, RGB_MATRIX, UNSPECIFIED
from telecine.bitstream.nal import MAX_NAL_UNITS

__all__ = ["Av1Scanner", "config_obus", "sequence_header_obu", "split_obus", "without_unneeded_obus"]

_SEQUENCE_HEADER, _TEMPORAL_DELIMITER, _FRAME_HEADER, _FRAME = 1, 2, 3, 6
_NEEDED_TYPES = frozenset({1, 2, 3, 4, 6, 7})
"""Sequence header, temporal delimiter, frame header, tile group, frame, redundant frame header."""
_KEY_FRAME, _INTRA_ONLY, _SWITCH_FRAME = 0, 2, 3
_SELECT = 2
"""SELECT_SCREEN_CONTENT_TOOLS and SELECT_INTEGER_MV: each frame header has the flag."""
_MAX_HEADER_BYTES = 256


class _Sequence:
    """The fields of sequence_header_obu(), 5.5, that a frame header's beginning depends on."""

    def __init__(self, bits: BitReader) -> None:
        profile = bits.u(3)
        bits.skip(1)  # still_picture
        self.reduced_still_picture = reduced = bits.flag()
        self.decoder_model_info = self.equal_picture_interval = False
        self.buffer_removal_bits = self.presentation_time_bits = 0
        self.operating_points: list[tuple[int, bool]] = []
        """operating_point_idc of each, and True if it has a decoder model."""
        if reduced:
            bits.skip(5)
        else:
            self._read_operating_points(bits)
        width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
        bits.skip(width_bits + height_bits)
        self.frame_id_bits = 0
        if not reduced and bits.flag():
            delta = bits.u(4) + 2
            self.frame_id_bits = bits.u(3) + delta + 1
        bits.skip(3)  # use_128x128_superblock, enable_filter_intra, enable_intra_edge_filter
        self.force_screen_content_tools = self.force_integer_mv = _SELECT
        self.order_hint_bits = 0
        if not reduced:
            bits.skip(4)  # interintra, masked compound, warped motion, dual filter
            order_hint = bits.flag()
            if order_hint:
                bits.skip(2)  # jnt_comp, ref_frame_mvs
            if not bits.flag():
                self.force_screen_content_tools = bits.u(1)
            if self.force_screen_content_tools > 0 and not bits.flag():
                self.force_integer_mv = bits.u(1)
            self.order_hint_bits = bits.u(3) + 1 if order_hint else 0
        bits.skip(3)  # enable_superres, enable_cdef, enable_restoration
        self.picture = _picture_format(bits, profile)

    def _read_operating_points(self, bits: BitReader) -> None:
        delay_bits = 0
        if bits.flag():  # timing_info_present_flag
            bits.skip(64)
            self.equal_picture_interval = bits.flag()
            if self.equal_picture_interval:
                bits.ue()  # uvlc() is coded like ue(v)
            self.decoder_model_info = bits.flag()
            if self.decoder_model_info:
                delay_bits = bits.u(5) + 1
                bits.skip(32)
                self.buffer_removal_bits, self.presentation_time_bits = bits.u(5) + 1, bits.u(5) + 1
        display_delay = bits.flag()
        for _ in range(bits.u(5) + 1):
            idc = bits.u(12)
            if bits.u(5) > 7:
                bits.skip(1)  # seq_tier
            has_model = self.decoder_model_info and bits.flag()
            if has_model:
                bits.skip(2 * delay_bits + 1)
            if display_delay and bits.flag():
                bits.skip(4)
            self.operating_points.append((idc, has_model))


class Av1Scanner(Scanner):
    """Scans AV1 temporal units (low-overhead OBU format)."""

    def __init__(self, extradata: bytes) -> None:
        self._sequence: _Sequence | None = None
        data = config_obus(extradata)
        for obu in split_obus(data):
            if obu.type == _SEQUENCE_HEADER:
                self._read_sequence_header(data[obu.payload : obu.end])

    @property
    def has_one_frame_per_packet(self) -> bool:
        return True  # a temporal unit has one shown frame of each layer (7.5)

    def _read_sequence_header(self, payload: bytes) -> None:
        self._sequence = None
        with suppress(InvalidHeader):
            self._sequence = _Sequence(BitReader(payload))
            self.picture = self.picture or self._sequence.picture

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        sequence = self._sequence
        if (info := self._scan(packet)) is CORRUPT_PICTURE:
            self._sequence = sequence
        return info

    def _scan(self, packet: bytes | memoryview) -> PacketInfo:
        frames: list[CodedFrame] = []
        updates = False
        for obu in split_obus(packet):
            if obu.type in _NEEDED_TYPES and obu.end > len(packet):
                return CORRUPT_PICTURE
            if obu.type == _TEMPORAL_DELIMITER and obu.end > obu.payload:  # it is empty (5.6)
                return CORRUPT_PICTURE
            payload = bytes(packet[obu.payload : min(obu.end, obu.payload + _MAX_HEADER_BYTES)])
            if obu.type == _SEQUENCE_HEADER:
                updates = True
                self._read_sequence_header(payload)
            elif obu.type in (_FRAME_HEADER, _FRAME):
                try:
                    frames.append(_parse_frame(BitReader(payload), self._sequence, obu.extension))
                except InvalidHeader:
                    return CORRUPT_PICTURE
        if not any(frame.is_shown for frame in frames):
            return CORRUPT_PICTURE  # each temporal unit shows a frame (7.5)
        is_disposable = all(frame.is_shown and not frame.refreshes_references for frame in frames)
        return frames_info(frames, disposable=is_disposable and not updates)


def _picture_format(bits: BitReader, profile: int) -> PictureFormat | None:
    """Read the colours of color_config(), 5.5.2; the size is in frame headers, and FFmpeg finds the pixel format."""
    try:
        if bits.flag() and profile == 2:  # high_bitdepth
            bits.skip(1)
        is_monochrome = profile != 1 and bits.flag()
        primaries, transfer, matrix = [bits.u(8) for _ in range(3)] if bits.flag() else [UNSPECIFIED] * 3
        is_srgb = not is_monochrome and (primaries, transfer, matrix) == (1, 13, RGB_MATRIX)
        color_range = FULL_RANGE if is_srgb or bits.flag() else LIMITED_RANGE
    except InvalidHeader:
        return None
    return PictureFormat("unknown", 0, matrix, color_range, primaries, transfer)


def _parse_frame(bits: BitReader, sequence: _Sequence | None, extension: int) -> CodedFrame:
    """Read uncompressed_header(), 5.9.2, up to refresh_frame_flags."""
    if sequence is None:
        raise InvalidHeader("a frame without a sequence header")
    if sequence.reduced_still_picture:
        return CodedFrame(is_shown=True, is_key=True)
    if bits.flag():  # show_existing_frame: refreshes every slot if it is a key frame, which the header does not say
        bits.skip(3 + sequence.frame_id_bits)
        if sequence.decoder_model_info and not sequence.equal_picture_interval:
            bits.skip(sequence.presentation_time_bits)
        if not bits.flag():  # trailing_one_bit
            raise InvalidHeader("bits after show_existing_frame")
        return CodedFrame(is_shown=True, shows_existing_frame=True)
    kind, shown = bits.u(2), bits.flag()
    if shown and sequence.decoder_model_info and not sequence.equal_picture_interval:
        bits.skip(sequence.presentation_time_bits)
    if not shown:
        bits.skip(1)  # showable_frame
    if kind == _KEY_FRAME and shown:
        return CodedFrame(is_shown=True, is_key=True)
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
        temporal, spatial = extension >> 5, (extension >> 3) & 3
        for idc, has_model in sequence.operating_points:
            if has_model and (idc == 0 or ((idc >> temporal) & 1 and (idc >> (spatial + 8)) & 1)):
                bits.skip(sequence.buffer_removal_bits)  # buffer_removal_time of a point that the frame belongs to
    return CodedFrame(shown, refreshes_references=kind == _SWITCH_FRAME or bits.u(8) != 0)


class _Obu(NamedTuple):
    """The type and position of an OBU."""

    type: int
    extension: int
    """``obu_extension_header``: temporal and spatial id; 0 if there is none."""
    start: int
    payload: int
    """Offset of its payload."""
    end: int
    """Offset of its end, which is beyond the data if the OBU is cut off."""


def split_obus(data: bytes | memoryview) -> Iterator[_Obu]:
    """Yield the OBUs of a temporal unit or of ``av1C`` (AV1, 5.3)."""
    at, end = 0, len(data)
    for _ in range(MAX_NAL_UNITS):
        if at >= end:
            return
        start, header, extension = at, data[at], 0
        at += 1
        if header & 4 and at < end:
            extension, at = data[at], at + 1
        size = end - at
        if header & 2:
            size, at = _read_leb128(data, at)
        yield _Obu((header >> 3) & 15, extension, start, at, at + size)
        at += size


def without_unneeded_obus(packet: bytes | memoryview) -> bytes | None:
    """Return a temporal unit without metadata, padding and reserved OBUs; None if it has none of them."""
    obus = list(split_obus(packet))
    needed = [obu for obu in obus if obu.type in _NEEDED_TYPES]
    if len(needed) == len(obus):
        return None
    return b"".join(bytes(packet[obu.start : obu.end]) for obu in needed)


def _read_leb128(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a number in leb128 (AV1, 4.10.5) and the offset after it."""
    value = shift = 0
    while at < len(data) and shift < 56:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return value, at


def config_obus(extradata: bytes) -> bytes:
    """Return the OBUs of extradata, which is ``av1C`` (AV1 in ISOBMFF, 2.3: four bytes, then OBUs) or OBUs alone."""
    return extradata[4:] if extradata[:1] == b"\x81" else extradata


def sequence_header_obu(data: bytes) -> bytes:
    """Return the sequence header OBU at the start of a temporal unit, with its own header; empty if there is none."""
    for obu in split_obus(data):
        if obu.type != _TEMPORAL_DELIMITER:
            return data[obu.start : obu.end] if obu.type == _SEQUENCE_HEADER and data[obu.start] & 2 else b""
    return b""
