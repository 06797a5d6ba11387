"""URIs of live streams: their schemes, names without secrets, and which hosts may be reached."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from telecine.errors import OptionsError, SourceError
from telecine.limits import Limits
from telecine.source.http import is_public, resolve
from telecine.source.urls import printable
from telecine.validation import format_value

__all__ = ["SCHEMES", "LiveUri", "check_host", "host_limits"]

_ANY_SIZE = 1 << 62


class _Scheme(NamedTuple):
    """A scheme of URIs and how its bytes reach FFmpeg."""

    reader: str
    """"file", "http", "socket" (plain bytes), "relay" (FFmpeg's protocol through a relay), or "ffmpeg"."""
    port: int = 0
    protocols: str = ""
    """Protocols that FFmpeg may use."""
    inner: str = ""
    """Scheme that FFmpeg is given."""


SCHEMES = {
    "rtsp": _Scheme("relay", 554, "rtsp,tcp", "rtsp"),
    "rtsps": _Scheme("relay", 322, "rtsp,tcp", "rtsp"),
    "rtmp": _Scheme("relay", 1935, "rtmp,tcp", "rtmp"),
    "rtmps": _Scheme("relay", 443, "rtmp,tcp", "rtmp"),
    "http": _Scheme("http", 80),
    "https": _Scheme("http", 443),
    "tcp": _Scheme("socket"),
    "udp": _Scheme("socket"),
    "srt": _Scheme("ffmpeg", 0, "srt,udp"),
    "file": _Scheme("file"),
}
"""The schemes of live streams."""


class LiveUri(NamedTuple):
    """A checked URI of a live stream."""

    uri: str
    scheme: str
    name: str
    """Name for messages, logs and metrics, without credentials."""
    parts: SplitResult

    @property
    def kind(self) -> _Scheme:
        """How the scheme is read."""
        return SCHEMES[self.scheme]

    @property
    def host(self) -> str:
        """Host name or address; empty for files."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """Port, that of the scheme if the URI names none."""
        return self.parts.port or self.kind.port

    @classmethod
    def of(cls, uri: str | os.PathLike[str]) -> LiveUri:
        """Check a URI or the path of a file. Raises OptionsError."""
        if not isinstance(uri, (str, os.PathLike)):
            raise OptionsError(
                f"uri is {format_value(uri)}; it must be a URI as rtsp://host/path, or the path of a file"
            )
        text = os.fspath(uri)
        if "://" not in text:
            return cls(text, "file", printable(os.path.basename(text)), SplitResult("file", "", text, "", ""))
        if not text.isprintable() or " " in text:
            raise OptionsError("the URI contains blanks or control characters; escape them as %20")
        scheme = text.partition("://")[0].lower()
        if scheme not in SCHEMES or scheme == "file":
            allowed = ", ".join(name for name in SCHEMES if name != "file")
            raise OptionsError(
                f"the scheme of the URI is {printable(scheme)!r}; allowed are {allowed}, and paths of files"
            )
        try:
            parts = urlsplit(text)
            is_complete = (parts.port or SCHEMES[scheme].port or scheme == "srt") and (
                parts.hostname or scheme == "udp"
            )
        except ValueError:
            is_complete = False
        if not is_complete:
            raise OptionsError(f"the {scheme} URI has no valid host or port; the form is {scheme}://host:port/path")
        return cls(text, scheme, _name(scheme, parts), parts)


def _name(scheme: str, parts: SplitResult) -> str:
    """Return a name without secrets. Cameras have passwords in the path too, and the last part of RTMP is a key."""
    host = f"{parts.hostname or ''}:{parts.port}" if parts.port else parts.hostname
    folder, _, last = parts.path.rpartition("/")
    if scheme.startswith("rtmp") or any(character in last for character in "=&@"):
        folder, last = "…", ""
    return printable(f"{scheme}://{host}/{'…/' if folder else ''}{last}")


def check_host(host: str, allowed_hosts: Collection[str]) -> None:
    """Raise SourceError if a host is not one of those allowed."""
    if host.lower() not in {each.lower() for each in allowed_hosts}:
        raise SourceError(f"the host {printable(host)} is not in allowed_hosts; add it, or give another URI")


def host_limits(host: str, port: int, allowed_hosts: Collection[str] | None, limits: Limits) -> Limits:
    """Return the limits for everything that a stream names, and raise SourceError if its own host is not allowed.

    Without ``allowed_hosts`` the caller is trusted: a stream of a private network may lead to other hosts there, one of
    the public internet may not. With them, redirects are not followed, since they could lead to any other host.
    """
    limits = replace(limits, max_bytes=_ANY_SIZE, max_fetch_bytes=_ANY_SIZE)
    if allowed_hosts is not None:
        check_host(host, allowed_hosts)
        return replace(limits, max_redirects=0)
    if limits.allow_private_hosts or not host:
        return limits
    try:
        addresses = [str(ipaddress.ip_address(host))]
    except ValueError:
        try:
            addresses = resolve(host, port)
        except (OSError, UnicodeError):
            raise SourceError(f"the host {printable(host)} cannot be resolved; check the spelling of the URI") from None
    return replace(limits, allow_private_hosts=not all(map(is_public, addresses)))
