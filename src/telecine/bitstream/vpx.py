"""VP8 (RFC 6386) and VP9 (its bitstream specification, version 0.7): shown, key and unreferenced frames."""

from __future__ import annotations

from typing import NamedTuple

from telecine.bitstream import Leading, PacketInfo, PictureFormat, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, RGB_MATRIX, UNSPECIFIED, matrix_code

__all__ = ["Vp8Scanner", "Vp9Scanner"]


class Vp8Scanner:
    """Scans VP8. References are inside the arithmetic coded part, so no frame is called unreferenced."""

    picture = None

    def __init__(self, extradata: bytes) -> None:
        pass

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        if len(packet) < 3:
            return PacketInfo(shown=False, plain=False)
        # frame tag, RFC 6386, 9.1: bit 0 is the inverse key frame flag, bit 4 show_frame
        key, shown = not packet[0] & 1, bool(packet[0] & 0x10)
        access = RandomAccess.CLOSED if key and shown else RandomAccess.NONE
        return PacketInfo(shown=shown, random_access=access, leading=Leading.NO, plain=shown)


class _Vp9Frame(NamedTuple):
    shown: bool
    key: bool
    refreshes: bool
    independent: bool
    picture: PictureFormat | None = None
    repeats: bool = False
    """Whether it only shows a frame that was decoded before."""


class Vp9Scanner:
    """Scans VP9, superframes included.

    A VP9 frame that refreshes no reference still leaves traces in the decoder: probabilities, segmentation, loop filter
    deltas, and the motion vectors that the next frame may predict from. It can be skipped only if the next frame resets
    all that, which error_resilient_mode does (7.2, setup_past_independence).
    """

    def __init__(self, extradata: bytes) -> None:
        self.picture: PictureFormat | None = None

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        try:
            frames = [_vp9_frame(bytes(part[:16])) for part in _superframe(packet)]
        except Truncated:
            return PacketInfo(leading=Leading.NO, independent=False)
        first = frames[0]
        self.picture = first.picture or self.picture
        single = len(frames) == 1
        return PacketInfo(
            shown=any(frame.shown for frame in frames),
            unreferenced=0 if single and first.shown and not first.refreshes else -1,
            random_access=RandomAccess.CLOSED if single and first.key and first.shown else RandomAccess.NONE,
            leading=Leading.NO,
            fragile=True,
            independent=first.independent,
            plain=single and first.shown and not first.repeats,
        )


def _superframe(packet: bytes | memoryview) -> list[bytes | memoryview]:
    """The frames of a packet (Annex B): the index stands at its end, with the same marker on both sides."""
    marker = packet[-1] if len(packet) else 0
    if marker & 0xE0 == 0xC0:
        count, width = (marker & 7) + 1, ((marker >> 3) & 3) + 1
        size = 2 + count * width
        if len(packet) >= size and packet[len(packet) - size] == marker:
            table = bytes(packet[len(packet) - size + 1 : len(packet) - 1])
            parts, at = [], 0
            for i in range(count):
                length = int.from_bytes(table[i * width : (i + 1) * width], "little")
                if length:
                    parts.append(packet[at : at + length])
                at += length
            if parts:
                return parts
    return [packet]


def _vp9_frame(header: bytes) -> _Vp9Frame:
    """The beginning of uncompressed_header(), 6.2."""
    bits = BitReader(header)
    if bits.u(2) != 2:
        raise Truncated("not a VP9 frame")
    low, high = bits.u(1), bits.u(1)
    profile = 2 * high + low
    if profile == 3:
        bits.skip(1)
    if bits.flag():  # show_existing_frame: nothing is decoded, nothing changes
        return _Vp9Frame(shown=True, key=False, refreshes=False, independent=False, repeats=True)
    key = not bits.flag()
    shown, resilient = bits.flag(), bits.flag()
    if key:
        return _Vp9Frame(shown, key=True, refreshes=True, independent=True, picture=_vp9_picture(bits, profile))
    intra_only = not shown and bits.flag()
    if not resilient:
        bits.skip(2)  # reset_frame_context
    if intra_only:
        return _Vp9Frame(shown, key=False, refreshes=True, independent=resilient)
    return _Vp9Frame(shown, key=False, refreshes=bits.u(8) != 0, independent=resilient)


# color_space of color_config(), 6.2.2, as matrix coefficients of H.273
_MATRICES = tuple(
    map(matrix_code, ("unknown", "bt470bg", "bt709", "smpte170m", "smpte240m", "bt2020nc", "unknown", "gbr"))
)


def _vp9_picture(bits: BitReader, profile: int) -> PictureFormat | None:
    """frame_sync_code and color_config(), 6.2.1 and 6.2.2."""
    try:
        bits.skip(24)
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
    except Truncated:
        return None
    pixel_format = layout + (f"{depth}le" if depth > 8 else "")
    color_range = FULL_RANGE if full else LIMITED_RANGE
    return PictureFormat(pixel_format, depth, matrix, color_range, UNSPECIFIED, UNSPECIFIED)
