"""VP8 (RFC 6386) and VP9 (bitstream specification, version 0.7): shown, key and disposable frames."""

from __future__ import annotations

from telecine.bitstream import CORRUPT_PICTURE, CodedFrame, PacketInfo, PictureFormat, Scanner, frames_info
from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, RGB_MATRIX, UNSPECIFIED, matrix_code

__all__ = ["Vp8Scanner", "Vp9Scanner"]


_VP8_COLORS = (matrix_code("bt470bg"), LIMITED_RANGE, UNSPECIFIED, UNSPECIFIED)
_MAX_REPEAT_BYTES = 16
"""A frame that shows an existing one has a single byte, and perhaps the index of a superframe."""
_VP8_START_CODE = b"\x9d\x01\x2a"
"""The three bytes after the frame tag of a key frame, RFC 6386, 9.1."""


class Vp8Scanner(Scanner):
    """Scans VP8. Reference flags are arithmetic coded, so no frame is reported as disposable."""

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        if len(packet) < 3:
            return PacketInfo(shown=False, has_single_shown_frame=False)
        # frame tag, RFC 6386, 9.1: bit 0 is the inverse key frame flag, bit 4 show_frame
        is_key = not packet[0] & 1
        tag = int.from_bytes(packet[:3], "little")
        # version, first_part_size
        is_damaged = (tag >> 1) & 7 > 3 or (tag >> 5) + (10 if is_key else 3) > len(packet)
        if is_damaged or (is_key and bytes(packet[3:6]) != _VP8_START_CODE):
            return CORRUPT_PICTURE
        if is_key and self.picture is None:
            width, height = (int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))
            # 9.2: the first bits of the bool decoder, each as likely as not, are color_space and clamping_type
            is_full = len(packet) > 10 and packet[10] & 0xC0 == 0x40
            color_range = FULL_RANGE if is_full else LIMITED_RANGE
            self.picture = PictureFormat("yuv420p", 8, *_VP8_COLORS, width, height)._replace(color_range=color_range)
        return frames_info([CodedFrame(bool(packet[0] & 0x10), is_key=is_key)], disposable=False)


class Vp9Scanner(Scanner):
    """Scans VP9, superframes included.

    A VP9 frame that refreshes no reference still changes decoder state: probabilities, segmentation, loop filter
    deltas, and the motion vectors that the next frame may predict from. It can be skipped only if the next frame resets
    that state, which error_resilient_mode does (7.2, setup_past_independence).
    """

    _has_superframes = False

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        try:
            frames = [_vp9_frame(bytes(data[:16])) for data in _split_superframe(packet)]
        except InvalidHeader:
            return CORRUPT_PICTURE
        first = frames[0]
        self._has_superframes |= len(frames) > 1
        if self._has_superframes and not any(frame.is_shown for frame in frames):
            return CORRUPT_PICTURE  # the other frames of its superframe are lost
        if first.shows_existing_frame and len(frames) == 1 and len(packet) > _MAX_REPEAT_BYTES:
            return CORRUPT_PICTURE
        self.picture = self.picture or first.picture
        is_disposable = len(frames) == 1 and first.is_shown and not first.refreshes_references
        return frames_info(frames, disposable=is_disposable)


def _split_superframe(packet: bytes | memoryview) -> list[bytes | memoryview]:
    """Return the frames of a packet (Annex B); the index is at its end, between two equal marker bytes."""
    marker = packet[-1] if len(packet) else 0
    if marker & 0xE0 == 0xC0:
        count, width = (marker & 7) + 1, ((marker >> 3) & 3) + 1
        size = 2 + count * width
        if len(packet) >= size and packet[len(packet) - size] == marker:
            sizes = bytes(packet[len(packet) - size + 1 : len(packet) - 1])
            frames, at = [], 0
            for i in range(count):
                length = int.from_bytes(sizes[i * width : (i + 1) * width], "little")
                if length:
                    frames.append(packet[at : at + length])
                at += length
            if frames:
                return frames
    return [packet]


def _vp9_frame(header: bytes) -> CodedFrame:
    """Read the beginning of uncompressed_header(), 6.2."""
    bits = BitReader(header)
    if bits.u(2) != 2:
        raise InvalidHeader("not a VP9 frame")
    low, high = bits.u(1), bits.u(1)
    profile = 2 * high + low
    if profile == 3:
        bits.skip(1)
    if bits.flag():  # show_existing_frame: nothing is decoded, no state changes
        return CodedFrame(True, refreshes_references=False, shows_existing_frame=True, resets_decoder_state=False)
    is_key = not bits.flag()
    is_shown, error_resilient = bits.flag(), bits.flag()
    if is_key:
        return CodedFrame(is_shown, is_key=True, picture=_vp9_picture(bits, profile))
    intra_only = not is_shown and bits.flag()
    if not error_resilient:
        bits.skip(2)  # reset_frame_context
    return CodedFrame(is_shown, False, intra_only or bits.u(8) != 0, resets_decoder_state=error_resilient)


_MATRICES = tuple(
    map(matrix_code, ("unknown", "bt470bg", "bt709", "smpte170m", "smpte240m", "bt2020nc", "unknown", "gbr"))
)
"""Matrix coefficients of ITU-T H.273 by color_space of color_config(), 6.2.2."""


def _vp9_picture(bits: BitReader, profile: int) -> PictureFormat | None:
    """Read frame_sync_code and color_config(), 6.2.1 and 6.2.2, and the size after them."""
    if bits.u(24) != 0x498342:
        raise InvalidHeader("not a key frame of VP9")
    try:
        depth = 8 if profile < 2 else 12 if bits.flag() else 10
        matrix = _MATRICES[bits.u(3)]
        if matrix == RGB_MATRIX:
            layout, full = "gbrp", True
        else:
            full = bits.flag()
            wide, tall = (bits.flag(), bits.flag()) if profile & 1 else (True, True)
            layout = {(True, True): "yuv420p", (True, False): "yuv422p", (False, True): "yuv440p"}.get(
                (wide, tall), "yuv444p"
            )
        if profile & 1:
            bits.skip(1)  # reserved_zero
        width, height = bits.u(16) + 1, bits.u(16) + 1  # frame_size(), 6.2.3
    except InvalidHeader:
        return None
    pixel_format = layout + (f"{depth}le" if depth > 8 else "")
    color_range = FULL_RANGE if full else LIMITED_RANGE
    return PictureFormat(pixel_format, depth, matrix, color_range, UNSPECIFIED, UNSPECIFIED, width, height)
