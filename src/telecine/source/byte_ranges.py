"""A file elsewhere of which only the needed bytes are fetched, in ranges, into a sparse temporary file that is mapped.

Only MP4 and QuickTime files are read like that, because their tables say which bytes a frame needs. All boxes but those
of the media data are fetched at once, so that code that reads them finds them in memory. Bytes of the media data are
there once :meth:`ByteRanges.require` has returned. No byte is fetched twice, and all count for the limits.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from telecine.deadline import Deadline
from telecine.errors import SourceError, TelecineError
from telecine.source.read_ahead import MIN_BYTES, ReadAhead
from telecine.source.spool import explain_full_disk, map_descriptor
from telecine.source.urls import ByteLimit

__all__ = ["HEAD_BYTES", "ByteRanges", "open_file_ranges", "open_ranges"]

HEAD_BYTES = 1 << 18
"""Bytes at the start of the file that are given to :func:`open_ranges`."""
_MAX_SIZE = 1 << 40
_BLOCK_BYTES = 1 << 16
_MAX_REQUEST_BLOCKS = 128
"""Blocks of one request at most: 8 MiB."""
_MIN_AHEAD_BLOCKS, _MAX_AHEAD_BLOCKS = 4, 64
"""Blocks that are fetched beyond those asked for: at first, and at most if a file is read in order."""
_NUM_THREADS = 4
_MAX_BOXES = 32
"""Boxes on the top level; a fragmented file has one and more for each fragment."""
_SLOW_TO_SEEK = ("bz2", "gzip", "lzma", "zipfile", "tarfile")
"""Modules of file objects that read all that is between when they seek."""
_MISSING, _COMING, _PRESENT = 0, 1, 2

Fetch = Callable[[int, int, Deadline], bytes]
"""Returns the bytes at (offset, size), all of them; checks the deadline while it waits."""


def open_ranges(
    name: str, size: int, head: bytes, fetch: Fetch, limit: ByteLimit, deadline: Deadline
) -> ByteRanges | None:
    """Return the ranges of a large MP4 or QuickTime file, with all its tables; None for another file.

    Args:
        name: name of the source for messages.
        size: bytes of the file.
        head: the first bytes of the file.
        fetch: gets bytes of the file. Several threads may call it at once.
        limit: largest number of bytes that are fetched.
        deadline: checked while fetching.
    """
    if not MIN_BYTES < size <= _MAX_SIZE or head[4:8] != b"ftyp" or len(head) < HEAD_BYTES:
        return None
    ranges = ByteRanges(name, size, head, fetch, limit)
    try:
        if _fetch_tables(ranges, deadline):
            return ranges
    except BaseException:
        ranges.close()
        raise
    ranges.close()
    return None


def open_file_ranges(file: Any, name: str, limit: ByteLimit, deadline: Deadline) -> ByteRanges | None:
    """Return the ranges of a binary file object from its position on; None if it must be read as a whole.

    Then its position is where it was. Otherwise the caller must not use or close it until the source is closed.
    """
    if type(file).__module__ in _SLOW_TO_SEEK or not callable(getattr(file, "seekable", None)):
        return None
    lock = threading.Lock()

    def fetch(offset: int, size: int, deadline: Deadline) -> bytes:
        deadline.check(f"reading {name}")
        with lock, _foreign_errors(name):
            file.seek(start + offset)
            chunks = []
            while size > 0 and (chunk := file.read(size)):
                chunks.append(bytes(chunk))
                size -= len(chunk)
        return b"".join(chunks)

    with _foreign_errors(name):
        if not file.seekable():
            return None
        start = file.tell()
        size = file.seek(0, os.SEEK_END) - start
        file.seek(start)
    if size <= MIN_BYTES:
        return None
    ranges = open_ranges(name, size, fetch(0, HEAD_BYTES, deadline), fetch, limit, deadline)
    if ranges is None:
        with _foreign_errors(name):
            file.seek(start)
    return ranges


@contextmanager
def _foreign_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # text of a foreign exception may quote a URL with credentials
        raise SourceError(f"{name}: reading failed with {type(error).__name__}") from error


def _fetch_tables(ranges: ByteRanges, deadline: Deadline) -> bool:
    """Fetch all boxes but those of the media data. Returns False if there is no movie box, or there are too many."""
    position, has_movie = 0, False
    for _ in range(_MAX_BOXES):
        if position + 8 > ranges.size:
            return has_movie
        ranges.require(position, 16, deadline)
        head = bytes(ranges.mapping[position : position + 16])
        length, kind = struct.unpack_from(">I4s", head)
        if length == 1 and len(head) == 16:
            (length,) = struct.unpack_from(">Q", head, 8)
        length = length or ranges.size - position
        if length < 8 or kind in (b"moof", b"sidx"):
            return False
        if kind != b"mdat":
            ranges.require(position, length, deadline)
        has_movie |= kind == b"moov"
        position += length
    return False


class ByteRanges(ReadAhead):
    """Bytes of a file that are fetched on demand. Thread-safe."""

    def __init__(self, name: str, size: int, head: bytes, fetch: Fetch, limit: ByteLimit) -> None:
        super().__init__(None)
        self.on_close: Callable[[], None] = lambda: None
        """Called by :meth:`close`."""
        self.size = size
        """Bytes of the whole file."""
        self._name, self._fetch, self._limit = name, fetch, limit
        with explain_full_disk(name):
            self._file = tempfile.TemporaryFile(prefix="telecine-", buffering=0)
            try:
                os.truncate(self._file.fileno(), size)
                self.mapping = map_descriptor(self._file.fileno(), size)
                """The bytes, zero where they were not fetched."""
            except BaseException:
                self._file.close()
                raise
        self._changed = threading.Condition()
        self._state = bytearray(-(-size // _BLOCK_BYTES))
        self._fetched = len(head)
        self._next, self._ahead = 0, _MIN_AHEAD_BLOCKS
        self._threads: ThreadPoolExecutor | None = None
        self._background = Deadline()
        kept = len(head) // _BLOCK_BYTES
        self._write(0, head[: kept * _BLOCK_BYTES])
        self._state[:kept] = bytes([_PRESENT]) * kept

    def require(self, offset: int, size: int, deadline: Deadline) -> None:
        """Return when bytes of the file are in the mapping, and some more if the file is read in order.

        Raises:
            SourceError: they cannot be fetched, or the file was changed.
            LimitError: too many bytes would be fetched.
            DeadlineError, Cancelled: from ``deadline``.
        """
        first, last = self._blocks(offset, size)
        if self._state.count(_PRESENT, first, last) == last - first:
            return
        with self._changed:
            # a read that continues the one before it fetches twice as much as that
            is_in_order = first <= self._next <= last
            self._ahead = min(2 * self._ahead, _MAX_AHEAD_BLOCKS) if is_in_order else _MIN_AHEAD_BLOCKS
            affordable = (self._limit.size - self._fetched) // _BLOCK_BYTES - (last - first)
            self._next = last + max(0, min(self._ahead, affordable))
            claimed = self._claim(first, min(self._next, len(self._state)))
        self._fetch_all(claimed, deadline)
        while True:
            with self._changed:
                if self._state.count(_PRESENT, first, last) == last - first:
                    return
                claimed = self._claim(first, last)
                if not claimed:
                    self._changed.wait(0.05)
            deadline.check("fetching the video")
            self._fetch_all(claimed, deadline)

    def prefetch(self, offset: int, size: int) -> None:
        """Start to fetch bytes that are needed soon."""
        with self._changed:
            if self._background.cancelled or size <= 0:
                return
            claimed = self._claim(*self._blocks(offset, size))
            if claimed and self._threads is None:
                self._threads = ThreadPoolExecutor(_NUM_THREADS, "telecine-fetch")
            for run in claimed:
                assert self._threads is not None
                self._threads.submit(self._fetch_ahead, run)

    def read_in_order(self) -> None:
        """Expect that all bytes are read in their order."""
        with self._changed:
            self._ahead = _MAX_AHEAD_BLOCKS

    def close(self) -> None:
        """End what is being fetched, and free the file."""
        with self._changed:
            self._background.cancel()
            self._file.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        on_close, self.on_close = self.on_close, lambda: None
        on_close()

    def _blocks(self, offset: int, size: int) -> tuple[int, int]:
        end = min(offset + size, self.size)
        return min(offset // _BLOCK_BYTES, len(self._state)), -(-end // _BLOCK_BYTES)

    def _claim(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the missing blocks as runs for one request each, and mark them as coming."""
        runs: list[tuple[int, int]] = []
        while (first := self._state.find(_MISSING, first, last)) >= 0:
            stop = first + 1
            while stop < min(last, first + _MAX_REQUEST_BLOCKS) and self._state[stop] == _MISSING:
                stop += 1
            self._state[first:stop] = bytes([_COMING]) * (stop - first)
            runs.append((first, stop))
            first = stop
        return runs

    def _fetch_all(self, runs: list[tuple[int, int]], deadline: Deadline) -> None:
        """Fetch runs of blocks. Those that could not be fetched are missing again."""
        left = iter(runs)
        try:
            for run in left:
                self._fetch_run(run, deadline)
        finally:
            self._release(left)

    def _release(self, runs: Iterator[tuple[int, int]]) -> None:
        with self._changed:
            for first, stop in runs:
                self._state[first:stop] = bytes([_MISSING]) * (stop - first)
            self._changed.notify_all()

    def _fetch_run(self, run: tuple[int, int], deadline: Deadline) -> None:
        first, stop = run
        offset = first * _BLOCK_BYTES
        size = min(stop * _BLOCK_BYTES, self.size) - offset
        try:
            with self._changed:
                self._limit.check(self._name, self._fetched + size, at_least=True)
                self._fetched += size
            data = self._fetch(offset, size, deadline)
            if len(data) != size:
                raise SourceError(f"{self._name}: {len(data)} of {size} bytes came; the file was changed or is cut off")
            with self._changed:
                if self._background.cancelled:
                    return
                self._write(offset, data)
                self._state[first:stop] = bytes([_PRESENT]) * (stop - first)
                self._changed.notify_all()
        except BaseException:
            self._release(iter([run]))
            raise

    def _fetch_ahead(self, run: tuple[int, int]) -> None:
        """Fetch in a thread. An error is left to the read that needs the bytes, which tries again."""
        with suppress(TelecineError, OSError):
            self._fetch_run(run, self._background)

    def _write(self, offset: int, data: bytes) -> None:
        left = memoryview(data)
        with explain_full_disk(self._name):
            while left:
                written = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[written:], offset + written
