"""Advice to the system which bytes of a large mapped file are needed, so that it reads few others from a disk."""

from __future__ import annotations

import mmap
from contextlib import suppress

from telecine.deadline import Deadline

__all__ = ["MIN_BYTES", "ReadAhead"]

MIN_BYTES = 32 << 20
"""Size from which a file is read in parts; the system may read a smaller one as it likes."""

_LARGE_READ_BYTES = 1 << 16


class ReadAhead:
    """Read-ahead of one mapped file. Thread-safe.

    At first only what is asked for is read. Without advice the system reads megabytes around each access.
    """

    def __init__(self, mapping: mmap.mmap | None, start: int = 0) -> None:
        """Take the mapping, if there is one, and the byte of it at which the source begins."""
        is_large = mapping is not None and len(mapping) > MIN_BYTES and hasattr(mapping, "madvise")
        self._mapping, self._start = mapping if is_large else None, start
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_RANDOM)

    def require(self, offset: int, size: int, deadline: Deadline) -> None:
        """Return when bytes of the source can be read: at once, as they are mapped or in memory."""
        if size >= _LARGE_READ_BYTES:  # a packet is prefetched with others
            self.prefetch(offset, size)

    def prefetch(self, offset: int, size: int) -> None:
        """Start to read bytes of the source that are needed soon."""
        if (mapping := self._mapping) is not None and size > 0:
            first = (self._start + offset) // mmap.PAGESIZE * mmap.PAGESIZE
            with suppress(ValueError):  # it was closed meanwhile
                last = min(self._start + offset + size, len(mapping))
                mapping.madvise(mmap.MADV_WILLNEED, first, last - first)

    def read_in_order(self) -> None:
        """Let the system read ahead by itself, because all bytes are read in their order."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            with suppress(ValueError):
                mapping.madvise(mmap.MADV_NORMAL)

    def close(self) -> None:
        """Do nothing more."""
        self._mapping = None
