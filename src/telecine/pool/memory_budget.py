"""Bounds the memory of the requests of a pool: each one leases its peak before it decodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from telecine.backends.base import Backend, DecodeRequest, MemoryCost
from telecine.errors import LimitError, OverloadedError

__all__ = ["Lease", "MemoryBudget", "estimate_memory", "wait_until"]

_POLL_SECONDS = 0.05
"""Seconds between two checks of a request that waits."""

Result = TypeVar("Result")


def wait_until(condition: threading.Condition, ready: Callable[[], Result | None], check: Callable[[], None]) -> Result:
    """Wait for a true result of ``ready`` and return it. An error that ``check`` raises meanwhile ends the wait."""
    while True:
        with condition:
            if result := condition.wait_for(ready, _POLL_SECONDS):
                return result
        check()  # without the lock: it may call the caller's code


def estimate_memory(request: DecodeRequest, backend: Backend, cores: int, copied: int = 0) -> MemoryCost:
    """Estimate the peak memory of a decode: the backend's own, the packets of the index, and the copied source."""
    return backend.memory_cost(replace(request, cores=cores)) + MemoryCost(request.packet_bytes + copied)


class Lease(AbstractContextManager["Lease"]):
    """Bytes of a budget that a request may use. A context manager that returns them."""

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._budget = budget
        self.nbytes = nbytes
        self.is_lost = False
        """True if a thread that hangs holds the bytes."""

    def release(self) -> None:
        """Return the bytes to the budget. A second call does nothing."""
        with self._budget.changed:
            self._budget.leases.discard(self)
            self._budget.changed.notify_all()

    def abandon(self) -> None:
        """Count the bytes as lost: a thread that hangs holds them. It may still release them."""
        with self._budget.changed:
            self.is_lost = True
            self._budget.changed.notify_all()

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryBudget:
    """A number of bytes that requests lease, first come first served. Thread-safe."""

    def __init__(self, capacity: int, name: str = "memory") -> None:
        self.capacity = capacity
        self.name = name
        """Kind of memory, for messages."""
        self.leases: set[Lease] = set()
        self.changed = threading.Condition()
        """Held to change the leases, and notified then."""
        self._queue: deque[object] = deque()

    @property
    def leased(self) -> int:
        """Bytes leased to requests, without the lost ones."""
        with self.changed:
            return sum(lease.nbytes for lease in self.leases if not lease.is_lost)

    @property
    def lost(self) -> int:
        """Bytes leased to threads that hang."""
        with self.changed:
            return sum(lease.nbytes for lease in self.leases if lease.is_lost)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a lease."""
        return len(self._queue)

    def try_lease(self, nbytes: int) -> Lease | None:
        """Return a lease, or None if the bytes are not free now or other requests wait. Errors as for :meth:`lease`."""
        with self.changed:
            self._check_possible(nbytes)
            return None if self._queue else self._take(nbytes)

    def lease(self, nbytes: int, check: Callable[[], None]) -> Lease:
        """Wait in the queue for a lease. ``check`` is called meanwhile and may raise to end the wait.

        Raises:
            LimitError: the budget is smaller than that.
            OverloadedError: threads that hang hold too much of the budget.
        """
        ticket = object()

        def take_in_turn() -> Lease | None:
            self._check_possible(nbytes)
            return self._take(nbytes) if self._queue[0] is ticket else None

        with self.changed:
            self._queue.append(ticket)
        try:
            return wait_until(self.changed, take_in_turn, check)
        finally:
            with self.changed:
                self._queue.remove(ticket)
                self.changed.notify_all()

    def _take(self, nbytes: int) -> Lease | None:
        if self.leased + self.lost + nbytes > self.capacity:
            return None
        lease = Lease(self, nbytes)
        self.leases.add(lease)
        return lease

    def _check_possible(self, nbytes: int) -> None:
        demand = f"the request takes {nbytes} bytes of {self.name} at its peak; the pool has {self.capacity}"
        if nbytes > self.capacity:
            raise LimitError(f"{demand}. Ask for fewer frames, a smaller size or fewer threads, or give the pool more")
        if nbytes > self.capacity - self.lost:
            raise OverloadedError(f"{demand}, of which threads that hang hold {self.lost}. Try again later")
