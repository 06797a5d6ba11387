"""Upper bounds on the bytes, pixels, packets and frames of one request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

from telecine.errors import OptionsError
from telecine.validation import Checked, Option, format_value

__all__ = ["Limits"]

_MAX_EXPANSION = 20_000
"""Bytes of frames for each byte of the source that a request may take by default."""
_MAX_SOCKET_TIMEOUT = 1_000_000
"""Seconds: a socket counts its timeout as 31 bits of milliseconds."""

Count: TypeAlias = Checked[SupportsIndex, int]
OptionalCount: TypeAlias = Checked[SupportsIndex | None, int | None]
Seconds: TypeAlias = Checked[SupportsFloat, float]
Flag: TypeAlias = Checked[bool, bool]


def _check(option: Option, name: str, value: object) -> Any:
    return option.check(f"limits: {name}", value)


_count = partial(_check, Option(int, low=0))
_seconds = partial(_check, Option(float, low=0))
_timeout = partial(_check, Option(float, low=0, high=_MAX_SOCKET_TIMEOUT))
_flag = partial(_check, Option(bool))


@dataclass(frozen=True)
class Limits:
    """Upper bounds for one request. Each is checked before the memory or the time is spent.

    The defaults suit a server that decodes untrusted input; a batch job on its own files may raise them.
    """

    max_bytes: Count = Checked(4 << 30, _count)
    """Size of the encoded source, bytes. Enforced while reading; of a file read in ranges only these count."""
    max_fetch_bytes: Count = Checked(512 << 20, _count)
    """Bytes fetched from a URL or decoded from a ``data:`` URL."""
    max_pixels: Count = Checked(8192 * 8192, _count)
    """Width times height of one decoded frame."""
    max_packets: Count = Checked(2_000_000, _count)
    """Packets of the video stream that the packet index reads."""
    max_seconds: Seconds = Checked(24 * 3600.0, _seconds)
    """Duration of the video, seconds."""
    max_frames: Count = Checked(32_768, _count)
    """Frames returned by one request."""
    max_output_bytes: OptionalCount = Checked(None, _count)
    """Size of the returned frames, bytes. By default 20 000 times the size of the source, but 1 GiB at least and 16 GiB
    at most: then a file of a few bytes cannot take all memory; see :meth:`output_bytes`."""
    allow_private_hosts: Flag = Checked(False, _flag)
    """True if a URL may lead to a private, loopback, link-local or otherwise not public address."""
    allow_file_urls: Flag = Checked(False, _flag)
    """True if ``file:`` URLs are read. Plain paths always are."""
    max_redirects: Count = Checked(5, _count)
    """Redirects followed for one URL; each one is checked like the first URL."""
    connect_timeout: Seconds = Checked(10.0, _timeout)
    """Seconds to connect to the host of a URL."""
    read_timeout: Seconds = Checked(30.0, _timeout)
    """Seconds without a byte from the host of a URL."""

    def output_bytes(self, source_bytes: int) -> int:
        """Return ``max_output_bytes``, or the default for a source of this size."""
        if self.max_output_bytes is not None:
            return self.max_output_bytes
        # a minute of a still picture in 480p compresses to a 16 000th of its frames
        return min(max(_MAX_EXPANSION * source_bytes, 1 << 30), 16 << 30)

    @classmethod
    def of(cls, limits: Limits | None) -> Limits:
        """Return ``limits``, or the defaults if it is None. Raises OptionsError if it is something else."""
        if limits is None:
            return _DEFAULTS
        if not isinstance(limits, Limits):
            raise OptionsError(
                f"limits is {format_value(limits)}; it must be a telecine.Limits, or None for the defaults"
            )
        return limits


_DEFAULTS = Limits()
