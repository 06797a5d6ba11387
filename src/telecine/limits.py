"""Upper bounds on the bytes, pixels, packets and frames of one request."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from telecine.errors import OptionsError
from telecine.validation import format_value, to_float, to_int

__all__ = ["Limits"]

_MAX_SOCKET_TIMEOUT = 1e6
"""Seconds: a socket counts its timeout as 31 bits of milliseconds."""
_MAX_VALUES = {"max_seconds": math.inf, "connect_timeout": _MAX_SOCKET_TIMEOUT, "read_timeout": _MAX_SOCKET_TIMEOUT}


@dataclass(frozen=True)
class Limits:
    """Upper bounds for one request. Each is checked before the memory or the time is spent.

    The defaults suit a server that decodes untrusted input; a batch job on its own files may raise them.
    """

    max_bytes: int = 4 << 30
    """Size of the encoded source, bytes. Enforced while reading."""
    max_fetch_bytes: int = 512 << 20
    """Bytes fetched from a URL or decoded from a ``data:`` URL."""
    max_pixels: int = 8192 * 8192
    """Width times height of one decoded frame."""
    max_packets: int = 2_000_000
    """Packets of the video stream that the packet index reads."""
    max_seconds: float = 24 * 3600.0
    """Duration of the video, seconds."""
    max_frames: int = 32_768
    """Frames returned by one request."""
    max_output_bytes: int = 16 << 30
    """Size of the returned frames, bytes."""
    allow_private_hosts: bool = False
    """True if a URL may lead to a private, loopback, link-local or otherwise not public address."""
    allow_file_urls: bool = False
    """True if ``file:`` URLs are read. Plain paths always are."""
    max_redirects: int = 5
    """Redirects followed for one URL; each one is checked like the first URL."""
    connect_timeout: float = 10.0
    """Seconds to connect to the host of a URL."""
    read_timeout: float = 30.0
    """Seconds without a byte from the host of a URL."""

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            value, allowed = _check_value(field.name, given, type(field.default))
            if value is None:
                raise OptionsError(f"limits: {field.name} is {format_value(given)}; it must be {allowed}")
            object.__setattr__(self, field.name, value)

    @classmethod
    def of(cls, limits: Limits | None) -> Limits:
        """Return ``limits``, or the defaults if it is None.

        Raises:
            OptionsError: ``limits`` is something else.
        """
        if limits is None:
            return cls()
        if not isinstance(limits, Limits):
            raise OptionsError(
                f"limits is {format_value(limits)}; it must be a telecine.Limits, or None for the defaults"
            )
        return limits


def _check_value(name: str, value: object, kind: type) -> tuple[bool | int | float | None, str]:
    """Return a limit as a Python value, None if it is not allowed, and a description of the allowed values."""
    if kind is bool:
        return (value if isinstance(value, bool) else None), "True or False"
    if kind is int:
        count = to_int(value)
        return (count if count is not None and count >= 0 else None), "a whole number that is not negative"
    maximum, seconds = _MAX_VALUES[name], to_float(value)
    # the comparison refuses NaN, which would switch the limit off
    allowed = f"a number from 0 to {maximum:.0f}" if math.isfinite(maximum) else "a number that is not negative"
    return (seconds if seconds is not None and 0 <= seconds <= maximum else None), allowed
