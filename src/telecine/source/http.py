"""Fetch a video from an untrusted ``http(s)`` URL.

* The host name is resolved once for each request, by the connection itself (:class:`_PinnedBackend`). All its addresses
  must be public, and the connection goes to one of them. The name is never looked up again, so that DNS rebinding has
  no effect. TLS verifies the certificate against the host name.
* Redirects are followed one by one, and each URL is checked like the first.
* Bytes are counted as they arrive, and every wait on the network ends by the deadline, however slow the server is.

Proxies of the environment are not used: a proxy resolves the name itself, which would bypass the check.
httpx supplies URLs and TLS certificates, httpcore (which httpx is built on) the protocol. Both are imported on use.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import ipaddress
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, SourceError
from telecine.limits import Limits
from telecine.source.urls import ByteLimit, printable, url_name

if TYPE_CHECKING:
    import ssl

    import httpx
    from httpcore import NetworkBackend, NetworkStream, Response
else:
    # base classes for type checkers only, so that this module can be imported without httpcore
    NetworkBackend = NetworkStream = object

__all__ = ["Headers", "Target", "fetch", "header", "is_public", "read_body", "request", "resolve", "resolve_allowed"]

Headers: TypeAlias = list[tuple[bytes, bytes]]
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_POLL_SECONDS = 0.05
"""Longest wait of one read before the deadline is checked again: bounds the delay of a cancellation."""
_OVERHEAD_BYTES = 1 << 20
"""Bytes that a response may have beyond twice the size of its body: status lines, headers, chunk sizes."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the IPv4 address
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # RFC 4291: the public IPv6 internet


def is_public(address: str) -> bool:
    """Return True if an IP address belongs to the public internet.

    False for private, shared (100.64.0.0/10), loopback, link-local, multicast, reserved and unspecified addresses. An
    IPv6 address that embeds an IPv4 address (mapped, 6to4, NAT64) is public if the IPv4 address is.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    embedded = ip.ipv4_mapped or ip.sixtofour
    if ip in _NAT64:
        embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if embedded is not None:
        return is_public(str(embedded))
    # Teredo embeds an IPv4 address too, but is no longer in use
    return ip in _GLOBAL_UNICAST and ip.is_global and ip.teredo is None


def resolve(host: str, port: int) -> list[str]:
    """Return all IP addresses of a host, in the system's order of preference, without repeats."""
    import socket

    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def resolve_allowed(host: str, port: int, limits: Limits) -> list[str]:
    """Resolve a host, and refuse it unless connecting to each of its addresses is allowed."""
    try:
        addresses = [str(ipaddress.ip_address(host))]
    except ValueError:
        # inet_aton reads 2130706433, 0x7f.1 and 0177.0.0.1 as 127.0.0.1 too. Resolvers disagree about such spellings,
        # and no honest URL uses them.
        if not re.fullmatch(r"[a-z0-9._-]+", host) or re.search(r"(^|\.)([0-9]+|0x[0-9a-f]*)\.?$", host):
            raise SourceError(f"{printable(host)} is neither a host name nor four decimal numbers") from None
        try:
            addresses = resolve(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a label longer than DNS allows
            raise SourceError(
                f"the host {printable(host)} cannot be resolved; check the spelling of the URL"
            ) from error
    # one private address among public ones refuses the host: the connection might go to it
    if not limits.allow_private_hosts and not all(map(is_public, addresses)):
        raise SourceError(
            f"the host {printable(host)} is not on the public internet; "
            "Limits(allow_private_hosts=True) permits hosts of a private network"
        )
    return addresses


class _Stream(NetworkStream):
    """Connection whose waits end by the deadline, and which accepts no more bytes than a response can need."""

    def __init__(self, inner: NetworkStream, deadline: Deadline, allowance: int) -> None:
        self._inner, self._deadline, self._allowance = inner, deadline, allowance

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        from httpcore import ReadTimeout

        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_SECONDS if end is None else max(0.001, min(_POLL_SECONDS, end - time.monotonic()))
            try:
                data = self._inner.read(max_bytes, _limit_wait(left, self._deadline))
                break
            except ReadTimeout:
                if end is not None and time.monotonic() >= end:
                    raise
        # an endless series of "100 Continue" or of one-byte chunks would never reach the limit on the body
        self._allowance -= len(data)
        if self._allowance < 0:
            raise SourceError("the server sends more than a response of the allowed size can need")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _limit_wait(timeout, self._deadline))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        import ssl

        try:
            secure = self._inner.start_tls(ssl_context, server_hostname, _limit_wait(timeout, self._deadline))
        except BaseException as error:
            self._inner.close()  # httpcore does not know the connection yet
            # converted here, since httpcore drops the cause
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise SourceError(
                    f"the certificate of {printable(server_hostname or 'the host')} is not accepted: "
                    f"{error.__cause__.verify_message}"
                ) from error
            raise
        return _Stream(secure, self._deadline, self._allowance)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _PinnedBackend(NetworkBackend):
    """Network backend that resolves a host, checks every address and connects to one of them: one look-up only."""

    def __init__(self, limits: Limits, deadline: Deadline, allowance: int) -> None:
        from httpcore import SyncBackend

        self._inner = SyncBackend()
        self._limits, self._deadline, self._allowance = limits, deadline, allowance

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> NetworkStream:
        from httpcore import ConnectError, ConnectTimeout

        addresses = resolve_allowed(host, port, self._limits)
        end = time.monotonic() + self._limits.connect_timeout
        failure: Exception = ConnectError("no address")
        for tried, address in enumerate(addresses):
            if tried and time.monotonic() >= end:
                break  # a host may have thousands of addresses
            # an even share of the time: one address that does not answer must not use up all of it
            share = max(0.001, (end - time.monotonic()) / (len(addresses) - tried))
            try:
                stream = self._inner.connect_tcp(
                    address, port, _limit_wait(share, self._deadline), None, socket_options
                )
            except (ConnectError, ConnectTimeout) as error:
                failure = error
            else:
                return _Stream(stream, self._deadline, self._allowance)
        raise failure


def _limit_wait(timeout: float | None, deadline: Deadline) -> float | None:
    """Return ``timeout``, or the time that the deadline leaves if that is shorter."""
    deadline.check("fetching the video")
    remaining = deadline.remaining()
    if remaining is None:
        return timeout
    # a little more, so that the deadline has certainly passed when the wait ends
    return remaining + 0.002 if timeout is None else min(timeout, remaining + 0.002)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context of the process: loading the certificates takes tens of milliseconds."""
    import httpx

    try:
        return httpx.create_ssl_context()
    except OSError as error:  # includes ssl.SSLError
        named = " and ".join(name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name))
        raise BackendUnavailable(
            f"the certificates that https needs cannot be read ({error.strerror or type(error).__name__}); "
            + (f"correct or unset {named} in the environment" if named else "reinstall the package certifi")
        ) from error


class Target(NamedTuple):
    """The URL of a request, and the credentials for its host."""

    url: httpx.URL
    authorization: bytes | None

    @classmethod
    def of(cls, url: str) -> Target:
        """Check a URL. Raises SourceError, or BackendUnavailable if httpx is not installed."""
        try:
            import httpcore  # noqa: F401
            import httpx  # noqa: F401
        except ImportError as error:
            raise BackendUnavailable(
                "reading http(s) URLs needs httpx, which is not installed: pip install 'telecine[http]'"
            ) from error
        parsed = _parse(url_name(url), url)
        if not parsed.userinfo:
            return cls(parsed, None)
        # RFC 7617
        return cls(parsed, b"Basic " + base64.b64encode(f"{parsed.username}:{parsed.password}".encode()))


def fetch(url: str, limits: Limits, deadline: Deadline) -> Generator[bytes, None, None]:
    """Yield the body behind an ``http(s)`` URL in chunks.

    Thread-safe: each call has its own connections. The deadline is checked between chunks, and at least every 0.05 s
    while waiting; it interrupts every step but the name resolution.

    Raises:
        BackendUnavailable: httpx is not installed, or the certificates named by the environment cannot be read.
        SourceError: the URL, its host, a redirect or the response is refused, or the transfer failed.
        LimitError: the body is larger than the limit.
        DeadlineError, Cancelled: from ``deadline``.
    """
    name = url_name(url)
    with request(Target.of(url), [], name, limits, deadline) as (response, _):
        yield from read_body(response, name, ByteLimit.of(limits, fetched=True), deadline)


@contextlib.contextmanager
def request(
    target: Target, headers: Headers, name: str, limits: Limits, deadline: Deadline
) -> Iterator[tuple[Response, Target]]:
    """Send a request, follow redirects, and give the response and where it came from; errors as in :func:`fetch`."""
    for _ in range(limits.max_redirects + 1):
        deadline.check("fetching the video")
        own = [] if target.authorization is None else [(b"Authorization", target.authorization)]
        with (
            _convert_errors(name, limits, deadline),
            _response(target.url, [*headers, *own], limits, deadline) as response,
        ):
            if response.status not in _REDIRECTS:
                yield response, target
                return
            following = _redirect_target(response, target.url, name)
        is_same = _origin(following) == _origin(target.url)
        target = Target(following, target.authorization if is_same else None)
    raise SourceError(f"{name}: more than {limits.max_redirects} redirects (limits.max_redirects)")


def _parse(name: str, url: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse the URL of a video or, relative to ``base``, of a redirect."""
    import httpx

    prefix = "" if base is None else "redirected to "
    try:
        parsed = httpx.URL(url) if base is None else base.join(url)
        host = parsed.host  # decodes international names, and raises a UnicodeError for those that are none
    except (httpx.InvalidURL, ValueError):
        # without the cause: it quotes the URL, maybe with a password
        raise SourceError(f"{name}: {prefix}an invalid URL") from None
    if parsed.scheme not in ("http", "https") or not host:
        raise SourceError(f"{name}: {prefix}{printable(parsed.scheme)}:, allowed are http and https with a host name")
    return parsed


def _origin(url: httpx.URL) -> tuple[str, bytes, int]:
    return url.scheme, url.raw_host, url.port or (443 if url.scheme == "https" else 80)


@contextlib.contextmanager
def _response(url: httpx.URL, more_headers: Headers, limits: Limits, deadline: Deadline) -> Iterator[Response]:
    """Send one request over a new connection, which is closed on exit without reading the rest."""
    import httpcore

    headers = [
        (b"Host", url.netloc),
        (b"User-Agent", b"telecine"),
        (b"Accept", b"*/*"),
        (b"Accept-Encoding", b"identity"),  # a compressed body could unpack to far more bytes than counted
        (b"Connection", b"close"),
        *more_headers,
    ]
    allowance = 2 * ByteLimit.of(limits, fetched=True).size + _OVERHEAD_BYTES
    timeouts = {"connect": limits.connect_timeout, "read": limits.read_timeout, "write": limits.read_timeout}
    with (
        httpcore.ConnectionPool(
            ssl_context=_tls_context() if url.scheme == "https" else None,
            network_backend=_PinnedBackend(limits, deadline, allowance),
        ) as pool,
        pool.stream(
            "GET",
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=headers,
            extensions={"timeout": timeouts},
        ) as response,
    ):
        yield response


def _redirect_target(response: Response, url: httpx.URL, name: str) -> httpx.URL:
    location = header(response, b"location")
    if location is None:
        raise SourceError(f"{name}: HTTP {response.status}, a redirect without a Location")
    target = _parse(name, location.decode("utf-8", "replace"), url)
    if url.scheme == "https" and target.scheme == "http":
        # an https URL promises that the video is not replaced on the way
        raise SourceError(f"{name}: redirected from https to http, which would give up the protection of https")
    return target


def read_body(
    response: Response,
    name: str,
    limit: ByteLimit,
    deadline: Deadline,
    status: int = 200,
    check_length: bool = True,
) -> Iterator[bytes]:
    """Yield the body of a response with this status. With ``check_length``, its length is checked before it arrives."""
    if response.status != status:
        # the standard phrase, not the server's own
        words = next((f" {known.phrase}" for known in HTTPStatus if known == response.status), "")
        raise SourceError(f"{name}: the server answered HTTP {response.status}{words}")
    encoding = (header(response, b"content-encoding") or b"identity").strip().lower()
    if encoding != b"identity":
        raise SourceError(f"{name}: the server sent a compressed body (Content-Encoding), which was not requested")
    announced = header(response, b"content-length")
    if check_length and announced is not None and announced.isdigit():
        limit.check(name, int(announced))
    received = 0
    for chunk in response.iter_stream():
        deadline.check("fetching the video")
        received += len(chunk)
        limit.check(name, received, at_least=True)
        yield chunk


def header(response: Response, wanted: bytes) -> bytes | None:
    """Return a header of a response by its name in lower case; None if it has none."""
    return next((value for key, value in response.headers if key.lower() == wanted), None)


@contextlib.contextmanager
def _convert_errors(name: str, limits: Limits, deadline: Deadline) -> Iterator[None]:
    """Convert httpcore's exceptions. Their text is dropped: it may quote the server."""
    import httpcore
    from httpcore import ConnectionNotAvailable, ProxyError

    try:
        yield
    except httpcore.ConnectTimeout as error:
        deadline.check("connecting to the host of the video")
        wait = f"{limits.connect_timeout:g} s (limits.connect_timeout)"
        raise SourceError(f"{name}: no connection within {wait}") from error
    except httpcore.TimeoutException as error:
        deadline.check("fetching the video")
        raise SourceError(f"{name}: no byte for {limits.read_timeout:g} s (limits.read_timeout)") from error
    except httpcore.ConnectError as error:
        raise SourceError(f"{name}: the connection to the host failed") from error
    except httpcore.ProtocolError as error:
        raise SourceError(f"{name}: the response ended early or is not valid HTTP; the video is incomplete") from error
    except (httpcore.NetworkError, httpcore.UnsupportedProtocol, ProxyError, ConnectionNotAvailable) as error:
        raise SourceError(f"{name}: the connection broke; the video is incomplete") from error
