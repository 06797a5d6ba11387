"""A file behind an ``http(s)`` URL, of which ranges are read (RFC 9110, 14), all of one version of the file."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from telecine.deadline import Deadline
from telecine.errors import LimitError, SourceError
from telecine.limits import Limits
from telecine.source.http import Target, header, read_body, request
from telecine.source.urls import ByteLimit, url_name

if TYPE_CHECKING:
    from httpcore import Response

__all__ = ["RemoteFile"]

_MAX_TRIES = 5
_FIRST_PAUSE = 0.1
"""Seconds before a broken request is sent again; twice as many after each further one."""
_EXPIRED = frozenset({401, 403, 404, 410})
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_POLL_SECONDS = 0.05
"""Longest wait before the deadline is checked again."""


class RemoteFile:
    """A file behind an ``http(s)`` URL. Thread-safe: each request has its own connection.

    The deadline is checked between chunks, and at least every 0.05 s while waiting; it interrupts every step but the
    name resolution. The methods raise:

    * SourceError: the URL, its host, a redirect or the response is refused, or the transfer failed.
    * LimitError: the body is larger than the limit.
    * DeadlineError, Cancelled: from the deadline.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        """Check the URL. Raises SourceError, or BackendUnavailable if httpx is not installed."""
        self.name, self._limits = url_name(url), limits
        self.limit = ByteLimit.of(limits, fetched=True)
        """Largest number of bytes that may be fetched."""
        self.size: int | None = None
        """Size of the file if :meth:`read` can be used: the server sends ranges, and says which version they are of."""
        self._version: tuple[bytes | None, int] = (None, 0)
        self._condition: tuple[bytes, bytes] | None = None
        self._given = self._final = Target.of(url)

    def stream(self, deadline: Deadline) -> Generator[bytes, None, None]:
        """Yield the body in chunks: first an empty one, when :attr:`size` is known.

        If it is, the caller compares it with the limit; chunks are counted in any case.
        """
        with request(self._given, [(b"Range", b"bytes=0-")], self.name, self._limits, deadline) as (response, final):
            self._final = final
            is_whole = self._examine(response)
            if response.status not in (206, 416) or is_whole:
                yield b""
                status, check_length = 206 if is_whole else 200, self.size is None
                yield from read_body(response, self.name, self.limit, deadline, status, check_length)
                return
        # some servers send a part of what is asked for, and empty files have no ranges
        with request(self._given, [], self.name, self._limits, deadline) as (response, _):
            yield b""
            yield from read_body(response, self.name, self.limit, deadline, 200)

    def read(self, offset: int, size: int, deadline: Deadline) -> bytes:
        """Return bytes of the file. A broken transfer is tried again.

        Raises SourceError also if the file was changed since :meth:`stream` read its beginning.
        """
        import httpcore

        broken = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
        for attempt in range(_MAX_TRIES):
            try:
                return self._read_once(offset, size, deadline)
            except _TryAgain as error:
                failure: SourceError = error
            except SourceError as error:
                if not isinstance(error.__cause__, broken):
                    raise
                failure = error
            end = time.monotonic() + _FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1)
            while (left := end - time.monotonic()) > 0 and attempt + 1 < _MAX_TRIES:
                deadline.check("fetching the video")
                time.sleep(min(left, _POLL_SECONDS))
        raise failure

    def _read_once(self, offset: int, size: int, deadline: Deadline) -> bytes:
        headers = [(b"Range", b"bytes=%d-%d" % (offset, offset + size - 1))]
        if self._condition is not None:
            headers.append(self._condition)
        target = self._final
        with request(target, headers, self.name, self._limits, deadline) as (response, final):
            if response.status in _EXPIRED and target is not self._given:
                self._final = self._given  # the target of the redirect was for a limited time
                raise _TryAgain(f"{self.name}: the server answered HTTP {response.status}")
            if response.status in _TEMPORARY:
                raise _TryAgain(f"{self.name}: the server answered HTTP {response.status} again and again")
            self._final = final
            is_other = response.status == 206 and _read_version(response) != self._version
            if response.status in (200, 412, 416) or is_other:
                raise SourceError(f"{self.name}: the file was changed on the server while it was read; open it again")
            expected = (offset, offset + size - 1)
            if response.status == 206 and (_content_range(response) or ())[:2] != expected:
                raise SourceError(f"{self.name}: the server sent other bytes than those asked for")
            try:
                data = b"".join(read_body(response, self.name, ByteLimit(size, ""), deadline, 206))
            except LimitError:
                raise SourceError(f"{self.name}: the server sent more bytes than those asked for") from None
            if len(data) < size:
                raise _TryAgain(f"{self.name}: the response ended early; the video is incomplete")
            return data

    def _examine(self, response: Response) -> bool:
        """Return True if the response has the whole file as one range, and find out if ranges can be read."""
        found = _content_range(response)
        if response.status != 206 or found is None or found[:2] != (0, found[2] - 1):
            return False
        self._version = _read_version(response)
        if (tag := self._version[0]) is not None:
            self.size = found[2]
            if not tag.startswith(b"W/"):  # RFC 9110, 13.1.5: no weak tags
                self._condition = (b"If-Range", tag)
        return True


class _TryAgain(SourceError):
    """An answer that may be another one the next time."""


def _content_range(response: Response) -> tuple[int, int, int] | None:
    """Return first byte, last byte and size of the file of a response with a part of it; None if it does not say."""
    match = re.fullmatch(
        rb"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", (header(response, b"content-range") or b"").strip()
    )
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _read_version(response: Response) -> tuple[bytes | None, int]:
    """Return what differs for another version of the file: its entity tag, or else its date, and its size."""
    tag = header(response, b"etag") or header(response, b"last-modified")
    return tag, (_content_range(response) or (0, 0, 0))[2]
