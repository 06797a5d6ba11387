"""Taking turns at work that lets go of the interpreter lock again and again.

PyAV does so for each packet. A thread that finds the lock taken when it wants it back sleeps and is woken, and threads
that read at once spend many times more on that than on reading. One after the other all are done sooner, even the last.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from telecine.limits import Deadline

__all__ = ["Baton", "Hold"]

_LONG = 0.05
"""Seconds after which a holder goes to the end of the line, if there is one: most indices take a tenth."""
_STUCK = 0.05
"""Seconds between two steps after which it is taken from its holder: a pool made it wait, or it is other threads than
these that it waits for. Beside one that never lets go of the lock by itself, all are slow, and faster together."""


class Baton:
    """Held by one thread at a time, and passed on in the order in which they asked. Thread-safe.

    Not a lock: a holder that is stuck loses it, and works on without.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.line: deque[Hold] = deque()
        """Who asked for it, first come first served. The first one holds it."""

    @contextmanager
    def held(self, deadline: Deadline, doing: str) -> Iterator[Hold]:
        """Wait for it, and hold it until the block ends.

        Args:
            deadline: checked while waiting.
            doing: what it is held for, for the message of the deadline.

        Raises:
            DeadlineError: the time was used up while waiting.
            Cancelled: the request was withdrawn meanwhile.
        """
        hold = Hold(self, deadline, doing)
        try:
            hold.take()
            yield hold
        finally:
            hold.leave()


class Hold:
    """A place in the line for a baton, from :meth:`Baton.held`. For one thread."""

    def __init__(self, baton: Baton, deadline: Deadline, doing: str) -> None:
        self._baton, self._deadline, self._doing = baton, deadline, doing
        self._came = threading.Event()
        self._since = self._stepped = 0.0

    def take(self) -> None:
        """Stand in line, and wait."""
        baton = self._baton
        self._came.clear()
        with baton.lock:
            baton.line.append(self)
            if self._holds():
                self._begin()
        while not self._came.wait(_STUCK):
            self._deadline.check(self._doing)
            with baton.lock:
                if baton.line and time.monotonic() - baton.line[0]._stepped > _STUCK:
                    self._pass_on()

    def step(self) -> None:
        """Say that work goes on; give way to others if it has gone on for long."""
        baton = self._baton
        with baton.lock:
            self._stepped = time.monotonic()
            if not self._holds() or len(baton.line) == 1 or self._stepped - self._since <= _LONG:
                return
            self._pass_on()
        self.take()

    def leave(self) -> None:
        """Give it back, or the place in line."""
        baton = self._baton
        with baton.lock:
            if self._holds():
                self._pass_on()
            elif self in baton.line:
                baton.line.remove(self)

    def _holds(self) -> bool:
        line = self._baton.line
        return bool(line) and line[0] is self

    def _begin(self) -> None:
        self._since = self._stepped = time.monotonic()
        self._came.set()

    def _pass_on(self) -> None:
        """Take it from whoever holds it. The lock is held."""
        line = self._baton.line
        line.popleft()
        if line:
            line[0]._begin()
