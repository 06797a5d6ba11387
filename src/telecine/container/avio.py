"""File object through which FFmpeg reads bytes in memory (a custom AVIOContext), and which loses no exception."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from telecine.deadline import Deadline

__all__ = ["SourceFile"]

_SEEK = struct.Struct("=?qi")
"""A requested seek: True if there is one, its offset and its whence."""


class SourceFile:
    """Read-only file object over bytes in memory, for ``av.open``. It has no name: FFmpeg must not probe by name.

    PyAV's I/O callbacks print or replace an exception, and FFmpeg goes on as after the end of the file. Therefore an
    exception of the deadline, which every read checks, or of a signal handler is kept, and :meth:`raise_error` raises
    it. A signal handler may run before the first line of a Python function, outside of any ``try`` in it. So none of
    the callbacks is a Python function: ``read`` and ``tell`` resume a generator inside its ``try``, and ``seek`` only
    records its arguments.
    """

    def __init__(self, data: memoryview, deadline: Deadline, on_read: Callable[[int, int], None]) -> None:
        """Open the bytes. ``on_read`` is called with offset and size of what is about to be read."""
        position, requested_seek = 0, bytearray(_SEEK.size)
        errors: list[BaseException | None] = []  # None in place of one that was raised again

        # these functions do not refer to this object: no reference cycle keeps the bytes alive
        def tell(_: None) -> int:
            nonlocal position
            requested, offset, whence = _SEEK.unpack(requested_seek)
            if requested:
                position = max(0, (0, position, len(data))[whence] + offset)
                requested_seek[0] = False
            return position

        def read(count: int) -> bytes:
            nonlocal position
            if errors:
                return b""
            start = tell(None)
            deadline.check("reading the packets", start, len(data))
            count = max(0, min(count, len(data) - start))
            on_read(start, count)
            chunk = bytes(data[start : start + count])
            position += count
            return chunk

        self._errors = errors
        self.read = _keep_errors(read, errors, b"").send
        self.tell = _keep_errors(tell, errors, 0).__next__
        self.seek = partial(_SEEK.pack_into, requested_seek, 0, True)

    def raise_error(self) -> None:
        """Raise the exception that ended the reading, if there is one that was not raised yet."""
        if self._errors and (error := self._errors[0]) is not None:
            self._errors[:] = [None]  # a kept exception would refer to itself through its traceback
            raise error


def _keep_errors(
    action: Callable[[Any], Any], errors: list[BaseException | None], fallback: object
) -> Generator[Any, Any, None]:
    """Return a started generator that answers a sent value with ``action(value)``, with ``fallback`` if that raises."""

    def answers() -> Generator[Any, Any, None]:
        answer = fallback
        while True:
            try:
                while True:  # inside the try, since a signal handler may also run where a loop repeats
                    value = yield answer
                    answer = fallback
                    answer = action(value)
            except GeneratorExit:
                raise
            except BaseException as error:
                errors.append(error)

    generator = answers()
    next(generator)
    return generator
