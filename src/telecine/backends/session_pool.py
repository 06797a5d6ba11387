"""Decoder sessions of a library: a limited number in this process, kept open from one request to the next."""

from __future__ import annotations

import atexit
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from telecine.deadline import Deadline

__all__ = ["POLL_SECONDS", "Session", "SessionPool"]

POLL_SECONDS = 0.05
"""Time between two checks of the deadline during a wait."""
_log = logging.getLogger(__name__)


class Session(ABC):
    """One decoder, which outlives requests. Not thread-safe."""

    key: object = None
    """Identifies the streams that it can decode."""
    is_reusable = True
    """False if it must not decode another stream."""
    reused = False
    """True if it has decoded another stream before."""

    @abstractmethod
    def close(self) -> None:
        """Free the decoder now, even if other references to this object exist."""


_Session = TypeVar("_Session", bound=Session)


class SessionPool(Generic[_Session]):
    """The decoder sessions of a backend. Thread-safe. Creating one takes 0.1 to 0.3 s, so idle ones are kept."""

    def __init__(self, size_option: str, is_cleared_at_exit: bool = False) -> None:
        self.size = 0
        """Largest number of sessions, busy and idle ones together; set by the first request."""
        self._size_option, self._is_cleared_at_exit = size_option, is_cleared_at_exit
        self._lock = threading.Lock()
        self._slots: threading.Semaphore | None = None
        self._has_warned = False
        self._idle: list[_Session] = []  # in the order of their last use
        self._num_busy = 0

    @contextmanager
    def slot(self, wanted: int | None, default: int, deadline: Deadline) -> Iterator[None]:
        """Wait until the caller may use sessions, one at a time while it holds the slot."""
        with self._lock:
            if self._slots is None:
                self.size = wanted or default
                self._slots = threading.Semaphore(self.size)
                if self._is_cleared_at_exit:
                    atexit.register(self._idle.clear)  # while the driver is still loaded
            elif wanted not in (None, self.size) and not self._has_warned:
                self._has_warned = True
                _log.warning("%s is %d; it stays %d, as the first request said", self._size_option, wanted, self.size)
            slots = self._slots
        while not slots.acquire(timeout=POLL_SECONDS):
            deadline.check("waiting for a decoder session")
        try:
            yield
        finally:
            slots.release()

    @contextmanager
    def session(
        self, key: object, create: Callable[[_Session | None], _Session], new: bool = False
    ) -> Iterator[_Session]:
        """Lend a session for streams of this key, which the caller drains. It is kept unless the block raises.

        If none is idle, or a new one is asked for, ``create`` gets the session that must make room, and replaces it.
        """
        evicted = None
        with self._lock:
            session = None if new else next((idle for idle in reversed(self._idle) if idle.key == key), None)
            if session is not None:
                session.reused = True
                self._idle.remove(session)
            elif self._idle and len(self._idle) + self._num_busy >= self.size:
                evicted = self._idle.pop(0)
            self._num_busy += 1
        is_drained = False
        try:
            if session is None:
                session = create(evicted)  # outside the lock: it takes time
                session.key = key
            yield session
            is_drained = True
        finally:
            is_kept = session is not None and is_drained and session.is_reusable
            if session is not None and not is_kept:
                session.close()
            with self._lock:
                self._num_busy -= 1
                if session is not None and is_kept:
                    self._idle.append(session)
