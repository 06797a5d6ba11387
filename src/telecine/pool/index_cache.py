"""Caches packet indexes, so that the packets of a video are read only once.

A local file is identified by its device, inode, size and times of change. Other sources are identified by a key that
the caller gives or, if the pool is made with ``hash_content=True``, by the SHA-256 of their bytes. A weaker hash would
let an attacker choose the index by which another user's video is decoded. The limits of the request are part of the
identity, because they decide which index is allowed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from telecine.deadline import Deadline
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.pipeline import IndexAndInfo
from telecine.source.source import Source, file_version

__all__ = ["IndexCache", "SourceIdentity", "hash_content", "settled_file_version"]

_CHUNK_BYTES = 8 << 20
"""Bytes hashed between two checks of the deadline: some milliseconds."""
_MIN_FILE_AGE_NS = 20_000_000
"""Age of a file that is cached. Its times have a resolution of 10 ms, so a later change may not alter them before."""
_ENTRY_BYTES = 4096
"""Bytes of a cache entry in addition to its arrays."""
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def settled_file_version(source: Any) -> tuple[int, ...] | None:
    """Return the version of the local file that a path leads to; None for other sources, or if it changed just now."""
    if not isinstance(source, str | os.PathLike) or (isinstance(source, str) and _URL.match(source)):
        return None
    version = file_version(source)
    return version if version and time.time_ns() - version[-1] >= _MIN_FILE_AGE_NS else None


def hash_content(source: Source, deadline: Deadline) -> bytes:
    """Return the SHA-256 of all bytes of a source. The deadline is checked between chunks."""
    digest = hashlib.sha256()
    for start in range(0, source.size, _CHUNK_BYTES):
        deadline.check("hashing the source", start, source.size)
        digest.update(source.data[start : start + _CHUNK_BYTES])
    return digest.digest()


class SourceIdentity:
    """Identity of a source for the cache. Made before the source is opened.

    ``cache_key`` is the caller's own key, or None. ``may_hash`` is True if sources in memory may be hashed.
    """

    def __init__(self, source: Any, cache_key: Hashable, may_hash: bool) -> None:
        self._source = source
        self._cache_key = cache_key
        self._version = settled_file_version(source)
        self._may_hash = may_hash and _is_immutable(source)

    def key(self, opened: Source, limits: Limits, deadline: Deadline) -> Hashable:
        """Return the key of the opened source in the cache, or None if it cannot be cached."""
        if not self.is_unchanged():
            return None
        if self._cache_key is not None:
            return "key", self._cache_key, opened.size, limits
        if self._version is not None:
            return "file", self._version, limits
        return ("sha256", hash_content(opened, deadline), limits) if self._may_hash else None

    def is_unchanged(self) -> bool:
        """Return True if the file that the source leads to is the same as before it was opened."""
        return settled_file_version(self._source) == self._version


def _is_immutable(source: Any) -> bool:
    """Return True if no code can change the bytes of a source: ``bytes``, a view of them, or a ``data:`` URL."""
    if isinstance(source, str):
        return source[:5].lower() == "data:"
    return isinstance(source.obj if isinstance(source, memoryview) else source, bytes)


class IndexCache:
    """Least recently used cache of packet indexes and the video information that belongs to them. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """Bytes for all entries; 0 caches nothing."""
        self.nbytes = 0
        """Bytes of all entries."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[IndexAndInfo, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> IndexAndInfo | None:
        """Return the index and the information of a video, or None. The decode has to read the packets again."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, index: PacketIndex, info: VideoInfo) -> None:
        """Add an index, and remove the least recently used ones if the cache is full."""
        # a kept packet serves one decode only: the decoder writes into it
        index = replace(index, packets=None)
        values = [getattr(owner, field.name) for owner in (index, index.timeline) for field in fields(owner)]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        nbytes = _ENTRY_BYTES + sum(array.nbytes for array in arrays)
        if nbytes > self.capacity:
            return
        for array in arrays:
            array.flags.writeable = False  # shared from now on, also with the frames of every caller
        with self._lock:
            if key in self._entries:
                self.nbytes -= self._entries.pop(key)[1]
            while self.nbytes + nbytes > self.capacity:
                self.nbytes -= self._entries.popitem(last=False)[1][1]
            self._entries[key] = (index, info), nbytes
            self.nbytes += nbytes
