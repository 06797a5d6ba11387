"""Bounds the memory of the requests of a pool: each one leases its peak before it decodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from telecine.backends.base import Backend, DecodeRequest, MemoryCost
from telecine.errors import LimitError, OverloadedError

__all__ = ["INDEX_BYTES_PER_CORE", "Lease", "MemoryBudget", "estimate_memory"]

INDEX_BYTES_PER_CORE = 48 << 20
"""Bytes that reading one packet index takes at most for usual videos: 32 MiB of kept packets, the index, and buffers.
The size is not known in advance. So a pool reserves this for every core instead of leasing it."""

_POLL_SECONDS = 0.05
"""Seconds between two checks of a request that waits for memory."""


def estimate_memory(request: DecodeRequest, backend: Backend, cores: int, copied: int = 0) -> MemoryCost:
    """Estimate the peak memory of a decode: the backend's own, the packets of the index, and the copied source.

    Args:
        request: what to decode, with its plan.
        backend: the backend that will decode.
        cores: cores that the decode may keep busy.
        copied: bytes of the source that the pool holds in memory.
    """
    return backend.memory_cost(replace(request, cores=cores)) + MemoryCost(request.packet_bytes + copied)


class Lease:
    """Bytes of a budget that a request may use. A context manager that returns them."""

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._budget = budget
        self._nbytes = nbytes
        self._is_abandoned = False
        self._is_released = False

    def release(self) -> None:
        """Return the bytes to the budget. A second call does nothing."""
        self._budget._return(self)

    def abandon(self) -> None:
        """Count the bytes as lost: a thread that hangs holds them. It may still release them."""
        self._budget._abandon(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryBudget:
    """A number of bytes that requests lease, first come first served. Thread-safe.

    Args:
        capacity: bytes.
        name: kind of memory, for messages.
    """

    def __init__(self, capacity: int, name: str = "memory") -> None:
        self.capacity = capacity
        self.name = name
        self.leased = 0
        """Bytes leased to requests, without the lost ones."""
        self.lost = 0
        """Bytes leased to threads that hang."""
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a lease."""
        return len(self._queue)

    def try_lease(self, nbytes: int) -> Lease | None:
        """Return a lease, or None if the bytes are not free now or other requests wait.

        Raises:
            LimitError: the budget is smaller than that.
            OverloadedError: threads that hang hold too much of the budget.
        """
        with self._changed:
            self._check_possible(nbytes)
            return None if self._queue else self._take(nbytes)

    def lease(self, nbytes: int, check: Callable[[], None]) -> Lease:
        """Wait in the queue for a lease.

        Args:
            nbytes: number of bytes.
            check: called twenty times a second while waiting; an exception that it raises ends the wait.

        Raises:
            LimitError: the budget is smaller than that.
            OverloadedError: threads that hang hold too much of the budget.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            while True:
                with self._changed:
                    self._check_possible(nbytes)
                    if self._queue[0] is ticket and (lease := self._take(nbytes)) is not None:
                        return lease
                    self._changed.wait(_POLL_SECONDS)
                check()  # without the lock: it may call the caller's code
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _take(self, nbytes: int) -> Lease | None:
        if self.leased + self.lost + nbytes > self.capacity:
            return None
        self.leased += nbytes
        return Lease(self, nbytes)

    def _check_possible(self, nbytes: int) -> None:
        if nbytes > self.capacity:
            raise LimitError(
                f"the request takes {nbytes} bytes of {self.name} at its peak; the pool has {self.capacity}. "
                "Ask for fewer frames, a smaller size or fewer threads, or give the pool more"
            )
        if nbytes > self.capacity - self.lost:
            raise OverloadedError(
                f"the request takes {nbytes} bytes of {self.name} at its peak; the pool has {self.capacity}, of which "
                f"threads that hang hold {self.lost}. Try again later"
            )

    def _return(self, lease: Lease) -> None:
        with self._changed:
            if not lease._is_released:
                lease._is_released = True
                if lease._is_abandoned:
                    self.lost -= lease._nbytes
                else:
                    self.leased -= lease._nbytes
            self._changed.notify_all()

    def _abandon(self, lease: Lease) -> None:
        with self._changed:
            if not lease._is_released and not lease._is_abandoned:
                lease._is_abandoned = True
                self.leased -= lease._nbytes
                self.lost += lease._nbytes
            self._changed.notify_all()
