"""A Matroska file written by hand: one video track, its packets with start codes and their headers among them.

FFmpeg's muxer would take the headers from the packets into the header of the file, where they hold for all that follow.
Without that (``CodecPrivate``) a reader takes the packets for a byte stream, and each brings what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["STEP", "Block", "matroska"]

STEP = 40
"""Milliseconds from one number to the next."""
_CODECS = {"h264": b"V_MPEG4/ISO/AVC", "hevc": b"V_MPEGH/ISO/HEVC"}
_CLUSTER = 256
"""Blocks in a cluster at most."""
_REACH = 0x7FFF // STEP
"""How far the number of a block may be from that of the first: its time in a cluster has 16 bits, one for the sign."""
_SEEKABLE = b"\x80"
_TRACK = b"\x81"


class Block(NamedTuple):
    """A packet."""

    number: int
    """Of its picture in order of presentation."""
    is_access: bool
    """Whether decoding can start at it."""
    data: bytes
    """With start codes (Annex B)."""


def matroska(codec: str, width: int, height: int, blocks: Sequence[Block]) -> bytes:
    """The file (RFC 9559) of some packets, in decoding order.

    Args:
        codec: "h264" or "hevc".
        width: of a picture, in pixels.
        height: likewise.
        blocks: the packets.
    """
    video = _element(0xE0, _element(0xB0, width) + _element(0xBA, height))
    track = _element(0xD7, 1) + _element(0x73C5, 1) + _element(0x83, 1) + _element(0x9C, 0)
    track += _element(0x23E383, STEP * 1_000_000) + _element(0x86, _CODECS[codec]) + video
    info = _element(0x2AD7B1, 1_000_000) + _element(0x4D80, b"telecine") + _element(0x5741, b"telecine")
    parts = [_element(0x1549A966, info), _element(0x1654AE6B, _element(0xAE, track))]
    first = 0
    for at, block in enumerate(blocks):
        if at - first == _CLUSTER or abs(block.number - blocks[first].number) > _REACH:
            parts.append(_cluster(blocks[first:at]))
            first = at
    parts.append(_cluster(blocks[first:]))
    versions = ((0x4286, 1), (0x42F7, 1), (0x42F2, 4), (0x42F3, 8), (0x4287, 4), (0x4285, 2))
    head = b"".join(_element(name, version) for name, version in versions) + _element(0x4282, b"matroska")
    return b"".join((_element(0x1A45DFA3, head), _head(0x18538067, sum(map(len, parts))), *parts))


def _cluster(blocks: Sequence[Block]) -> bytes:
    start = blocks[0].number * STEP
    parts = [_element(0xE7, start)]
    for number, is_access, data in blocks:
        time = (number * STEP - start).to_bytes(2, "big", signed=True)
        parts += [_head(0xA3, 4 + len(data)), _TRACK, time, _SEEKABLE if is_access else b"\0", data]
    return _head(0x1F43B675, sum(map(len, parts))) + b"".join(parts)


def _element(name: int, content: int | bytes) -> bytes:
    if isinstance(content, int):
        content = content.to_bytes(max(1, -(-content.bit_length() // 8)), "big")
    return _head(name, len(content)) + content


def _head(name: int, size: int) -> bytes:
    """An element's name and size; the size always in eight bytes, of which the first bit says that."""
    return name.to_bytes(-(-name.bit_length() // 8), "big") + (size | 1 << 56).to_bytes(8, "big")
