"""Hold a stream of bytes in memory or, if it is long, in a mapped temporary file."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import sys
import tempfile
from collections.abc import Iterable, Iterator

from telecine.errors import OverloadedError

__all__ = ["explain_full_disk", "map_descriptor", "reraise_foreign", "spool"]

_MAX_IN_MEMORY = 4 << 20
"""Bytes that are held in memory; a longer stream goes to a temporary file."""


def reraise_foreign(error: OSError) -> None:
    """Raise ``error`` again if a signal handler raised it and no system call: it has no error number then."""
    if error.errno is None:
        raise error


def map_descriptor(descriptor: int, size: int) -> mmap.mmap:
    """Map ``size`` bytes of an open file, read-only."""
    if sys.version_info >= (3, 13):
        # otherwise each mapping keeps a duplicate of the descriptor, and many open sources exhaust them
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def spool(chunks: Iterable[bytes], name: str) -> tuple[memoryview, mmap.mmap | None]:
    """Keep chunks in memory or, beyond a few MB, in an unlinked temporary file that is then mapped."""
    memory = bytearray()
    rest = iter(chunks)
    for chunk in rest:
        memory += chunk
        if len(memory) > _MAX_IN_MEMORY:
            return _write_temporary_file(itertools.chain([bytes(memory)], rest), name)
    return memoryview(memory).toreadonly(), None


def _write_temporary_file(chunks: Iterable[bytes], name: str) -> tuple[memoryview, mmap.mmap | None]:
    with explain_full_disk(name):
        file = tempfile.TemporaryFile(prefix="telecine-", buffering=0)
    with file:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            left = memoryview(chunk)
            with explain_full_disk(name):
                while left:
                    left = left[file.write(left) :]
        with explain_full_disk(name):
            mapping = map_descriptor(file.fileno(), size)
    return memoryview(mapping), mapping


@contextlib.contextmanager
def explain_full_disk(name: str) -> Iterator[None]:
    """Convert the errors of the temporary file. Used around it alone: the chunks may raise an ``OSError`` too."""
    try:
        yield
    except OSError as error:
        reraise_foreign(error)
        raise OverloadedError(
            f"{name}: no space for it in the temporary folder ({error.strerror}); free some or set TMPDIR to another"
        ) from error
