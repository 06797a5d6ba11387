"""A minimal Matroska writer: one video track of Annex B packets that contain their parameter sets.

FFmpeg's muxer would move the parameter sets of the first packet into the file header (``CodecPrivate``), and they would
apply to all packets. Without ``CodecPrivate`` a reader parses the packets as a byte stream with its own parameter sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["STEP_MS", "Block", "write_mkv"]

STEP_MS = 40
"""Milliseconds from one picture to the next."""
_CODECS = {"h264": b"V_MPEG4/ISO/AVC", "hevc": b"V_MPEGH/ISO/HEVC"}
_MAX_CLUSTER_BLOCKS = 256
_MAX_CLUSTER_PICTURES = 0x7FFF // STEP_MS
"""Limit of the distance to the first block of a cluster: times relative to the cluster are signed 16-bit numbers."""
_KEYFRAME_FLAG = b"\x80"
_TRACK_NUMBER = b"\x81"


class Block(NamedTuple):
    """A packet."""

    number: int
    """Number of its picture in display order."""
    is_random_access: bool
    """True if decoding can start at it."""
    data: bytes
    """Its bytes in Annex B."""


def write_mkv(codec: str, width: int, height: int, blocks: Sequence[Block]) -> bytes:
    """Return the bytes of a Matroska file (RFC 9559) with these packets, given in decode order."""
    video = _element(0xE0, _element(0xB0, width) + _element(0xBA, height))
    track = _element(0xD7, 1) + _element(0x73C5, 1) + _element(0x83, 1) + _element(0x9C, 0)
    track += _element(0x23E383, STEP_MS * 1_000_000) + _element(0x86, _CODECS[codec]) + video
    info = _element(0x2AD7B1, 1_000_000) + _element(0x4D80, b"telecine") + _element(0x5741, b"telecine")
    elements = [_element(0x1549A966, info), _element(0x1654AE6B, _element(0xAE, track))]
    first = 0
    for i, block in enumerate(blocks):
        if i - first == _MAX_CLUSTER_BLOCKS or abs(block.number - blocks[first].number) > _MAX_CLUSTER_PICTURES:
            elements.append(_cluster(blocks[first:i]))
            first = i
    elements.append(_cluster(blocks[first:]))
    versions = ((0x4286, 1), (0x42F7, 1), (0x42F2, 4), (0x42F3, 8), (0x4287, 4), (0x4285, 2))
    head = b"".join(_element(name, version) for name, version in versions) + _element(0x4282, b"matroska")
    return b"".join((_element(0x1A45DFA3, head), _element_head(0x18538067, sum(map(len, elements))), *elements))


def _cluster(blocks: Sequence[Block]) -> bytes:
    start = blocks[0].number * STEP_MS
    elements = [_element(0xE7, start)]
    for number, is_random_access, data in blocks:
        time = (number * STEP_MS - start).to_bytes(2, "big", signed=True)
        flags = _KEYFRAME_FLAG if is_random_access else b"\0"
        elements += [_element_head(0xA3, 4 + len(data)), _TRACK_NUMBER, time, flags, data]
    return _element_head(0x1F43B675, sum(map(len, elements))) + b"".join(elements)


def _element(name: int, content: int | bytes) -> bytes:
    if isinstance(content, int):
        content = content.to_bytes(max(1, -(-content.bit_length() // 8)), "big")
    return _element_head(name, len(content)) + content


def _element_head(name: int, size: int) -> bytes:
    """Return the ID and size of an element; the size always in eight bytes, as its first byte, 1, says."""
    return name.to_bytes(-(-name.bit_length() // 8), "big") + (size | 1 << 56).to_bytes(8, "big")
