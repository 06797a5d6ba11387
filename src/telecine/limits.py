"""What a request may cost at most, and how long it may take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from telecine.errors import Cancelled, DeadlineError, OptionsError
from telecine.validation import real, shown, whole

__all__ = ["Deadline", "Limits", "Watch"]

Watch: TypeAlias = "Callable[[str, int, int], None]"
"""Told what is going on, how much of it is done, and of how much; both are 0 where that is not known."""

_LONGEST = 1e9
"""Seconds of a timeout, 31 years: what every wait of the system can be told."""
_LONGEST_WAIT = 1e6
"""Seconds that a socket may be told to wait: it counts milliseconds in 31 bits."""
_MOST = {"max_seconds": math.inf, "connect_timeout": _LONGEST_WAIT, "read_timeout": _LONGEST_WAIT}


@dataclass(frozen=True)
class Limits:
    """Upper bounds for one request. Each is checked before the memory or time it bounds is spent.

    The defaults suit a server that decodes what strangers send; a batch job on its own files may raise them.
    """

    max_bytes: int = 4 << 30
    """Size of the encoded source, bytes. Enforced while reading."""
    max_fetch_bytes: int = 512 << 20
    """Size of what is fetched from a URL or decoded from a ``data:`` URL, bytes."""
    max_pixels: int = 8192 * 8192
    """Width times height of one decoded frame."""
    max_packets: int = 2_000_000
    """Packets of the video stream walked by the packet index."""
    max_seconds: float = 24 * 3600.0
    """Duration of the video, seconds."""
    max_frames: int = 32_768
    """Frames returned by one request."""
    max_output_bytes: int = 16 << 30
    """Size of the returned frames, bytes."""
    allow_private_hosts: bool = False
    """Whether a URL may lead to a private, loopback, link-local or otherwise not public address."""
    allow_file_urls: bool = False
    """Whether ``file:`` URLs are read. Plain paths always are."""
    max_redirects: int = 5
    """Redirects followed for one URL; every hop is checked like the first."""
    connect_timeout: float = 10.0
    """Seconds to reach the host of a URL."""
    read_timeout: float = 30.0
    """Seconds without a byte from the host of a URL."""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            value, allowed = _checked(field.name, given, type(field.default))
            if value is None:
                raise OptionsError(f"limits: {field.name} is {shown(given)}; it must be {allowed}")
            object.__setattr__(self, field.name, value)

    @classmethod
    def of(cls, limits: Limits | None) -> Limits:
        """The limits of a call: those given, or the defaults.

        Raises:
            OptionsError: something else was given.
        """
        if limits is None:
            return cls()
        if not isinstance(limits, Limits):
            raise OptionsError(f"limits is {shown(limits)}; it must be a telecine.Limits, or None for the defaults")
        return limits


def _checked(name: str, value: object, kind: type) -> tuple[bool | int | float | None, str]:
    """A limit as Python has it, None where it is not allowed, and what is allowed."""
    if kind is bool:
        return (value if isinstance(value, bool) else None), "True or False"
    if kind is int:
        count = whole(value)
        return (count if count is not None and count >= 0 else None), "a whole number that is not negative"
    most, seconds = _MOST[name], real(value)
    # written so that a NaN is refused: it is neither more nor less than anything, and would switch the limit off
    bounds = f"a number from 0 to {most:.0f}" if math.isfinite(most) else "a number that is not negative"
    return (seconds if seconds is not None and 0 <= seconds <= most else None), bounds


class Deadline:
    """The time a request has left, and whether somebody withdrew it.

    Every stage calls :meth:`check` between two small steps. Thread-safe: :meth:`cancel` may come from another thread.

    Args:
        seconds: time from now on, or None for no bound.
        watch: called by every :meth:`check`, in the thread that does the work. It must return at once.
    """

    def __init__(self, seconds: float | None = None, watch: Watch | None = None) -> None:
        bound = real(seconds)
        if seconds is not None and not (bound is not None and 0 < bound <= _LONGEST):
            raise OptionsError(
                f"timeout is {shown(seconds)}; it must be a number of seconds above 0 and up to {_LONGEST:.0f}, or None"
            )
        self.seconds = bound
        self._end = None if bound is None else time.monotonic() + bound
        self._watch = watch
        self._cancelled = threading.Event()

    @classmethod
    def of(cls, timeout: float | Deadline | None) -> Deadline:
        """The deadline of a call: the one given, or a new one that begins now."""
        return timeout if isinstance(timeout, Deadline) else cls(timeout)

    def cancel(self) -> None:
        """Withdraw the request: the next :meth:`check` raises :class:`Cancelled`."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether the request was withdrawn."""
        return self._cancelled.is_set()

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None when there is no bound."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Raise if the time is used up or the request was withdrawn.

        Args:
            doing: what was going on, for the message: "reading the packets".
            done: how much of it is done, for whoever watches; in any unit.
            total: how much there is to do, in the same unit; 0 where that is not known.

        Raises:
            DeadlineError: the time is used up.
            Cancelled: :meth:`cancel` was called.
        """
        if self._cancelled.is_set():
            raise Cancelled(f"the request was cancelled while {doing}")
        if self._end is not None and time.monotonic() >= self._end:
            raise DeadlineError(f"the timeout of {self.seconds:g} s passed while {doing}")
        if self._watch is not None:
            self._watch(doing, done, total)
