"""The samples of a video track of a fragmented MP4 file, from the headers of its fragments (ISO/IEC 14496-12, 8.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from telecine.bitstream.bit_reader import InvalidHeader
from telecine.container.mp4_index import (
    MAX_DURATION,
    MAX_OFFSET,
    MAX_SAMPLE_BYTES,
    MAX_TICKS,
    Boxes,
    SampleTable,
    box_children,
    find_track,
    read_edit,
    read_time_scale,
)
from telecine.container.mp4_tables import read_boxes

__all__ = ["read_fragment_table"]

_WITHOUT_SAMPLES = frozenset(b"ftyp styp free skip wide pdin uuid ssix prft emsg mfra".split())
"""Boxes beside the movie and the fragments in which FFmpeg looks for no samples."""
_FRAGMENT_BOXES = frozenset(b"mfhd traf free skip pssh".split())
_TRACK_BOXES = frozenset(b"sbgp sgpd subs sdtp free skip".split())
"""Boxes in fragments, and beside times and runs in those of their tracks, that do not change what FFmpeg reads."""
_MAX_SMALL_FRAGMENTS, _MIN_SAMPLES = 1000, 4
"""Reading the packets is faster than reading more fragments than this with fewer samples each."""
_BASE_OFFSET, _DESCRIPTION, _FROM_FRAGMENT = 1, 2, 0x20000
_DEFAULTS = (8, 0x10, 0x20)
"""Flags of a track fragment header; the last three are those of the default duration, size and flags of samples."""
_DATA_OFFSET, _FIRST_FLAGS = 1, 4
_FIELDS = (0x100, 0x200, 0x400, 0x800)
"""Flags of a run of samples; the last four are those of duration, size, flags and composition offset of each."""
_IS_NOT_KEY = 0x1010000
"""Flags of a sample that depends on others, or is no sync sample."""
_EDIT_LIST_BYTES = (20, 28, 32, 48)
"""Bytes of an edit list with one edit, or an empty edit before it."""


_Defaults = dict[int, tuple[int, int, int]]
"""Duration, size and flags of the samples of each track, if a fragment does not give them."""


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive samples; the arrays are ``int64``."""

    start: int
    """Position of the first sample."""
    dts: int
    """Decoding time of the first sample."""
    fields: npt.NDArray[np.int64]
    """``[4, P]`` duration, size, flags and composition offset."""

    @property
    def stop(self) -> int:
        """Position after the last sample."""
        return self.start + int(self.fields[1].sum())


def read_fragment_table(read: Callable[[int, int], memoryview], size: int, track: int) -> SampleTable:
    """Read the samples of a track of a fragmented file; only the headers of the fragments are read.

    Args:
        read: returns the bytes of the source at (offset, size), fewer at its end.
        size: bytes of the source.
        track: ID of the track.

    Raises:
        InvalidHeader: the file is damaged or has no fragments, or FFmpeg does not take it as it is.
    """
    boxes, runs, has_index = _read_file(read, size, track)
    duration, sizes, flags, composition = np.concatenate([run.fields for run in runs], axis=1)
    dts = _accumulate([run.dts for run in runs], [run.fields[0] for run in runs])
    offset = _accumulate([run.start for run in runs], [run.fields[1] for run in runs])
    are_plain = (0 < duration) & (duration < MAX_DURATION) & (0 < sizes) & (sizes <= MAX_SAMPLE_BYTES)
    if not (are_plain & (0 <= composition) & (composition < MAX_OFFSET) & (dts < MAX_TICKS)).all():
        raise InvalidHeader("sizes or times of samples are absurd")
    if (np.diff(dts) <= 0).any():
        raise InvalidHeader("fragments overlap in time")
    return SampleTable(
        sample_entry=bytes(boxes[b"stsd"][12:16]),
        time_base=Fraction(1, read_time_scale(boxes, b"mdhd")),
        offset=offset,
        size=sizes,
        pts=dts + composition,
        dts=dts,
        duration=duration,
        key=(flags & _IS_NOT_KEY) == 0,
        discard=np.zeros(len(dts), np.bool_),
        has_fragment_index=has_index,
    )


def _accumulate(starts: list[int], steps: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the sums of the steps before each step, from the start of each run on."""
    return np.concatenate([start + np.cumsum(each) - each for start, each in zip(starts, steps, strict=True)])


def _read_file(read: Callable[[int, int], memoryview], size: int, track: int) -> tuple[Boxes, list[_Run], bool]:
    """Return the boxes of the track, the runs of its samples, and True if a segment index lists the fragments.

    The edit list is applied to the times of the runs.
    """
    boxes: Boxes = {}
    runs: list[_Run] = []
    fragments: list[int] = []
    listed: set[int] = set()
    defaults: _Defaults = {}
    shift, samples, end = 0, 0, 0
    for kind, position, start, stop in _top_boxes(read, size):
        if kind == b"moov" and not boxes:
            header, boxes = find_track(read(start, stop - start), track)
            defaults, shift = _track_defaults(header), _time_shift(header, boxes)
        elif kind == b"moof" and boxes and not end:
            fragments.append(position)
            for number, run in _fragment_runs(read(start, stop - start), position, defaults):
                end = max(end, run.stop)
                if run.start < position or run.dts > MAX_TICKS:
                    raise InvalidHeader("samples lie before their fragment, or have absurd times")
                if number == track:
                    samples += run.fields.shape[1]
                    runs.append(_Run(run.start, run.dts + shift, run.fields))
            if len(fragments) > _MAX_SMALL_FRAGMENTS and samples < _MIN_SAMPLES * len(fragments):
                raise InvalidHeader("the fragments have few samples each")
        elif kind == b"sidx":
            listed |= _listed_positions(read(start, stop - start), stop)
        elif kind == b"mdat" and end <= stop:
            end = 0
        elif kind not in _WITHOUT_SAMPLES:
            raise InvalidHeader("the file has samples outside of its fragments")
    if end or not runs or (listed and listed != set(fragments)):
        raise InvalidHeader("there are no fragments of the video, or the segment index lists others")
    return boxes, runs, bool(listed)


def _listed_positions(box: memoryview, stop: int) -> set[int]:
    """Return the positions that a segment index lists; ``stop`` is its end."""
    width = 8 if _number(box, 0, 1) else 4
    at = 12 + 2 * width
    position, count = stop + _number(box, 12 + width, width), _number(box, at + 2, 2)
    positions = set()
    for start in range(at + 4, at + 4 + 12 * count, 12):
        positions.add(position)
        size = _number(box, start)
        position += size
        if size >> 31:
            raise InvalidHeader("the segment index lists other segment indexes")
    if not positions or not _number(box, 8) or _number(box, 0, 1) > 1:
        raise InvalidHeader("the segment index is empty")
    return positions


def _top_boxes(read: Callable[[int, int], memoryview], size: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield type, position, and start and stop of the payload of the boxes of a file."""
    position = 0
    while position < size:
        head = read(position, 16)
        kind, (start, stop) = next(read_boxes(head, 0, len(head)), (b"", (0, 0)))
        if not kind or head[:4] == bytes(4) or position + stop > size or bytes(head[12:16]) in (b"mvhd", b"cmov"):
            if kind != b"moov" or position + stop > size:
                raise InvalidHeader("a box of the file is cut off")
        yield kind, position, position + start, position + stop
        position += stop


def _number(payload: memoryview, start: int, count: int = 4) -> int:
    """Return an unsigned number of some bytes."""
    if start + count > len(payload):
        raise InvalidHeader("a box of a fragment is cut off")
    return int.from_bytes(payload[start : start + count], "big")


def _track_defaults(header: Boxes) -> _Defaults:
    """Return the default duration, size and flags of the samples of each track (``trex``)."""
    defaults: _Defaults = {}
    for kind, payload in box_children(header.get(b"mvex", memoryview(b""))):
        if kind == b"trex":
            track, description, *values = (_number(payload, at) for at in range(4, 24, 4))
            if description != 1 or track in defaults:
                raise InvalidHeader("fragments have several sample descriptions")
            defaults[track] = (values[0], values[1], values[2])
    return defaults


def _time_shift(header: Boxes, boxes: Boxes) -> int:
    """Return what FFmpeg adds to the decoding times because of the edit list."""
    if any(_number(boxes.get(kind, memoryview(bytes(12))), at) for kind, at in ((b"stts", 4), (b"stsz", 8))):
        raise InvalidHeader("samples are in the movie box and in fragments")
    if b"elst" not in boxes:
        return 0
    if len(boxes[b"elst"]) not in _EDIT_LIST_BYTES:
        raise InvalidHeader("the edit list has more than one edit")
    edit = read_edit(header, boxes, read_time_scale(boxes, b"mdhd"))
    return edit.delay - edit.start


def _fragment_runs(fragment: memoryview, position: int, defaults: _Defaults) -> Iterator[tuple[int, _Run]]:
    """Yield (number of the track, run) of the fragment at a position of the file.

    FFmpeg also ends at an error in other tracks than the video.
    """
    implied_base = position
    for kind, payload in box_children(fragment):
        if kind not in _FRAGMENT_BOXES:
            raise InvalidHeader("a fragment has unusual boxes")
        if kind == b"traf":
            track, runs = _track_runs(payload, position, implied_base, defaults)
            for run in runs:
                implied_base = run.stop
                yield track, run


def _track_runs(payload: memoryview, position: int, implied_base: int, defaults: _Defaults) -> tuple[int, list[_Run]]:
    """Return the number of a track and its runs."""
    track, base, dts, values, runs = 0, 0, None, (0, 0, 0), list[_Run]()
    for kind, box in box_children(payload):
        if kind == b"tfhd" and not track:
            track = _number(box, 4)
            if track not in defaults:
                raise InvalidHeader("a fragment of an unknown track")
            base, values = _read_header(box, implied_base, position, defaults[track])
        elif kind == b"tfdt" and track and dts is None:
            dts = _number(box, 4, 8 if _number(box, 0, 1) else 4)
        elif kind == b"trun" and track and dts is not None:
            run = _read_run(box, base, dts, values)
            if not run.fields[1].all():
                raise InvalidHeader("samples of a fragment are empty")
            if run.fields.shape[1]:
                runs.append(run)
            dts += int(run.fields[0].sum())
        elif kind not in _TRACK_BOXES:
            raise InvalidHeader("a fragment is encrypted, or has unusual boxes")
    return track, runs


def _read_header(
    box: memoryview, implied_base: int, position: int, defaults: tuple[int, int, int]
) -> tuple[int, tuple[int, int, int]]:
    """Return the position from which data offsets count, and the default duration, size and flags of samples."""
    flags, at = _number(box, 1, 3), 8
    base = position if flags & _FROM_FRAGMENT else implied_base
    if flags & _BASE_OFFSET:
        base, at = _number(box, at, 8), at + 8
    if flags & _DESCRIPTION:
        if _number(box, at) != 1:
            raise InvalidHeader("a fragment has another sample description")
        at += 4
    values = list(defaults)
    for i, flag in enumerate(_DEFAULTS):
        if flags & flag:
            values[i], at = _number(box, at), at + 4
    return base, (values[0], values[1], values[2])


def _read_run(box: memoryview, start: int, dts: int, defaults: tuple[int, int, int]) -> _Run:
    flags, count, at = _number(box, 1, 3), _number(box, 4), 8
    if flags & _DATA_OFFSET:
        start, at = start + _number(box, at) - (_number(box, at, 1) >> 7 << 32), at + 4
    first_flags = defaults[2]
    if flags & _FIRST_FLAGS:
        first_flags, at = _number(box, at), at + 4
    given = [bool(flags & flag) for flag in _FIELDS]
    stop = at + 4 * sum(given) * count
    if stop > len(box) or count > len(box):  # samples without fields take no bytes
        raise InvalidHeader("a box of a fragment is cut off")
    rows = np.frombuffer(box[at:stop], ">u4").reshape(count, sum(given)).T
    fields = np.empty((4, count), np.int64)
    fields[:] = np.array([*defaults, 0])[:, None]
    fields[2, :1] = first_flags
    fields[given] = rows
    fields[3] = fields[3].astype(np.int32)  # signed, also in version 0
    return _Run(start, dts, fields)
