"""The samples of a video track, from the tables in the header of an MP4 or QuickTime file (ISO/IEC 14496-12).

Nothing else is read. The result is what FFmpeg makes of the tables: those that contradict each other, and those that
FFmpeg mends or reads in a way of its own, are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.bitstream.bit_reader import InvalidHeader
from telecine.container.mp4_tables import read_boxes

__all__ = [
    "MAX_DURATION", "MAX_OFFSET", "MAX_SAMPLE_BYTES", "MAX_TICKS", "Boxes", "SampleTable", "box_children",
    "find_movie", "find_track", "read_edit", "read_sample_table", "read_time_scale",
]  # fmt: skip

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
Boxes = dict[bytes, memoryview]
"""Payloads by the type of the box."""

_MAX_BOXES = 1000
"""Boxes of the file up to the movie box and the data."""
_PLAIN = frozenset(b"ftyp free skip wide pdin uuid mdat".split())
"""Boxes beside the movie box in which FFmpeg looks for no tracks."""
_CONTAINERS = frozenset({b"edts", b"dinf", b"mdia", b"minf", b"stbl"})
"""Boxes of a track in which there are others."""
_TABLES = frozenset(b"tkhd mdhd elst dref stsd stsz stz2 stco co64 stsc stts ctts stss".split())
_REFUSED = frozenset({b"stps", b"rap ", b"senc", b"saiz", b"saio"})
"""Boxes and sample groups that change the key frames or the content of samples."""
MAX_SAMPLE_BYTES = 0x3FFFFFFF
"""FFmpeg's index ends before a larger sample."""
MAX_DURATION, MAX_OFFSET = (1 << 32) - 480_000, 1 << 28
"""FFmpeg replaces larger durations, and ignores tables with larger composition offsets."""
MAX_TICKS = 1 << 56
"""Sums and differences of smaller times stay within 64 bits."""


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of a track in decode order, without those that its edit list leaves out."""

    sample_entry: bytes
    """Type of the sample description: ``b"avc1"``."""
    time_base: Fraction
    """Seconds per tick of the times."""
    offset: _Ints
    """``int64 [P]`` position in the source."""
    size: _Ints
    """``int64 [P]`` bytes."""
    pts: _Ints
    """``int64 [P]`` presentation times."""
    dts: _Ints
    """``int64 [P]`` decoding times."""
    duration: _Ints
    """``int64 [P]`` time to the next sample in decode order."""
    key: _Flags
    """``bool [P]`` True for sync samples."""
    discard: _Flags
    """``bool [P]`` True for samples outside the edit, which are there because others may need them."""
    has_fragment_index: bool = False
    """True if the file lists its fragments, so that FFmpeg does not read all of their headers at first."""


def find_movie(read: Callable[[int, int], memoryview], size: int) -> memoryview | None:
    """Return the payload of the movie box; None if FFmpeg may find tracks in other boxes of the file too.

    Args:
        read: returns the bytes of the source at (offset, size), fewer at its end.
        size: bytes of the source.
    """
    position, movie, has_data = 0, None, False
    for _ in range(_MAX_BOXES):
        head = read(position, 16)
        kind, (start, stop) = next(read_boxes(head, 0, len(head)), (b"", (0, 0)))
        if head[:4] == bytes(4):  # up to the end of the file
            stop = size - position
        if kind == b"moov" and movie is None and position + stop <= size:
            movie = read(position + start, stop - start)
        elif kind not in _PLAIN or bytes(head[12:16]) in (b"mvhd", b"cmov"):
            return None
        has_data |= kind == b"mdat"
        position += stop
        if (movie is not None and has_data) or position >= size:
            break
    return movie


def read_sample_table(movie: memoryview, size: int, track: int) -> SampleTable:
    """Read the samples of a track.

    Args:
        movie: payload of the movie box.
        size: bytes of the source.
        track: ID of the track.

    Raises:
        InvalidHeader: the tables are missing or damaged, or FFmpeg does not take them as they are.
    """
    header, boxes = find_track(movie, track)
    if b"mvex" in header:
        raise InvalidHeader("samples are in the movie box and in fragments")
    sizes = _sizes(boxes)
    offsets = _offsets(boxes, sizes)
    if offsets.min() < 0 or (offsets + sizes).max() > size:
        raise InvalidHeader("samples are outside of the file")
    duration, composition, shift = _times(boxes, len(sizes))
    key = _sync_samples(boxes, len(sizes))
    time_scale = read_time_scale(boxes, b"mdhd")
    dts = np.cumsum(duration) - duration
    kept, discard = slice(None), np.zeros(len(sizes), np.bool_)
    start = -shift
    if b"elst" in boxes:
        edit = read_edit(header, boxes, time_scale)
        kept, discard, start = _apply_edit(edit, dts, composition if b"ctts" in boxes else None, key, shift)
    dts = dts[kept] + start
    return SampleTable(
        sample_entry=bytes(boxes[b"stsd"][12:16]),
        time_base=Fraction(1, time_scale),
        offset=offsets[kept],
        size=sizes[kept],
        pts=dts + shift + composition[kept],
        dts=dts,
        duration=duration[kept],
        key=key[kept],
        discard=discard,
    )


def find_track(movie: memoryview, track: int) -> tuple[Boxes, Boxes]:
    """Return the boxes of a movie box, and those of one track at all depths; sample groups by their grouping type.

    Raises:
        InvalidHeader: there is no such track, its samples are encrypted, in other files, or of several kinds.
    """
    header: Boxes = {}
    tracks = []
    for kind, payload in box_children(movie):
        header[kind] = payload
        if kind == b"trak" and _field(boxes := _track_boxes(payload), b"tkhd") == track:
            tracks.append(boxes)
    if len(tracks) != 1 or b"cmov" in header:
        raise InvalidHeader("there is not one track with the ID of the video, or the movie box is compressed")
    _check_references(tracks[0])
    return header, tracks[0]


def box_children(payload: memoryview) -> list[tuple[bytes, memoryview]]:
    """Return type and payload of the boxes in a box."""
    found = []
    for kind, (start, stop) in read_boxes(payload, 0, len(payload)):
        if stop > len(payload):
            raise InvalidHeader("a box is longer than the one around it")
        found.append((kind, payload[start:stop]))
    return found


def _track_boxes(track: memoryview) -> Boxes:
    """Return the boxes of a track at all depths; sample groups by their grouping type."""
    boxes: Boxes = {}
    pending = [track]
    while pending:
        for kind, payload in box_children(pending.pop()):
            if kind in _CONTAINERS:
                pending.append(payload)
            elif kind in _TABLES and (kind in boxes or len(payload) < 8):
                raise InvalidHeader(f"a track has two boxes {kind.decode()}, or an empty one")
            boxes[bytes(payload[4:8]) if kind == b"sbgp" else kind] = payload
    return boxes


def _field(boxes: Boxes, kind: bytes) -> int:
    """Return the number after the two times at the start of a header box; 0 if it is not there."""
    payload = boxes.get(kind, memoryview(b"\0"))
    at = 20 if payload[0] == 1 else 12
    return int.from_bytes(payload[at : at + 4], "big")


def _check_references(boxes: Boxes) -> None:
    """Raise unless there is one sample description that is not encrypted, and all data is in the file itself."""
    if _REFUSED & boxes.keys():
        raise InvalidHeader("the track has encrypted samples, or key frames of several kinds")
    descriptions, references = bytes(boxes.get(b"stsd", b""))[:16], boxes.get(b"dref", memoryview(bytes(8)))
    if descriptions[4:8] != b"\0\0\0\1" or descriptions[12:] == b"encv":
        raise InvalidHeader("the track is encrypted, or has not one sample description")
    if any(len(payload) < 4 or not payload[3] & 1 for _, payload in box_children(references[8:])):
        raise InvalidHeader("the samples of the track are in another file")


def _rows(boxes: Boxes, kind: bytes, field: str, columns: int = 1, start: int = 8) -> npt.NDArray[Any]:
    """Return the rows of a table, whose number stands before it."""
    payload = boxes.get(kind, memoryview(b""))
    values = columns * int.from_bytes(payload[start - 4 : start], "big")
    stop = start + values * np.dtype(field).itemsize
    if not values or stop > len(payload):
        raise InvalidHeader(f"the table {kind.decode()} is missing, empty or cut off")
    return np.frombuffer(payload[start:stop], field).reshape(-1, columns)


def _sizes(boxes: Boxes) -> _Ints:
    if b"stz2" in boxes:
        field = {8: "u1", 16: ">u2"}.get(boxes[b"stz2"][7])
        if field is None or b"stsz" in boxes:
            raise InvalidHeader("sample sizes of an unknown kind")
        sizes = _rows(boxes, b"stz2", field, start=12)
    elif boxes.get(b"stsz", b"")[4:8] != bytes(4):
        raise InvalidHeader("samples of one common size, or without sizes")  # no video that is compressed
    else:
        sizes = _rows(boxes, b"stsz", ">u4", start=12)
    if not sizes.all() or sizes.max() > MAX_SAMPLE_BYTES:
        raise InvalidHeader("samples are empty or too large")
    return sizes[:, 0].astype(np.int64)


def _offsets(boxes: Boxes, sizes: _Ints) -> _Ints:
    if b"co64" in boxes and b"stco" in boxes:
        raise InvalidHeader("two tables of chunks")
    chunks = (_rows(boxes, b"co64", ">i8") if b"co64" in boxes else _rows(boxes, b"stco", ">u4"))[:, 0]
    first, count, description = _rows(boxes, b"stsc", ">u4", 3).astype(np.int64).T
    steps = np.diff(first, append=len(chunks) + 1)
    if first[0] != 1 or (steps < 1).any() or (description != 1).any() or int((steps * count).sum()) != len(sizes):
        raise InvalidHeader("the table of chunks contradicts the number of samples")
    count = np.repeat(count, steps)  # samples of each chunk
    if not count.all():
        raise InvalidHeader("chunks without samples")
    before = np.cumsum(sizes) - sizes
    offsets: _Ints = before + np.repeat(chunks.astype(np.int64) - before[np.cumsum(count) - count], count)
    return offsets


def _times(boxes: Boxes, samples: int) -> tuple[_Ints, _Ints, int]:
    """Return duration and composition offset of each sample, and the shift that makes no offset negative."""
    counts, durations = _rows(boxes, b"stts", ">u4", 2).astype(np.int64).T
    if counts.sum() != samples or not durations.all() or durations.max() >= MAX_DURATION:
        raise InvalidHeader("the durations of the samples contradict their number, or are absurd")
    duration = np.repeat(durations, counts)
    if b"ctts" not in boxes:
        return duration, np.zeros(samples, np.int64), 0
    table = _rows(boxes, b"ctts", ">u4", 2)
    counts, offsets = table[:, 0].astype(np.int64), table[:, 1].astype(np.int32).astype(np.int64)
    if counts.sum() != samples or not counts.all() or np.abs(offsets).max() >= MAX_OFFSET:
        raise InvalidHeader("the composition offsets contradict the number of samples, or are absurd")
    # FFmpeg does not look at the last two rows
    return duration, np.repeat(offsets, counts), int(max(0, -offsets[:-2].min(initial=0)))


def _sync_samples(boxes: Boxes, samples: int) -> _Flags:
    if b"stss" not in boxes:
        return np.ones(samples, np.bool_)
    numbers = _rows(boxes, b"stss", ">u4")[:, 0].astype(np.int64)
    if numbers[0] < 1 or (np.diff(numbers) < 1).any() or numbers[-1] > samples:
        raise InvalidHeader("the table of key frames is not in order")
    key = np.zeros(samples, np.bool_)
    key[numbers - 1] = True
    return key


def read_time_scale(boxes: Boxes, kind: bytes) -> int:
    """Return the ticks per second of a header box."""
    scale = _field(boxes, kind)
    if not 0 < scale < 1 << 31:
        raise InvalidHeader("there are no ticks per second")
    return scale


@dataclass(frozen=True)
class _Edit:
    """The only edit of a track, in ticks of the track."""

    delay: int
    """Time before the edit in which nothing is shown."""
    start: int
    """Presentation time of the samples at which it starts."""
    duration: int


def read_edit(header: Boxes, boxes: Boxes, time_scale: int) -> _Edit:
    """Return the only edit of a track; raises InvalidHeader if there are more."""
    movie_time_scale = read_time_scale(header, b"mvhd")
    row = ">u8,>i8,>i4" if boxes[b"elst"][0] == 1 else ">u4,>i4,>i4"
    rows = _rows(boxes, b"elst", row)[:, 0]
    edits = rows.tolist()
    # FFmpeg's av_rescale rounds to the nearest tick
    *delays, duration = [(2 * each * time_scale + movie_time_scale) // (2 * movie_time_scale) for each, *_ in edits]
    *empty, (_, start, _) = edits
    are_plain = start >= 0 and all(time == -1 for _, time, _ in empty) and all(rate == 1 << 16 for *_, rate in edits)
    if not are_plain or len(boxes[b"elst"]) != 8 + rows.nbytes or duration + sum(delays) + start >= MAX_TICKS:
        raise InvalidHeader("the edit list has more than one edit, or one that FFmpeg does not take as it is")
    return _Edit(sum(delays), start, duration)


def _apply_edit(
    edit: _Edit, dts: _Ints, composition: _Ints | None, key: _Flags, shift: int
) -> tuple[slice, _Flags, int]:
    """Return the samples that are kept, those of them that are not shown, and the shift of all decoding times.

    As FFmpeg does it: the samples from the key frame before the edit are kept, up to the first key frame after it or,
    if there are composition offsets, to the second one. The first shown frame gets the time at which the edit starts.
    """
    if not edit.duration:
        raise InvalidHeader("the edit has no duration")
    pts = dts if composition is None else dts + composition
    before = (dts <= edit.start) & (pts <= edit.start)
    if composition is None and before.any() and not (key & before).any():
        raise InvalidHeader("the edit list depends on samples that are not in order")
    first = int(np.flatnonzero(np.append(True, key & before))[-1]) - 1
    first = max(first, 0)
    end = edit.start + edit.duration
    length = np.diff(dts, append=dts[-1] + edit.duration)
    ends = np.flatnonzero(key[first:] & ((pts + length)[first:] >= end))
    extra = int(composition is not None)
    stop = first + int(ends[extra]) + 1 if len(ends) > extra else len(dts)
    kept = slice(first, stop)
    shown = (pts[kept] >= edit.start) & (pts[kept] < end)
    if not shown.any():
        raise InvalidHeader("the edit list leaves out every sample")
    start = edit.delay - shift - int(dts[kept][np.argmax(shown)])
    times = (pts[kept] + start + shift)[shown]
    if times.min() < 0:
        raise InvalidHeader("the edit list makes times negative")
    return kept, ~shown, start - max(0, int(times.min()) - edit.delay)
