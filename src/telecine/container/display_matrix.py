"""The display matrix of a video, read from the container's header: how the stored picture is turned to be seen.

FFmpeg's Python binding shows the matrix only on decoded frames, and the facts of a video must not cost a decode. Two
families of containers have one: ISO media files (ISO/IEC 14496-12, ``mvhd`` and ``tkhd``) and Matroska (RFC 9559,
``ProjectionPoseRoll`` and ``ProjectionPoseYaw``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

__all__ = ["Orientation", "has_movie", "iso_orientation", "matroska_orientation"]

Orientation = tuple[int, bool]
"""(quarter turns clockwise, mirrored left to right afterwards)."""

_UPRIGHT: Orientation = (0, False)
_MATRICES: dict[tuple[int, int, int, int], Orientation] = {
    (1, 0, 0, 1): (0, False),
    (0, 1, -1, 0): (1, False),
    (-1, 0, 0, -1): (2, False),
    (0, -1, 1, 0): (3, False),
    (-1, 0, 0, 1): (0, True),
    (0, 1, 1, 0): (1, True),
    (1, 0, 0, -1): (2, True),
    (0, -1, -1, 0): (3, True),
}
"""Signs of (a, b, c, d), where x' = ax + cy and y' = bx + dy, y pointing down."""


_MOST = 100_000
"""Boxes or elements that are looked at on one level. No header has so many, and a flood of empty ones takes time."""


def has_movie(data: memoryview) -> bool:
    """Whether an MP4 or QuickTime file has its movie box, without which nothing in it can be found."""
    return any(kind == b"moov" for kind, _ in _boxes(data, 0, len(data)))


def iso_orientation(data: memoryview, track_id: int) -> Orientation:
    """The orientation of a track of an MP4 or QuickTime file; upright where it is not a multiple of 90 degrees.

    Args:
        data: the whole file.
        track_id: as ``tkhd`` numbers it.
    """
    for kind, movie in _boxes(data, 0, len(data)):
        if kind != b"moov":
            continue
        whole = (1.0, 0.0, 0.0, 1.0)
        for inner, (start, stop) in _boxes(data, *movie):
            if inner == b"mvhd":
                whole = _matrix(data, start, stop, fields_before=20)[1]
            elif inner == b"trak":
                for leaf, (begin, end) in _boxes(data, start, stop):
                    if leaf == b"tkhd":
                        number, own = _matrix(data, begin, end, fields_before=24)
                        if number == track_id:
                            return _orientation(_product(own, whole))
    return _UPRIGHT


def _boxes(data: memoryview, start: int, stop: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield (type, (start, stop) of the payload) of each box; ends at the first one that makes no sense."""
    for _ in range(_MOST):
        if start + 8 > stop:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1 and start + 16 <= stop:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            header = 16
        elif size == 0:
            size = stop - start
        if size < header or start + size > stop:
            return
        yield kind, (start + header, start + size)
        start += size


def _matrix(
    data: memoryview, start: int, stop: int, fields_before: int
) -> tuple[int, tuple[float, float, float, float]]:
    """(track id or its like, (a, b, c, d)) of an ``mvhd`` or ``tkhd``.

    Args:
        fields_before: bytes between the times at the box's start, which version 1 widens by 12, and the matrix' own
            prelude of 16 bytes.
    """
    wide = 12 if stop > start and data[start] == 1 else 0
    at = start + wide + fields_before + 16
    if at + 36 > stop:
        return -1, (1.0, 0.0, 0.0, 1.0)
    (number,) = struct.unpack_from(">I", data, start + 12 + (8 if wide else 0))
    nine = struct.unpack_from(">9i", data, at)
    a, b, c, d = (value / 65536 for value in (nine[0], nine[1], nine[3], nine[4]))
    return number, (a, b, c, d)


def _product(
    first: tuple[float, float, float, float], then: tuple[float, float, float, float]
) -> tuple[float, float, float, float]:
    a, b, c, d = first
    e, f, g, h = then
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _orientation(matrix: tuple[float, float, float, float]) -> Orientation:
    largest = max(abs(value) for value in matrix)
    if not largest:
        return _UPRIGHT
    # about a degree, which is what FFmpeg allows
    a, b, c, d = (0 if abs(value) < 0.02 * largest else (1 if value > 0 else -1) for value in matrix)
    return _MATRICES.get((a, b, c, d), _UPRIGHT)


_SEGMENT, _TRACKS, _ENTRY, _NUMBER, _VIDEO = 0x18538067, 0x1654AE6B, 0xAE, 0xD7, 0xE0
_PROJECTION, _TYPE, _YAW, _PITCH, _ROLL = 0x7670, 0x7671, 0x7673, 0x7674, 0x7675


def matroska_orientation(data: memoryview, track_number: int) -> Orientation:
    """The orientation of a track of a Matroska or WebM file, likewise.

    Args:
        data: the whole file.
        track_number: as ``TrackNumber`` numbers it.
    """
    for segment, inside in _elements(data, 0, len(data)):
        if segment != _SEGMENT:
            continue
        for tracks, entries in _elements(data, *inside):
            if tracks != _TRACKS:
                continue
            for entry, fields in _elements(data, *entries):
                if entry == _ENTRY:
                    found = {number: span for number, span in _elements(data, *fields)}
                    if _NUMBER in found and _unsigned(data, found[_NUMBER]) == track_number:
                        return _projection(data, found[_VIDEO]) if _VIDEO in found else _UPRIGHT
            return _UPRIGHT
    return _UPRIGHT


def _projection(data: memoryview, video: tuple[int, int]) -> Orientation:
    for element, span in _elements(data, *video):
        if element == _PROJECTION:
            pose = {number: where for number, where in _elements(data, *span)}
            if _TYPE in pose and _unsigned(data, pose[_TYPE]) != 0:
                return _UPRIGHT
            yaw, pitch, roll = (_real(data, pose[at]) if at in pose else 0.0 for at in (_YAW, _PITCH, _ROLL))
            if pitch or abs(yaw) not in (0, 180):
                return _UPRIGHT
            mirrored = abs(yaw) == 180
            # as FFmpeg reads it: roll turns counter-clockwise, and a half turn of the yaw shows the picture from behind
            angle = math.radians(roll * (1 if mirrored else -1))
            cos, sin = math.cos(angle), math.sin(angle)
            return _orientation((-cos, sin, sin, cos) if mirrored else (cos, sin, -sin, cos))
    return _UPRIGHT


def _elements(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (id, (start, stop) of the payload) of each EBML element (RFC 8794); ends where one makes no sense."""
    for _ in range(_MOST):
        if start >= stop:
            return
        identity, start = _vint(data, start, stop, keep_marker=True)
        size, start = _vint(data, start, stop, keep_marker=False)
        if identity < 0 or size < -1:
            return
        end = stop if size == -1 or start + size > stop else start + size
        yield identity, (start, end)
        start = end


def _vint(data: memoryview, at: int, stop: int, keep_marker: bool) -> tuple[int, int]:
    """A variable-size integer and where it ends: -1 for an unknown size, -2 where there is none."""
    if at >= stop or not data[at]:
        return -2, stop
    length = 9 - data[at].bit_length()
    if at + length > stop:
        return -2, stop
    value = int.from_bytes(data[at : at + length], "big")
    if not keep_marker:
        value &= (1 << 7 * length) - 1
        if value == (1 << 7 * length) - 1:
            value = -1
    return value, at + length


def _unsigned(data: memoryview, span: tuple[int, int]) -> int:
    return int.from_bytes(data[span[0] : min(span[1], span[0] + 8)], "big")


def _real(data: memoryview, span: tuple[int, int]) -> float:
    raw = bytes(data[span[0] : span[1]])
    number = float(struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0]) if len(raw) in (4, 8) else 0.0
    return number if math.isfinite(number) else 0.0
