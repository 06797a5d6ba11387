"""Packet indexes that were made before, so that a video that comes again is not walked again.

A video is known by the SHA-256 of all its bytes and by the limits it was read under. A path with its time of change
would be found faster, but says nothing about bytes and URLs, and can be made to lie; with a weaker hash, a stranger
could have another's video decoded by an index of his making. docs/pool.md says what the hash costs.

For the same reason an index is kept only where the bytes were the same when they were hashed and when they were walked.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from telecine.deadline import Deadline
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.source.source import Source

__all__ = ["IndexCache", "Key", "Version", "key_of", "version_of"]

Key: TypeAlias = tuple[bytes, Limits]
Version: TypeAlias = tuple[int, ...]

_CHUNK = 8 << 20
"""Bytes hashed between two looks at the deadline: some milliseconds."""
_MAPPED = (io.FileIO, io.BufferedReader, io.BufferedRandom, tempfile._TemporaryFileWrapper)
"""The kinds of file objects that source.py may map. It copies what others give, and asking them has effects: a
``SpooledTemporaryFile`` moves to the disk when asked for its descriptor."""
_ENTRY_BYTES = 4096
"""What an entry takes beside its arrays."""


def key_of(source: Source, limits: Limits, deadline: Deadline) -> Key:
    """What a source is known by.

    Args:
        source: all of it is read.
        limits: that it is read under. They decide what the index may be.
        deadline: checked between chunks.
    """
    digest = hashlib.sha256()
    for start in range(0, source.size, _CHUNK):
        deadline.check("looking the source up", start, source.size)
        digest.update(source.data[start : start + _CHUNK])
    return digest.digest(), limits


def version_of(given: Any) -> Version | None:
    """What tells, asked before a source is opened and after it was read, that its bytes were the same all along.

    Of a file: which one it is, its size, and when it was changed. The time of change of the inode is part of it: that
    of the content can be set back. Where the bytes cannot change, or are copied, it is always the same.

    Args:
        given: the source, as the caller gave it.

    Returns:
        None where nothing can tell: a buffer that others may write to, a file that cannot be asked, a ``file:`` URL,
        which may not be followed before its limits are known.
    """
    scheme = given[:6].lower() if isinstance(given, str) else ""
    if scheme.startswith(("http:", "https:", "data:")):
        return ()
    if isinstance(given, (str, os.PathLike)):
        try:
            return None if scheme.startswith("file:") else _version(os.stat(given))
        except (OSError, ValueError, TypeError):
            return None
    try:
        return () if isinstance(memoryview(given).obj, bytes) else None
    except (TypeError, ValueError, BufferError):
        pass
    try:
        return _version(os.fstat(given.fileno())) if isinstance(given, _MAPPED) else ()
    except Exception:  # what a stranger's object below raises: it has no descriptor, so it is copied
        return ()


def _version(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, eq=False)
class _Entry:
    index: PacketIndex
    info: VideoInfo
    nbytes: int


class IndexCache:
    """The packet indexes used last, and the facts that go with them. Thread-safe.

    Args:
        capacity: bytes that all of them may take; 0 keeps nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes taken now."""
        return self._nbytes

    def get(self, key: Key) -> tuple[PacketIndex, VideoInfo] | None:
        """The index of a video and its facts, or None. The index has no packets; whoever decodes reads them again."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.index, entry.info

    def put(self, key: Key, index: PacketIndex, info: VideoInfo) -> None:
        """Remember an index, and forget those that were not used for longest where there is no room."""
        # a kept packet serves one decode only: the decoder's feeder writes into it
        index = replace(index, packets=None)
        arrays = _arrays(index)
        nbytes = _ENTRY_BYTES + sum(array.nbytes for array in arrays)
        if nbytes > self.capacity:
            return
        for array in arrays:
            array.flags.writeable = False  # it is shared from now on, also by the frames of every caller
        with self._lock:
            if key in self._entries:
                self._nbytes -= self._entries.pop(key).nbytes
            while self._nbytes + nbytes > self.capacity:
                self._nbytes -= self._entries.popitem(last=False)[1].nbytes
            self._entries[key] = _Entry(index, info, nbytes)
            self._nbytes += nbytes


def _arrays(index: PacketIndex) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    parts = [getattr(part, field.name) for part in (index, index.timeline) for field in fields(part)]
    return [part for part in parts if isinstance(part, np.ndarray)]
