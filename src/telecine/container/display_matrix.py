"""The display matrix of a video, read from the container's header: rotation and mirroring of the stored picture.

PyAV gives the matrix only with decoded frames, and probing must not decode. Two families of containers have one: ISO
media files (ISO/IEC 14496-12, ``mvhd`` and ``tkhd``) and Matroska (RFC 9559, ``ProjectionPoseRoll`` and
``ProjectionPoseYaw``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import TypeVar

from telecine.container.mp4_tables import Payload, decompress_movie, read_boxes

__all__ = ["Orientation", "has_moov_box", "iso_orientation", "matroska_orientation"]

Orientation = tuple[int, bool]
"""Quarter turns clockwise, and True if the picture is mirrored left to right afterwards."""

_Matrix = tuple[float, float, float, float]
_Kind = TypeVar("_Kind", bytes, int)
_UPRIGHT: Orientation = (0, False)
_TURNS = [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)]
_ORIENTATIONS: dict[tuple[int, int, int, int], Orientation] = {
    **{(a, b, c, d): (turns, False) for turns, (a, b, c, d) in enumerate(_TURNS)},
    **{(-a, b, -c, d): (turns, True) for turns, (a, b, c, d) in enumerate(_TURNS)},
}
"""Orientation by the signs of (a, b, c, d), with x' = ax + cy and y' = bx + dy, y pointing down."""

_MAX_CHILDREN = 100_000
"""Boxes or elements that are read on one level. No valid header has so many, and millions of empty ones take time."""


def has_moov_box(data: memoryview) -> bool:
    """Return True if an MP4 or QuickTime file has its index, the movie box."""
    return any(kind == b"moov" for kind, _ in _boxes(data, 0, len(data)))


def iso_orientation(data: memoryview, track_id: int) -> Orientation:
    """Return the orientation of a track of an MP4 or QuickTime file; upright unless a multiple of 90 degrees.

    Args:
        data: the whole file.
        track_id: ``track_ID`` of its ``tkhd`` box.
    """
    for movie in _of_kind(b"moov", _boxes(data, 0, len(data))):
        if (movie_data := _decompressed(data, movie)) is not None:
            return iso_orientation(movie_data, track_id)
        movie_matrix = (1.0, 0.0, 0.0, 1.0)
        for kind, box in _boxes(data, *movie):
            if kind == b"mvhd":
                movie_matrix = _matrix(data, *box, fields_before=20)[1]
            elif kind == b"trak":
                for header in _of_kind(b"tkhd", _boxes(data, *box)):
                    number, track_matrix = _matrix(data, *header, fields_before=24)
                    if number == track_id:
                        return _orientation(_product(track_matrix, movie_matrix))
    return _UPRIGHT


def _decompressed(data: memoryview, movie: Payload) -> memoryview | None:
    """Return the beginning of a compressed movie box (QuickTime ``cmov``); None if it is not compressed."""
    found = (decompress_movie(data, *box) for box in _of_kind(b"cmov", _boxes(data, *movie)))
    return next((movie_data for movie_data in found if movie_data is not None), None)


def _of_kind(kind: _Kind, children: Iterable[tuple[_Kind, Payload]]) -> Iterator[Payload]:
    """Yield the payload of each box or element of one kind."""
    return (payload for each, payload in children if each == kind)


def _boxes(data: memoryview, start: int, stop: int) -> Iterator[tuple[bytes, Payload]]:
    """Yield type and payload (start, stop) of each box, up to the first invalid one."""
    return takewhile(lambda box: box[1][1] <= stop, islice(read_boxes(data, start, stop), _MAX_CHILDREN))


def _matrix(data: memoryview, start: int, stop: int, fields_before: int) -> tuple[int, _Matrix]:
    """Return the track ID and the matrix (a, b, c, d) of a ``tkhd``; of an ``mvhd`` only the matrix counts.

    The matrix is 16 bytes after the first ``fields_before`` bytes in version 0; version 1 has 12 bytes more.
    """
    wide = 12 if stop > start and data[start] == 1 else 0
    at = start + wide + fields_before + 16
    if at + 36 > stop:
        return -1, (1.0, 0.0, 0.0, 1.0)
    (number,) = struct.unpack_from(">I", data, start + 12 + (8 if wide else 0))
    nine = struct.unpack_from(">9i", data, at)
    a, b, c, d = (value / 65536 for value in (nine[0], nine[1], nine[3], nine[4]))
    return number, (a, b, c, d)


def _product(first: _Matrix, then: _Matrix) -> _Matrix:
    a, b, c, d = first
    e, f, g, h = then
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _orientation(matrix: _Matrix) -> Orientation:
    largest = max(abs(value) for value in matrix)
    if not largest:
        return _UPRIGHT
    # a tolerance of about a degree, as in FFmpeg
    a, b, c, d = (0 if abs(value) < 0.02 * largest else (1 if value > 0 else -1) for value in matrix)
    return _ORIENTATIONS.get((a, b, c, d), _UPRIGHT)


_SEGMENT, _TRACKS, _ENTRY, _TRACK_TYPE, _VIDEO = 0x18538067, 0x1654AE6B, 0xAE, 0x83, 0xE0
_PROJECTION, _TYPE, _YAW, _PITCH, _ROLL = 0x7670, 0x7671, 0x7673, 0x7674, 0x7675


def matroska_orientation(data: memoryview, position: int) -> Orientation:
    """Return the orientation of a track of a Matroska or WebM file; upright unless a multiple of 90 degrees.

    Args:
        data: the whole file.
        position: its position among the video tracks, from 0.
    """
    for segment in _of_kind(_SEGMENT, _elements(data, 0, len(data))):
        for tracks in _of_kind(_TRACKS, _elements(data, *segment)):
            entries = [dict(_elements(data, *entry)) for entry in _of_kind(_ENTRY, _elements(data, *tracks))]
            videos = [entry for entry in entries if _TRACK_TYPE in entry and _unsigned(data, entry[_TRACK_TYPE]) == 1]
            if position < len(videos) and _VIDEO in videos[position]:
                return _projection(data, videos[position][_VIDEO])
            return _UPRIGHT
    return _UPRIGHT


def _projection(data: memoryview, video: Payload) -> Orientation:
    for projection in _of_kind(_PROJECTION, _elements(data, *video)):
        pose = dict(_elements(data, *projection))
        if _TYPE in pose and _unsigned(data, pose[_TYPE]) != 0:
            return _UPRIGHT
        yaw, pitch, roll = (_float(data, pose[field]) if field in pose else 0.0 for field in (_YAW, _PITCH, _ROLL))
        if pitch or abs(yaw) not in (0, 180):
            return _UPRIGHT
        mirrored = abs(yaw) == 180
        # as in FFmpeg: roll is counter-clockwise, and a yaw of 180 degrees shows the picture from behind
        angle = math.radians(roll * (1 if mirrored else -1))
        cos, sin = math.cos(angle), math.sin(angle)
        return _orientation((-cos, sin, sin, cos) if mirrored else (cos, sin, -sin, cos))
    return _UPRIGHT


def _elements(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, Payload]]:
    """Yield ID and payload (start, stop) of each EBML element (RFC 8794), up to the first invalid one."""
    for _ in range(_MAX_CHILDREN):
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
    """Return a variable-size integer and its end; the value is -1 for an unknown size, -2 if it is invalid."""
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


def _unsigned(data: memoryview, payload: Payload) -> int:
    start, stop = payload
    return int.from_bytes(data[start : min(stop, start + 8)], "big")


def _float(data: memoryview, payload: Payload) -> float:
    raw = bytes(data[slice(*payload)])
    number = float(struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0]) if len(raw) in (4, 8) else 0.0
    return number if math.isfinite(number) else 0.0
