"""Open bitstream units (OBUs) of AV1 in the low-overhead format: splitting, and the sequence header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from telecine.bitstream.nal import MAX_NAL_UNITS

__all__ = ["SEQUENCE_HEADER", "Obu", "config_obus", "sequence_header_obu", "split_obus"]

SEQUENCE_HEADER = 1
"""``obu_type`` of a sequence header."""
_TEMPORAL_DELIMITER = 2


class Obu(NamedTuple):
    """The type and position of an OBU."""

    type: int
    extension: int
    """``obu_extension_header``: temporal and spatial id; 0 if there is none."""
    start: int
    payload: int
    """Offset of its payload."""
    end: int
    """Offset of its end, which is beyond the data if the OBU is cut off."""


def split_obus(data: bytes | memoryview) -> Iterator[Obu]:
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
        yield Obu((header >> 3) & 15, extension, start, at, at + size)
        at += size


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
            return data[obu.start : obu.end] if obu.type == SEQUENCE_HEADER and data[obu.start] & 2 else b""
    return b""
