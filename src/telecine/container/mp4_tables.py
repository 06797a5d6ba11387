"""Bounds on the memory that the tables of an MP4 or QuickTime file make FFmpeg take, checked before FFmpeg reads them.

A table may claim many entries without having bytes for them: samples of one common size (``stsz``), samples of a
fragment without fields (``trun``), edits that repeat the whole track (``elst``), a compressed movie (``cmov``). FFmpeg
takes 24 to 200 bytes for each entry, so a file of 600 bytes could take gigabytes. FFmpeg also finds tables in boxes
where no muxer writes them, so boxes are read as FFmpeg reads them (ISO/IEC 14496-12, QuickTime File Format).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.deadline import Deadline
from telecine.errors import LimitError

__all__ = ["Payload", "check_tables", "decompress_movie", "read_boxes"]

Payload = tuple[int, int]
"""Start and stop of the payload of a box; the announced stop may be after the end of the parent."""

_MAX_MOVIE_BYTES = 16 << 20
"""Bytes of a decompressed movie box. The tables of a whole day take less."""
_MIN_ALLOWED_BYTES, _MAX_ALLOWED_BYTES, _BYTES_PER_BYTE = 64 << 20, 512 << 20, 4
"""Memory that tables may take: this many bytes for each byte of the source, within these limits."""
_SAMPLE_BYTES, _EDITED_SAMPLE_BYTES = 40, 24
"""Memory of a sample in FFmpeg's index, and of one more copy of it in an edit."""
_ENCRYPTED_SAMPLE_BYTES = 200
"""Memory of the encryption parameters of a sample."""
_FRAGMENT_BYTES, _KEY_BYTES = 72, 8
"""Memory of a fragment for each track, and of a metadata key."""
_REORDERED_SAMPLES = 32
"""Samples around an edit that FFmpeg keeps because they may be shown in it."""
_MIN_SAMPLES_PER_ENTRY = 160
"""FFmpeg joins uncompressed audio samples to packets of this many at least."""
_MAX_DEPTH = 12
"""FFmpeg refuses boxes that are nested deeper."""
_BOXES_PER_CHECK = 1000
_MAX_UNEXAMINED_SAMPLES = 1_000_000
"""Samples times edits up to which it does not matter which samples are in which edit."""

_CONTAINERS = frozenset(
    b"dinf edts ilst iprp mdia meta mfra minf moof moov mvex schi sinf stbl traf trak tref udta wave".split()
)
"""Boxes in which FFmpeg looks for other boxes."""
_UNCOMPRESSED_AUDIO = {b"raw ", *b"NONE alaw fl32 fl64 fpcm ima4 in24 in32 ipcm lpcm sowt twos ulaw".split()}
"""Formats whose samples FFmpeg does not index one by one."""


def read_boxes(data: memoryview, start: int, stop: int) -> Iterator[tuple[bytes, Payload]]:
    """Yield type and payload of each box, up to the first one of an impossible size."""
    while start + 8 <= stop:
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1 and start + 16 <= stop:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            header = 16
        elif size == 0:
            size = stop - start
        if size < header:
            return
        yield kind, (start + header, start + size)
        start += size


def decompress_movie(data: memoryview, start: int, stop: int) -> memoryview | None:
    """Return the movie box in the payload of a ``cmov``, at most 16 MiB of it; None if it cannot be decompressed."""
    # box dcom: size, type, "zlib"; box cmvd: size, type, size of the movie, zlib data
    with suppress(zlib.error, struct.error):
        (size,) = struct.unpack_from(">I", data, start + 20)
        return memoryview(zlib.decompressobj().decompress(data[start + 24 : stop], max(1, min(size, _MAX_MOVIE_BYTES))))
    return None


def check_tables(data: memoryview, name: str, deadline: Deadline) -> None:
    """Raise LimitError if the tables of an MP4 or QuickTime file would take too much memory.

    They may take 4 bytes for each byte of the source, but 64 MiB at least and 512 MiB at most. Other files pass.
    """
    _Tables(name, len(data), deadline).check(data)


class _Track:
    """The tables of one track."""

    def __init__(self) -> None:
        self.samples = self.chunks = self.edits = self.time_scale = 0
        self.handlers: set[bytes] = set()
        self.has_uncompressed_samples = False
        self.boxes: dict[bytes, tuple[memoryview, int]] = {}
        """The last table of each kind of box: the data, and the position of its payload."""

    def memory(self, movie_time_scale: int) -> int:
        """Return the bytes that FFmpeg takes for the index of the track."""
        is_audio = b"soun" in self.handlers and b"vide" not in self.handlers
        if is_audio and self.has_uncompressed_samples and self._rows(b"stts", 2)[:2, 1].tolist() == [1]:
            first, size = self._rows(b"stsc", 3).astype(float)[:, :2].T
            chunks = np.abs(np.diff(first, append=self.chunks + 1))
            return int((chunks * (size // _MIN_SAMPLES_PER_ENTRY + 1)).sum()) * _SAMPLE_BYTES
        return self.samples * _SAMPLE_BYTES + self._edited_samples(movie_time_scale) * _EDITED_SAMPLE_BYTES

    def _edited_samples(self, movie_time_scale: int) -> int:
        """Return the number of samples in all edits, with those from the key frame before each."""
        in_all = self.samples * self.edits
        if in_all < _MAX_UNEXAMINED_SAMPLES or not movie_time_scale:
            return in_all
        count, duration = self._rows(b"stts", 2).astype(float).T
        if not len(count) or not duration.all():
            return in_all
        samples, ticks = (np.append(0, np.cumsum(each)) for each in (count, count * duration))
        data, at = self.boxes[b"elst"]
        length, start = self._rows(b"elst", 2, "i8" if data[at] else "i4", 4).astype(float).T
        end = start + length * self.time_scale / movie_time_scale
        first, last = np.interp(start, ticks, samples), np.interp(end, ticks, samples)
        if b"stss" in self.boxes:  # else each sample is a key frame
            keys = np.append(0, np.sort(self._rows(b"stss", 1)[:, 0]).astype(float) - 1)
            first = keys[np.searchsorted(keys, first, "right") - 1]
        return int(min(in_all, (last - first + _REORDERED_SAMPLES).sum()))

    def _rows(self, kind: bytes, columns: int, field: str = "u4", other_bytes: int = 0) -> npt.NDArray[Any]:
        """Return the rows of a table that begins with their number, as far as there are bytes for them."""
        data, start = self.boxes.get(kind, (memoryview(bytes(8)), 0))
        row = np.dtype([("fields", ">" + field, (columns,)), ("other", np.void, other_bytes)])
        stop = start + 8 + _count_rows(data, start + 4, row.itemsize) * row.itemsize
        rows: npt.NDArray[Any] = np.frombuffer(data[start + 8 : stop], row)["fields"]
        return rows


class _Tables:
    """The memory for the tables that were read so far."""

    def __init__(self, name: str, source_bytes: int, deadline: Deadline) -> None:
        self._name, self._source_bytes, self._deadline = name, source_bytes, deadline
        self._allowed = min(max(_BYTES_PER_BYTE * source_bytes, _MIN_ALLOWED_BYTES), _MAX_ALLOWED_BYTES)
        self._tracks = [_Track()]  # the first has the tables that come before any track
        self._time_scale = self._boxes = self._memory = self._movie_bytes = 0

    def check(self, data: memoryview) -> None:
        """Read all boxes of a file."""
        self._read(data, 0, len(data), 0)
        self._add(sum(track.memory(self._time_scale) for track in self._tracks))

    def _add(self, memory: int) -> None:
        self._memory += memory
        if self._memory > self._allowed:
            raise LimitError(
                f"{self._name}: the index in its header would take more than {self._allowed} bytes of memory, too much "
                f"for a file of {self._source_bytes} bytes; it is damaged, or made to exhaust memory: write it again"
            )

    def _read(self, data: memoryview, start: int, stop: int, depth: int) -> None:
        for kind, (begin, end) in read_boxes(data, start, stop):
            self._boxes += 1
            if self._boxes % _BOXES_PER_CHECK == 0:
                self._deadline.check("reading the tables of the file", begin, len(data))
            self._read_box(kind, data, begin, min(end, stop), depth)

    def _read_box(self, kind: bytes, data: memoryview, start: int, stop: int, depth: int) -> None:
        if kind in (b"free", b"hoov") and bytes(data[start + 4 : start + 8]) in (b"mvhd", b"cmov"):
            kind = b"moov"  # as FFmpeg does
        if kind in _CONTAINERS and depth < _MAX_DEPTH:
            if kind == b"trak":
                self._tracks.append(_Track())
            elif kind == b"moof":
                self._add_fragments(1)
            elif kind == b"meta":
                start = max(start, bytes(data[start:stop]).find(b"hdlr") + start - 4)
            self._read(data, start, stop, depth + 1)
        elif kind == b"stsd" and depth < _MAX_DEPTH:
            self._tracks[-1].has_uncompressed_samples = bytes(data[start + 12 : start + 16]) in _UNCOMPRESSED_AUDIO
            self._read_descriptions(data, start, stop, depth)
        elif kind == b"cmov" and depth < _MAX_DEPTH:
            self._read_compressed_movie(data, start, stop, depth)
        if kind in _TABLES and start + 8 <= len(data):
            self._tracks[-1].boxes[kind] = (data, start)
        if kind in _READERS:
            with suppress(struct.error, IndexError):  # it is cut off
                _READERS[kind](self, data, start, stop)

    def _read_descriptions(self, data: memoryview, start: int, stop: int, depth: int) -> None:
        """Read the boxes in sample descriptions, whose own fields are of a length that depends on the format."""
        content = bytes(data[start:stop])
        for kind in (b"cmov", *_READERS):
            at = content.find(kind)
            while at >= 4:
                self._read_box(kind, data, start + at + 4, stop, depth + 1)
                at = content.find(kind, at + 4)

    def _read_compressed_movie(self, data: memoryview, start: int, stop: int, depth: int) -> None:
        self._movie_bytes += int.from_bytes(data[start + 20 : start + 24], "big")
        if self._movie_bytes > _MAX_MOVIE_BYTES:
            raise LimitError(
                f"{self._name}: its compressed movie box is {self._movie_bytes} bytes long; at most {_MAX_MOVIE_BYTES} "
                "bytes are read: write the file again without compression of the header"
            )
        if movie := decompress_movie(data, start, stop):
            self._read(movie, 0, len(movie), depth + 1)

    def _add_fragments(self, count: int) -> None:
        self._add(count * len(self._tracks) * _FRAGMENT_BYTES)

    def _read_stsz(self, data: memoryview, start: int, stop: int) -> None:
        common_size, count = struct.unpack_from(">II", data, start + 4)
        self._tracks[-1].samples += count if common_size else min(count, (len(data) - start) // 4)

    def _read_stz2(self, data: memoryview, start: int, stop: int) -> None:
        self._tracks[-1].samples += min(struct.unpack_from(">I", data, start + 8)[0], 2 * (len(data) - start))

    def _read_trun(self, data: memoryview, start: int, stop: int) -> None:
        flags, count = struct.unpack_from(">II", data, start)
        width = 4 * (flags >> 8 & 15).bit_count()
        self._add(_SAMPLE_BYTES * (min(count, (len(data) - start) // width) if width else count))

    def _read_encrypted(self, data: memoryview, start: int, stop: int) -> None:
        self._add(struct.unpack_from(">I", data, start + 4)[0] * _ENCRYPTED_SAMPLE_BYTES)

    def _read_saiz(self, data: memoryview, start: int, stop: int) -> None:
        self._read_encrypted(data, start + 1 + 8 * (data[start + 3] & 1), stop)

    def _read_keys(self, data: memoryview, start: int, stop: int) -> None:
        self._add(struct.unpack_from(">I", data, start + 4)[0] * _KEY_BYTES)

    def _read_sidx(self, data: memoryview, start: int, stop: int) -> None:
        self._add_fragments(struct.unpack_from(">H", data, start + (30 if data[start] else 22))[0])

    def _read_tfra(self, data: memoryview, start: int, stop: int) -> None:
        self._add_fragments(min(struct.unpack_from(">I", data, start + 12)[0], (stop - start) // 11))

    def _read_mvhd(self, data: memoryview, start: int, stop: int) -> None:
        (self._time_scale,) = struct.unpack_from(">I", data, start + (20 if data[start] else 12))

    def _read_mdhd(self, data: memoryview, start: int, stop: int) -> None:
        (self._tracks[-1].time_scale,) = struct.unpack_from(">I", data, start + (20 if data[start] else 12))

    def _read_hdlr(self, data: memoryview, start: int, stop: int) -> None:
        self._tracks[-1].handlers.add(bytes(data[start + 8 : start + 12]))

    def _read_stco(self, data: memoryview, start: int, stop: int) -> None:
        self._tracks[-1].chunks += _count_rows(data, start + 4, 4)

    def _read_elst(self, data: memoryview, start: int, stop: int) -> None:
        self._tracks[-1].edits += _count_rows(data, start + 4, 12)


def _count_rows(data: memoryview, start: int, row_bytes: int) -> int:
    """Return the number at the start of a table, but no more than there are bytes for in the file."""
    rows: int = struct.unpack_from(">I", data, start)[0]
    return min(rows, (len(data) - start - 4) // row_bytes)


_READERS = {
    b"stsz": _Tables._read_stsz,
    b"stz2": _Tables._read_stz2,
    b"trun": _Tables._read_trun,
    b"senc": _Tables._read_encrypted,
    b"saiz": _Tables._read_saiz,
    b"keys": _Tables._read_keys,
    b"sidx": _Tables._read_sidx,
    b"tfra": _Tables._read_tfra,
    b"mvhd": _Tables._read_mvhd,
    b"mdhd": _Tables._read_mdhd,
    b"hdlr": _Tables._read_hdlr,
    b"stco": _Tables._read_stco,
    b"co64": _Tables._read_stco,
    b"elst": _Tables._read_elst,
}
"""Readers of the boxes that decide how much memory FFmpeg takes."""
_TABLES = frozenset({b"stts", b"stsc", b"stss", b"elst"})
"""Boxes whose rows are needed if a table is suspicious."""
