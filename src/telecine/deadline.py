"""The time that a request has left, and its cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import SupportsFloat, TypeAlias

from telecine.errors import Cancelled, DeadlineError, OptionsError
from telecine.validation import format_value, to_float

__all__ = ["Deadline", "ForwardingDeadline", "ProgressCallback", "Timeout"]

ProgressCallback: TypeAlias = "Callable[[str, int, int], None]"
"""Called with the current step, the work done and the total work; both numbers are 0 if they are unknown."""

Timeout: TypeAlias = "SupportsFloat | Deadline | None"
"""Seconds from now on, a deadline that the caller can cancel and watch, or None for no timeout."""

_MAX_SECONDS = 1e9
"""Longest timeout, 31 years: every wait function of the system accepts it."""


class Deadline:
    """The timeout and the cancellation of one request.

    Every stage calls :meth:`check` between two small steps. Thread-safe: :meth:`cancel` may be called from another
    thread.

    Args:
        seconds: timeout, counted from now; None for no timeout.
        on_progress: called by every :meth:`check`, in the thread that does the work. It must return at once.

    Raises:
        OptionsError: ``seconds`` is no positive number up to 1e9.
    """

    def __init__(self, seconds: SupportsFloat | None = None, on_progress: ProgressCallback | None = None) -> None:
        timeout = to_float(seconds)
        if seconds is not None and not (timeout is not None and 0 < timeout <= _MAX_SECONDS):
            raise OptionsError(
                f"timeout is {format_value(seconds)}; it must be a number of seconds above 0 "
                f"and up to {_MAX_SECONDS:.0f}, or None"
            )
        self.seconds = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._on_progress = on_progress
        self._cancelled = threading.Event()

    @classmethod
    def of(cls, timeout: Timeout) -> Deadline:
        """Return ``timeout`` if it is a deadline already, else a new one that starts now."""
        return timeout if isinstance(timeout, Deadline) else cls(timeout)

    def cancel(self) -> None:
        """Cancel the request: the next :meth:`check` raises :class:`telecine.errors.Cancelled`."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """True if :meth:`cancel` was called."""
        return self._cancelled.is_set()

    def remaining(self) -> float | None:
        """Return the seconds left, at least 0; None if there is no timeout."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Raise if the timeout has passed or the request was cancelled.

        Args:
            doing: the current step, for the error message: "reading the packets".
            done: work done so far, for the progress callback; in any unit.
            total: all the work, in the same unit; 0 if unknown.

        Raises:
            DeadlineError: the timeout has passed.
            Cancelled: :meth:`cancel` was called.
        """
        if self._cancelled.is_set():
            raise Cancelled(f"the request was cancelled while {doing}")
        if self._end is not None and time.monotonic() >= self._end:
            raise DeadlineError(f"the timeout of {self.seconds:g} s passed while {doing}")
        if self._on_progress is not None:
            self._on_progress(doing, done, total)


class ForwardingDeadline(Deadline):
    """A deadline that forwards to another one, which can be exchanged."""

    def __init__(self, current: Deadline) -> None:
        super().__init__()
        self.current = current

    def cancel(self) -> None:
        self.current.cancel()

    @property
    def cancelled(self) -> bool:
        return self.current.cancelled

    def remaining(self) -> float | None:
        return self.current.remaining()

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        self.current.check(doing, done, total)
