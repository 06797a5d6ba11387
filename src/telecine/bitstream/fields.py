"""Fields and colours of intra codecs, from the header of a packet. FFmpeg knows them only where the container does."""

from __future__ import annotations

import re

from telecine.bitstream import PictureFormat
from telecine.bitstream.h273 import FULL_RANGE, LIMITED_RANGE, UNSPECIFIED, matrix_code

__all__ = ["CODECS_WITH_FIELDS", "has_two_fields", "picture_colors"]

CODECS_WITH_FIELDS = frozenset({"dvvideo", "mjpeg", "prores"})
"""Codecs that :func:`has_two_fields` knows, in FFmpeg's names."""

_JPEG_SIZE = re.compile(rb"\xff[\xc0-\xc3]..(?P<bits>.)(?P<height>..)", re.DOTALL)
"""A frame header of JPEG up to the number of lines (ITU-T T.81, B.2.2)."""


def picture_colors(codec: str, packet: bytes | memoryview) -> PictureFormat | None:
    """Return the colours that FFmpeg's decoder gives pictures whatever the container says; None if it leaves those."""
    if codec == "mjpeg":
        # JFIF; with this comment, limited range
        color_range = LIMITED_RANGE if b"CS=ITU601" in bytes(packet[:4096]) else FULL_RANGE
        return PictureFormat("unknown", 0, matrix_code("bt470bg"), color_range, UNSPECIFIED, UNSPECIFIED)
    if codec == "prores" and len(packet) > 24:
        return PictureFormat("unknown", 0, packet[24], LIMITED_RANGE, packet[22], packet[23])
    return None


def has_two_fields(codec: str, packet: bytes | memoryview, height: int) -> bool:
    """Return True if the picture of a packet consists of two fields; False if its header does not say so.

    Args:
        codec: FFmpeg's name of it: "mjpeg", "prores", "dvvideo".
        packet: its bytes.
        height: lines of the picture in the container's header.
    """
    if codec == "dvvideo":
        return True  # IEC 61834-2 has no progressive pictures
    if codec == "prores":
        # frame size, "icpf", header size, version, encoder, width, height, chroma format, interlace mode (SMPTE RDD 36)
        return len(packet) > 20 and bytes(packet[4:8]) == b"icpf" and packet[20] >> 2 & 3 in (1, 2)
    if codec == "mjpeg":
        # two images, one for each field, as in AVI and QuickTime
        found = _JPEG_SIZE.search(bytes(packet[:4096]))
        lines = int.from_bytes(found["height"], "big") if found else 0
        return 0 < lines < 3 * height // 4
    return False
