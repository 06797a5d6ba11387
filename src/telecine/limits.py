"""Upper bounds on the bytes, pixels, packets and frames of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsFloat, SupportsIndex, TypeAlias

from telecine.errors import OptionsError
from telecine.validation import Checked, Option, check_float, check_int, format_value

__all__ = ["Limits"]

_MAX_SOCKET_TIMEOUT = 1_000_000
"""Seconds: a socket counts its timeout as 31 bits of milliseconds."""

_Count: TypeAlias = Checked[SupportsIndex, int]
_Seconds: TypeAlias = Checked[SupportsFloat, float]
_Flag: TypeAlias = Checked[bool, bool]


def _count(name: str, value: object) -> int:
    return check_int(f"limits: {name}", value, 0)


def _seconds(name: str, value: object) -> float:
    return check_float(f"limits: {name}", value, 0, None if name == "max_seconds" else _MAX_SOCKET_TIMEOUT)


def _flag(name: str, value: object) -> bool:
    return bool(Option(bool, None, "").check(f"limits: {name}", value))


@dataclass(frozen=True)
class Limits:
    """Upper bounds for one request. Each is checked before the memory or the time is spent.

    The defaults suit a server that decodes untrusted input; a batch job on its own files may raise them.
    """

    max_bytes: _Count = Checked(4 << 30, _count)
    """Size of the encoded source, bytes. Enforced while reading."""
    max_fetch_bytes: _Count = Checked(512 << 20, _count)
    """Bytes fetched from a URL or decoded from a ``data:`` URL."""
    max_pixels: _Count = Checked(8192 * 8192, _count)
    """Width times height of one decoded frame."""
    max_packets: _Count = Checked(2_000_000, _count)
    """Packets of the video stream that the packet index reads."""
    max_seconds: _Seconds = Checked(24 * 3600.0, _seconds)
    """Duration of the video, seconds."""
    max_frames: _Count = Checked(32_768, _count)
    """Frames returned by one request."""
    max_output_bytes: _Count = Checked(16 << 30, _count)
    """Size of the returned frames, bytes."""
    allow_private_hosts: _Flag = Checked(False, _flag)
    """True if a URL may lead to a private, loopback, link-local or otherwise not public address."""
    allow_file_urls: _Flag = Checked(False, _flag)
    """True if ``file:`` URLs are read. Plain paths always are."""
    max_redirects: _Count = Checked(5, _count)
    """Redirects followed for one URL; each one is checked like the first URL."""
    connect_timeout: _Seconds = Checked(10.0, _seconds)
    """Seconds to connect to the host of a URL."""
    read_timeout: _Seconds = Checked(30.0, _seconds)
    """Seconds without a byte from the host of a URL."""

    @classmethod
    def of(cls, limits: Limits | None) -> Limits:
        """Return ``limits``, or the defaults if it is None. Raises OptionsError if it is something else."""
        if limits is None:
            return cls()
        if not isinstance(limits, Limits):
            raise OptionsError(
                f"limits is {format_value(limits)}; it must be a telecine.Limits, or None for the defaults"
            )
        return limits
