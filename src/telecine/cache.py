"""Packet indexes that were made before, so that a video that comes again is not walked again.

A video is known by the SHA-256 of all its bytes and by the limits it was read under. A path with its time of change
would be found faster, but says nothing about bytes and URLs, and can be made to lie; with a weaker hash, a stranger
could have another's video decoded by an index of his making. docs/pool.md says what the hash costs.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from telecine.frames import VideoInfo
from telecine.index import PacketIndex
from telecine.limits import Deadline, Limits
from telecine.source import Source

__all__ = ["IndexCache", "Key", "key_of"]

Key: TypeAlias = tuple[bytes, Limits]

_CHUNK = 8 << 20
"""Bytes hashed between two looks at the deadline: some milliseconds."""
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
