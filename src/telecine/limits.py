"""What a request may cost at most, and how long it may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from telecine.errors import Cancelled, DeadlineError, OptionsError

__all__ = ["Deadline", "Limits", "Watch"]

Watch: TypeAlias = "Callable[[str, int, int], None]"
"""Told what is going on, how much of it is done, and of how much; both are 0 where that is not known."""


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
            value = getattr(self, field.name)
            if not isinstance(value, bool) and value < 0:
                raise OptionsError(f"limits: {field.name} is {value!r}; it must not be negative")


class Deadline:
    """The time a request has left, and whether somebody withdrew it.

    Every stage calls :meth:`check` between two small steps. Thread-safe: :meth:`cancel` may come from another thread.

    Args:
        seconds: time from now on, or None for no bound.
        watch: called by every :meth:`check`, in the thread that does the work. It must return at once.
    """

    def __init__(self, seconds: float | None = None, watch: Watch | None = None) -> None:
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise OptionsError(f"timeout is {seconds!r}; it must be a positive number of seconds, or None")
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds
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
