"""How FFmpeg reads bytes that are in memory, through PyAV."""

from __future__ import annotations

from functools import lru_cache

from telecine.deadline import Deadline
from telecine.errors import TelecineError

__all__ = ["Reader"]


class _File:
    """A binary file object over bytes in memory."""

    def __init__(self, data: memoryview, deadline: Deadline) -> None:
        self._data = data
        self._at = 0
        self._deadline = deadline
        self._failed = False
        self.ended = 0
        """Calls that came to their end."""

    def read(self, count: int) -> bytes:
        if self._failed:
            return b""  # PyAV keeps one error to raise; it would print a second one, for FFmpeg does try again
        try:
            self._deadline.check("reading the packets", self._at, len(self._data))
        except TelecineError:
            self._failed = True
            raise
        chunk = bytes(self._data[self._at : self._at + count])
        self._at += len(chunk)
        self.ended += 1
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, len(self._data))[whence]
        self._at = max(0, base + offset)
        self.ended += 1
        return self._at

    def tell(self) -> int:
        return self._at


class Reader:
    """FFmpeg's reader. Without a name: probing must not see one.

    What a signal handler raises in here is lost on the way: PyAV's callbacks print it or keep it, and FFmpeg sees the
    end of the file, or stands elsewhere than it thinks. So calls are counted when they begin, outside of Python, and
    when they have come to their end.
    """

    def __init__(self, data: memoryview, deadline: Deadline) -> None:
        self._file = _File(data, deadline)
        # without room for results, this is a counter of calls that is written in C
        self.read, self.seek = lru_cache(maxsize=0)(self._file.read), lru_cache(maxsize=0)(self._file.seek)
        self.tell = self._file.tell

    @property
    def interrupted(self) -> bool:
        """Whether any call did not come to its end."""
        return self.read.cache_info().misses + self.seek.cache_info().misses != self._file.ended
