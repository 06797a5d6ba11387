"""Missing data in an MPEG transport stream, found by the headers of its packets (ISO/IEC 13818-1, 2.4.3)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ends_inside_payload", "find_clean_gaps"]

_SYNC = 0x47
"""First byte of each transport packet."""
_PACKET_SIZES = (188, 192, 204)
"""Bytes of a transport packet: plain, with a time in front (M2TS), with error correction behind."""
_SYNC_OFFSETS = (0, 4)
"""Bytes from the position that FFmpeg gives to the sync byte: 4 if it is that of a time in front."""
_NUM_CHECKED = 5
"""Transport packets whose sync bytes must be where they are expected."""
_MAX_SECTION_BYTES = 16 << 20
"""Bytes that are searched for a gap at most: three pictures are smaller."""
_HEADER_BYTES, _PAYLOAD_END = 3, 188
"""Bytes of a transport packet from its sync byte up to the end of the PID, and of the payload."""


def ends_inside_payload(data: memoryview, pid: int) -> bool:
    """Return True if the file ends inside a transport packet that continues a picture of the stream ``pid``.

    FFmpeg drops such a packet without a sign, so the last picture lacks its end. A file that ends between two transport
    packets does not show if one is missing.
    """
    for size in _PACKET_SIZES:
        for rest in range(_HEADER_BYTES, min(_PAYLOAD_END, len(data))):
            start = len(data) - rest
            checked = [start - i * size for i in range(_NUM_CHECKED + 1)]
            if checked[-1] >= 0 and all(data[at] == _SYNC for at in checked):
                return _pid(data, start) == pid and not _starts_pes(data, start)
    return False


def find_clean_gaps(data: memoryview, pid: int, positions: Sequence[int]) -> list[int]:
    """Return which PES packets follow missing data, if nothing is missing inside the pictures around it.

    Where files were joined, or whole pictures were lost, the continuity counter jumps too. A picture is complete if its
    last transport packet has stuffing, and the next one of the stream starts a PES packet.

    Args:
        data: the file.
        pid: the stream.
        positions: where consecutive pictures start, in bytes. The section ends at the start of the third one.

    Returns:
        Numbers of ``positions`` before which data is missing; empty if data is missing anywhere else in the section,
        or if the section cannot be read.
    """
    first, end = positions[0], positions[2] + max(_SYNC_OFFSETS) + 1 if len(positions) == 3 else len(data)
    if end - first > _MAX_SECTION_BYTES:
        return []
    layouts = ((first + offset, size) for size in _PACKET_SIZES for offset in _SYNC_OFFSETS)
    start, size = next(((at, size) for at, size in layouts if _has_sync(data, at, size)), (0, 0))
    gaps: list[int] = []
    last: int | None = None
    for at in range(start, min(end, len(data) - _PAYLOAD_END + 1), size) if size else ():
        if data[at] != _SYNC or data[at + 1] & 0x80:  # transport_error_indicator
            return []
        if _pid(data, at) != pid:
            continue
        counter, has_payload = data[at + 3] & 0xF, bool(data[at + 3] & 0x10)
        if last is not None and counter != (data[last + 3] + has_payload) & 0xF and not _declares_jump(data, at):
            position = at - (start - first)
            if position not in positions or not _starts_pes(data, at) or not _has_stuffing(data, last):
                return []
            gaps.append(positions.index(position))
        last = at
    return gaps


def _pid(data: memoryview, at: int) -> int:
    return (data[at + 1] & 0x1F) << 8 | data[at + 2]


def _starts_pes(data: memoryview, at: int) -> bool:
    """Return the payload_unit_start_indicator of a transport packet."""
    return bool(data[at + 1] & 0x40)


def _has_sync(data: memoryview, at: int, size: int) -> bool:
    return all(data[i] == _SYNC for i in range(at, min(at + _NUM_CHECKED * size, len(data)), size))


def _adaptation_field(data: memoryview, at: int) -> memoryview | None:
    """Return the adaptation field of a transport packet after its length; None if it has none."""
    return data[at + 5 : at + 5 + data[at + 4]] if data[at + 3] & 0x20 else None


def _declares_jump(data: memoryview, at: int) -> bool:
    """Return True if the counter may jump here (discontinuity_indicator), and FFmpeg does not complain."""
    field = _adaptation_field(data, at)
    return field is not None and len(field) > 0 and bool(field[0] & 0x80)


def _has_stuffing(data: memoryview, at: int) -> bool:
    """Return True if the adaptation field of a transport packet only fills it up, beside clock references.

    That is how the last packet of a PES packet is filled. An empty field is one byte of stuffing.
    """
    field = _adaptation_field(data, at)
    if not field:
        return field is not None
    flags = field[0]
    used = 1 + 6 * bool(flags & 0x10) + 6 * bool(flags & 0x08) + bool(flags & 0x04)  # PCR, OPCR, splice_countdown
    return not flags & 0x03 and len(field) > used
