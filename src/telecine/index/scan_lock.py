"""Taking turns at work that lets go of the interpreter lock again and again.

PyAV does so for each packet. A thread that finds the lock taken when it wants it back sleeps and is woken, and threads
that read at once spend many times more on that than on reading. One after the other all are done sooner, even the last.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from telecine.deadline import Deadline

__all__ = ["Baton", "Hold"]

_LONG = 0.05
"""Seconds after which a holder goes to the end of the line, if there is one: most indices take a tenth."""
_STUCK = 0.05
"""Seconds between two steps after which it is taken from its holder: a pool made it wait, or it is other threads than
these that it waits for. Beside one that never lets go of the lock by itself, all are slow, and faster together."""


class Baton:
    """Held by one thread at a time, and passed on in the order in which they asked. Thread-safe.

    Not a lock: a holder that is stuck loses it, and works on without. Nor does an interrupt that comes in between two
    lines make anybody wait for ever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may load a video itself
        self.holder: Hold | None = None
        self.line: deque[Hold] = deque()
        """Who waits for it, first come first served."""

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
        self._gate = threading.Lock()
        self._since = self._stepped = 0.0

    def take(self) -> None:
        """Stand in line, and wait."""
        baton = self._baton
        self._gate.acquire(blocking=False)
        with baton.lock:
            baton.line.append(self)
        while True:
            with baton.lock:
                holder = baton.holder
                if holder is None or time.monotonic() - holder._stepped > _STUCK:
                    self._pass_on()
                # looked at, not told: an interrupt may have come between taking a hold out of the line and telling it
                if baton.holder is self or self not in baton.line:
                    return
            if not self._gate.acquire(timeout=_STUCK):
                self._deadline.check(self._doing)

    def step(self) -> None:
        """Say that work goes on; give way to others if it has gone on for long."""
        baton = self._baton
        with baton.lock:
            self._stepped = time.monotonic()
            if baton.holder is not self or not baton.line or self._stepped - self._since <= _LONG:
                return
            self._pass_on()
        self.take()

    def leave(self) -> None:
        """Give it back, or the place in line."""
        baton = self._baton
        with baton.lock:
            if baton.holder is self:
                self._pass_on()
            else:
                with suppress(ValueError):
                    baton.line.remove(self)

    def _pass_on(self) -> None:
        """Take it from whoever holds it. The lock is held."""
        baton = self._baton
        try:
            first = baton.line.popleft()
        except IndexError:
            baton.holder = None
            return
        first._since = first._stepped = time.monotonic()
        baton.holder = first
        with suppress(RuntimeError):  # its gate is open already
            first._gate.release()
