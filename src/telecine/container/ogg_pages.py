"""Pages of an Ogg file that are missing or damaged (RFC 3533, section 6). FFmpeg drops them without a sign."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["OggGap", "find_ogg_gaps"]

_HEADER = struct.Struct("<4sBBqIIIB")
_CRC_AT = 22
_CONTINUED, _FIRST = 1, 2
"""Flags of a page that begins inside a packet, and of the first one of a stream."""
_MAX_DAMAGED_PAGES = 1000
"""Damaged pages after which no more are searched, since each costs its length."""
_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))
"""Bytes with their bits in reverse order: Ogg's checksum is that of zlib with the bits of input and output reversed."""


class OggGap(NamedTuple):
    """A place where pages of a stream are missing."""

    position: int
    """Position of the next page of the stream."""
    cuts_packet: bool
    """True if the packet before the gap, as FFmpeg returns it, was put together from two."""


class _Page(NamedTuple):
    position: int
    flags: int
    serial: int
    number: int
    ends_inside_packet: bool


def find_ogg_gaps(data: memoryview, positions: Sequence[int], check_deadline: Callable[[], None]) -> list[OggGap]:
    """Return where pages are missing in a stream, given the positions of the pages in which its packets start."""
    of_stream, last = set(positions), dict[int, _Page]()
    serials = {int.from_bytes(data[at + 14 : at + 18], "little") for at in of_stream if at >= 0}
    gaps = []
    for page in _pages(data):
        if page.number % 64 == 0:
            check_deadline()
        if page.serial not in serials:
            continue
        before = last.get(page.serial)
        if before is not None and not page.flags & _FIRST and page.number != before.number + 1:
            gaps.append(OggGap(page.position, before.ends_inside_packet and bool(page.flags & _CONTINUED)))
        last[page.serial] = page
    return gaps


def _pages(data: memoryview) -> Iterator[_Page]:
    """Yield the undamaged pages of all streams."""
    at, num_damaged = 0, 0
    while num_damaged < _MAX_DAMAGED_PAGES and at + _HEADER.size <= len(data):
        capture, _, flags, _, serial, number, crc, num_segments = _HEADER.unpack_from(data, at)
        lacing = bytes(data[at + _HEADER.size : at + _HEADER.size + num_segments])
        end = at + _HEADER.size + num_segments + sum(lacing)
        if capture == b"OggS" and _checksum(data, at, end) == crc:
            yield _Page(at, flags, serial, number, lacing[-1:] == b"\xff")
            at = end
            continue
        num_damaged += capture == b"OggS"
        following = re.compile(b"OggS").search(data, at + 1)
        at = len(data) if following is None else following.start()


def _checksum(data: memoryview, start: int, end: int) -> int:
    page = bytearray(data[start:end])
    page[_CRC_AT : _CRC_AT + 4] = bytes(4)
    # zlib inverts the value at the start and at the end
    reversed_crc = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reversed_crc:032b}"[::-1], 2)
