"""A fair lock that lets one thread at a time read packets.

PyAV releases the interpreter lock for each packet. A thread that wants it back while another holds it sleeps and is
woken, so threads that read at once spend many times more on that than on reading. One after the other all are done
sooner, even the last one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from telecine.deadline import Deadline

__all__ = ["SCAN_LOCK", "ScanLock", "Ticket"]

_MAX_HOLD_SECONDS = 0.05
"""Time after which the owner goes to the end of the queue if others wait: most indexes take a tenth of it."""
_STALL_SECONDS = 0.05
"""Time without progress after which the owner loses the lock. A pool has paused it, or other threads than these keep it
from running: while a thread never releases the interpreter lock, all are slow, and faster together."""


class ScanLock:
    """A lock with one owner at a time, granted in the order of the requests. Thread-safe.

    It is no mutex: an owner that stalls loses the lock and works on without it. An interrupt between any two lines
    makes no thread wait forever.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget owner and queue: in the child of a fork, their threads do not exist."""
        self.mutex = threading.RLock()  # reentrant, since a signal handler may load a video itself
        self.owner: Ticket | None = None
        self.waiting: deque[Ticket] = deque()
        """Tickets of the threads that wait, first come first served."""

    @contextmanager
    def acquire(self, deadline: Deadline, doing: str) -> Iterator[Ticket]:
        """Wait for the lock, and own it until the block ends. Deadline and cancellation end the wait with an error.

        ``doing`` describes the wait in that error's message.
        """
        ticket = Ticket(self, deadline, doing)
        try:
            ticket.wait()
            yield ticket
        finally:
            ticket.release()

    def hand_over(self) -> None:
        """Make the first waiting thread the owner. The caller holds the mutex."""
        try:
            first = self.waiting.popleft()
        except IndexError:
            self.owner = None
            return
        first.granted = first.last_progress = time.monotonic()
        self.owner = first
        with suppress(RuntimeError):  # it is awake already
            first.wake.release()


class Ticket:
    """One thread's request for a :class:`ScanLock`, from :meth:`ScanLock.acquire`. Used by that thread only."""

    def __init__(self, lock: ScanLock, deadline: Deadline, doing: str) -> None:
        self._lock, self._deadline, self._doing = lock, deadline, doing
        self.wake = threading.Lock()
        """Released when this ticket becomes the owner."""
        self.granted = self.last_progress = 0.0

    def wait(self) -> None:
        """Join the queue, and wait until this ticket is the owner."""
        lock = self._lock
        self.wake.acquire(blocking=False)
        with lock.mutex:
            lock.waiting.append(self)
        while True:
            with lock.mutex:
                owner = lock.owner
                if owner is None or time.monotonic() - owner.last_progress > _STALL_SECONDS:
                    lock.hand_over()
                # the state decides, not the wake-up: an interrupt may come after the queue changed and before it
                if lock.owner is self or self not in lock.waiting:
                    return
            if not self.wake.acquire(timeout=_STALL_SECONDS):
                self._deadline.check(self._doing)

    def report_progress(self) -> None:
        """Note that the work goes on, and let others go first if it has gone on for long."""
        lock = self._lock
        with lock.mutex:
            self.last_progress = time.monotonic()
            if lock.owner is not self or not lock.waiting or self.last_progress - self.granted <= _MAX_HOLD_SECONDS:
                return
            lock.hand_over()
        self.wait()

    def release(self) -> None:
        """Hand the lock over, or leave the queue."""
        lock = self._lock
        with lock.mutex:
            if lock.owner is self:
                lock.hand_over()
            else:
                with suppress(ValueError):
                    lock.waiting.remove(self)


SCAN_LOCK = ScanLock()
"""The lock of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SCAN_LOCK.reset)
