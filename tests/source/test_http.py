"""Fetching over http(s): what arrives, what is refused, and how it ends. No address but loopback is ever dialled."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore
import pytest
import trustme

from telecine.deadline import Deadline
from telecine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineError,
    LimitError,
    OptionsError,
    SourceError,
    TelecineError,
)
from telecine.limits import Limits
from telecine.source import http as fetch_module
from telecine.source.http import fetch, is_public
from telecine.source.source import open_source
from telecine.source.urls import url_name

VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(range(256)) * 40
REAL_TLS_CONTEXT = fetch_module._tls_context
PRIVATE_OK = Limits(allow_private_hosts=True)


class Server:
    """An HTTP server on loopback. A route is a function of the request handler; the requests seen are kept."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Callable[[Any], None]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.seen.append((self.path, dict(self.headers.items())))
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client hangs up early in many tests
                    outer.routes[self.path.partition("?")[0]](self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Listener(http.server.ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._listener = Listener(("127.0.0.1", 0), Handler)
        if tls is not None:
            # the handshake is for the thread of the connection: a client that never begins it must not stop the others
            self._listener.socket = tls.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._listener.server_port
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
            self._listener.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Internet:
    """A simulated internet: a table of names, and one loopback server behind all addresses."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.ports: dict[str, int] = {}
        self.asked: list[str] = []
        self.dialled: list[str] = []
        self.dead: set[str] = set()


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch, server: Server) -> Internet:
    net = Internet()

    def resolve(host: str, port: int) -> list[str]:
        net.asked.append(host)
        if host not in net.names:
            raise OSError("no such name")
        return net.names[host]

    class Dialler(httpcore.SyncBackend):
        def connect_tcp(self, host: str, port: int, timeout: float | None = None, *rest: Any) -> Any:
            net.dialled.append(host)
            if host in net.dead:
                raise httpcore.ConnectError("refused")
            return super().connect_tcp("127.0.0.1", net.ports.get(host, server.port), timeout, *rest)

    monkeypatch.setattr(fetch_module, "resolve", resolve)
    monkeypatch.setattr(httpcore, "SyncBackend", Dialler)
    return net


def send(body: bytes = VIDEO, status: int = 200, **headers: str) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(*pieces: bytes, every: float = 0.0, forever: bool = False) -> Callable[[Any], None]:
    """Write chunks as they are, the last one again and again if ``forever``; then close."""

    def answer(handler: Any) -> None:
        for piece in pieces:
            handler.wfile.write(piece)
            time.sleep(every)
        # bounded, so that a test that fails does not leave a thread behind for good
        end = time.monotonic() + 20
        while forever and time.monotonic() < end:
            handler.wfile.write(pieces[-1])
            time.sleep(every)

    return answer


def get(url: str, limits: Limits = PRIVATE_OK, deadline: Deadline | None = None) -> bytes:
    return b"".join(fetch(url, limits, deadline or Deadline(30)))


def test_fetch_returns_the_body_and_requests_no_compression(server: Server) -> None:
    server.routes["/clip.mp4"] = send()
    assert get(server.url("/clip.mp4?token=1")) == VIDEO
    path, headers = server.seen[0]
    assert path == "/clip.mp4?token=1"
    assert headers["Accept-Encoding"] == "identity"


def test_fetched_source_is_in_memory_or_in_a_mapped_file(server: Server) -> None:
    large = VIDEO * 600
    assert len(large) > 4 << 20
    server.routes["/small.mp4"] = send()
    server.routes["/large.mp4"] = send(large)
    for path, expected in (("/small.mp4", VIDEO), ("/large.mp4", large)):
        with open_source(server.url(path + "?key=s3cret"), PRIVATE_OK, Deadline(30)) as source:
            assert source.data == expected
            assert source.data.readonly
            assert source.name == f"127.0.0.1{path}"


def test_a_web_page_with_status_200_is_refused_as_html(server: Server) -> None:
    server.routes["/clip.mp4"] = send(b"<!DOCTYPE html><html><body>please log in</body></html>")
    with pytest.raises(SourceError, match="HTML page") as caught:
        open_source(server.url("/clip.mp4"), PRIVATE_OK, Deadline(30))
    assert "log in" not in str(caught.value).replace("login", "")


def test_an_empty_body_is_an_error(server: Server) -> None:
    server.routes["/clip.mp4"] = send(b"")
    with pytest.raises(SourceError, match="empty"):
        open_source(server.url("/clip.mp4"), PRIVATE_OK, Deadline(30))


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.routes["/clip.mp4"] = send()
    assert get(server.url("/clip.mp4")) == VIDEO


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "ff0e::1",
        "2001:db8::1",
        "100::1",
        "4000::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::1",
        "2002:a00:1::1",
        "2001:0:808:808::1",
    ],
)
def test_non_public_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1]",
        "0.0.0.0",
        "0",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "169.254.169.254",
        "10.0.0.1",
        "100.64.0.1",
    ],
)
def test_private_hosts_are_refused_however_they_are_spelled(
    host: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dial(*args: object, **options: object) -> None:
        raise AssertionError("a refused host was dialled")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", dial)
    server.routes["/"] = send()
    with pytest.raises(SourceError, match=r"not on the public internet|neither a host name|an invalid URL"):
        get(server.url("/", host), Limits())


def test_a_public_address_in_an_odd_spelling_is_refused_even_where_private_hosts_are_allowed(
    internet: Internet,
) -> None:
    with pytest.raises(SourceError, match="four decimal numbers"):
        get("http://134744072/clip.mp4")  # 8.8.8.8
    assert internet.asked == internet.dialled == []


def test_one_private_address_among_public_ones_refuses_the_host(server: Server, internet: Internet) -> None:
    internet.names["mixed.example"] = ["93.184.216.34", "10.0.0.7"]
    server.routes["/clip.mp4"] = send()
    with pytest.raises(
        SourceError, match=r"mixed\.example is not on the public internet.*allow_private_hosts"
    ) as caught:
        get("http://mixed.example/clip.mp4", Limits())
    assert internet.dialled == []
    assert "10.0.0.7" not in str(caught.value)


def test_host_is_resolved_once_and_the_checked_address_connected(server: Server, internet: Internet) -> None:
    internet.names["video.example"] = ["93.184.216.34"]
    server.routes["/clip.mp4"] = send()
    assert get("http://video.example/clip.mp4", Limits()) == VIDEO
    assert internet.asked == ["video.example"]
    assert internet.dialled == ["93.184.216.34"]
    assert server.seen[0][1]["Host"] == "video.example"


def test_the_next_address_is_tried_when_one_does_not_answer(server: Server, internet: Internet) -> None:
    internet.names["video.example"] = ["2606:4700::1111", "93.184.216.34"]
    internet.dead.add("2606:4700::1111")
    server.routes["/clip.mp4"] = send()
    assert get("http://video.example/clip.mp4", Limits()) == VIDEO
    assert internet.dialled == ["2606:4700::1111", "93.184.216.34"]


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_host_that_cannot_be_resolved_is_an_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(SourceError, match=r"nowhere\.example cannot be resolved"):
        get("http://nowhere.example/clip.mp4")


def test_every_redirect_is_resolved_and_checked(server: Server, internet: Internet) -> None:
    internet.names = {"video.example": ["93.184.216.34"], "cdn.example": ["93.184.216.35"]}
    server.routes["/watch"] = send(b"moved", 302, Location="/v2/watch?id=7")
    server.routes["/v2/watch"] = send(b"moved", 301, Location="//cdn.example/edge")
    server.routes["/edge"] = send(b"", 307, Location="http://cdn.example/final/clip.mp4?sig=a%2Fb&e=1#t=3")
    server.routes["/final/clip.mp4"] = send()
    assert get("http://video.example/watch", Limits()) == VIDEO
    assert [path for path, _ in server.seen] == ["/watch", "/v2/watch?id=7", "/edge", "/final/clip.mp4?sig=a%2Fb&e=1"]
    assert internet.asked == ["video.example", "video.example", "cdn.example", "cdn.example"]
    assert internet.dialled == ["93.184.216.34", "93.184.216.34", "93.184.216.35", "93.184.216.35"]


@pytest.mark.parametrize("target", ["http://127.0.0.1/secret", "http://inside.example/secret", "http://[::1]/secret"])
def test_redirect_to_a_private_host_is_refused_before_connecting(
    target: str, server: Server, internet: Internet
) -> None:
    internet.names = {
        "video.example": ["93.184.216.34"],
        "inside.example": ["192.168.0.9"],
        "127.0.0.1": ["127.0.0.1"],
        "::1": ["::1"],
    }
    server.routes["/clip.mp4"] = send(b"", 302, Location=target)
    server.routes["/secret"] = send(b"secret")
    with pytest.raises(SourceError, match="not on the public internet"):
        get("http://video.example/clip.mp4", Limits())
    assert internet.dialled == ["93.184.216.34"]
    assert [path for path, _ in server.seen] == ["/clip.mp4"]


def test_host_that_becomes_private_between_redirects_is_refused(server: Server, internet: Internet) -> None:
    internet.names["rebind.example"] = ["93.184.216.34"]

    def turn(handler: Any) -> None:
        internet.names["rebind.example"] = ["127.0.0.1"]
        send(b"", 302, Location="/again")(handler)

    server.routes["/clip.mp4"] = turn
    server.routes["/again"] = send(b"secret")
    with pytest.raises(SourceError, match="not on the public internet"):
        get("http://rebind.example/clip.mp4", Limits())
    assert internet.dialled == ["93.184.216.34"]


def test_a_redirect_loop_ends_at_the_limit(server: Server) -> None:
    server.routes["/loop"] = send(b"", 302, Location="/loop")
    with pytest.raises(SourceError, match=r"more than 3 redirects \(limits.max_redirects\)"):
        get(server.url("/loop"), Limits(allow_private_hosts=True, max_redirects=3))
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "redirected to file:, allowed are http and https"),
        ("ftp://127.0.0.1/clip.mp4", "redirected to ftp:"),
        ("data:video/mp4;base64,AAAA", "redirected to data:"),
        ("http://host:port/", "redirected to an invalid URL"),
        ("http://xn--a/", "redirected to an invalid URL"),
        ("http://xn--/", "redirected to an invalid URL"),
        (None, "without a Location"),
    ],
)
def test_a_redirect_to_anything_but_http_is_refused(location: str | None, message: str, server: Server) -> None:
    headers = {} if location is None else {"Location": location}
    server.routes["/clip.mp4"] = send(b"", 302, **headers)
    with pytest.raises(SourceError, match=message):
        get(server.url("/clip.mp4"))
    assert len(server.seen) == 1


def test_credentials_go_to_their_own_server_only(server: Server, internet: Internet) -> None:
    internet.names = {"video.example": ["93.184.216.34"], "cdn.example": ["93.184.216.35"]}
    server.routes["/a"] = send(b"", 302, Location="/b")
    server.routes["/b"] = send(b"", 302, Location="http://cdn.example/c")
    server.routes["/c"] = send(b"", 302, Location="http://video.example/d")
    server.routes["/d"] = send()
    assert get("http://user:pass%20word@video.example/a", Limits()) == VIDEO
    sent = [headers.get("Authorization") for _, headers in server.seen]
    assert sent == ["Basic dXNlcjpwYXNzIHdvcmQ=", "Basic dXNlcjpwYXNzIHdvcmQ=", None, None]
    assert all("pass" not in value for _, headers in server.seen for value in headers.values())


@pytest.mark.parametrize(
    "rest",
    [
        "127.0.0.1:{port}/missing/clip.mp4?token=t0ken#t0ken",
        "127.0.0.1:{port}/broken/clip.mp4?token=t0ken",
        "127.0.0.1:{port}/loop/clip.mp4?token=t0ken",
        "127.0.0.1:1/clip.mp4?token=t0ken",
        "127.0.0.1:t0ken/clip.mp4",
        "nowhere.invalid/clip.mp4?token=t0ken",
        "/clip.mp4?token=t0ken",
        "[::zz]/clip.mp4?token=t0ken",
        "\x00/clip.mp4?token=t0ken",
    ],
)
def test_no_message_contains_credentials_or_a_query(rest: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fetch_module.resolve

    def resolve(host: str, port: int) -> list[str]:
        if host.endswith(".invalid"):
            raise OSError("no such name")
        return real(host, port)

    monkeypatch.setattr(fetch_module, "resolve", resolve)
    server.routes["/missing/clip.mp4"] = send(b"t0ken", 403)
    server.routes["/broken/clip.mp4"] = raw(b"t0ken t0ken\r\n\r\n")
    server.routes["/loop/clip.mp4"] = send(b"", 302, Location="/loop/clip.mp4?again=t0ken")
    with pytest.raises(SourceError) as caught:
        open_source("http://us3r:pa55@" + rest.format(port=server.port), PRIVATE_OK, Deadline(30))
    assert not [word for word in ("us3r", "pa55", "t0ken") if word in str(caught.value)]
    # nor do the errors that a traceback would show with it
    error: BaseException | None = caught.value
    while error is not None:
        assert not [word for word in ("us3r", "pa55") if word in str(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_url_name_is_host_and_last_path_segment() -> None:
    assert url_name("https://user:pw@cdn.example:8443/a/b/clip.mp4?sig=x#t") == "cdn.example/…/clip.mp4"
    assert url_name("https://cdn.example/clip.mp4") == "cdn.example/clip.mp4"
    assert url_name("https://cdn.example") == "cdn.example/"
    assert url_name("http://user:p/w@cdn.example/w@rd") == "user/…/rd"
    assert url_name("http://[::bad") == "the URL"
    assert len(url_name("https://cdn.example/" + "x" * 500)) == 80


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "HTTP 403 Forbidden"),
        (404, "HTTP 404 Not Found"),
        (500, "HTTP 500 Internal Server Error"),
        (599, "HTTP 599$"),
    ],
)
def test_http_error_names_the_status_and_never_the_body(status: int, message: str, server: Server) -> None:
    server.routes["/clip.mp4"] = send(b"the body", status)
    with pytest.raises(SourceError, match=message) as caught:
        get(server.url("/clip.mp4"))
    assert "the body" not in str(caught.value)


@pytest.mark.parametrize("status", [206, 304])
def test_response_with_status_206_or_304_is_refused(status: int, server: Server) -> None:
    server.routes["/clip.mp4"] = send(b"" if status == 304 else VIDEO, status)
    with pytest.raises(SourceError, match=f"HTTP {status}"):
        get(server.url("/clip.mp4"))


def test_a_compressed_body_is_refused(server: Server) -> None:
    server.routes["/clip.mp4"] = send(VIDEO, Content_Encoding="gzip")
    with pytest.raises(SourceError, match="compressed body"):
        get(server.url("/clip.mp4"))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
    ids=["length", "chunks", "chunk", "two lengths", "negative", "head", "not HTTP", "nothing"],
)
def test_truncated_or_invalid_response_is_an_error(answer: bytes, server: Server) -> None:
    server.routes["/clip.mp4"] = raw(answer)
    with pytest.raises(SourceError, match="ended early or is not valid HTTP"):
        get(server.url("/clip.mp4"))


def test_refused_connection_is_an_error(server: Server) -> None:
    server.close()
    with pytest.raises(SourceError, match="connection to the host failed"):
        get(server.url("/clip.mp4"))


def test_every_httpcore_exception_is_converted() -> None:
    foreign = [
        kind
        for name in httpcore.__all__
        if isinstance(kind := getattr(httpcore, name), type) and issubclass(kind, Exception)
    ]
    assert len(foreign) >= 12
    for kind in foreign:
        with pytest.raises(SourceError), fetch_module._convert_errors("clip.mp4", Limits(), Deadline()):
            raise kind("text")


SMALL = Limits(allow_private_hosts=True, max_fetch_bytes=10_000)


@pytest.mark.timing
def test_too_large_content_length_is_refused_before_the_body(server: Server) -> None:
    server.routes["/clip.mp4"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10001\r\n\r\n", every=5)
    begun = time.monotonic()
    with pytest.raises(LimitError, match=r"10001 bytes, more than the 10000 bytes of limits.max_fetch_bytes"):
        get(server.url("/clip.mp4"), SMALL)
    assert time.monotonic() - begun < 4


def test_an_endless_body_ends_at_the_limit(server: Server) -> None:
    chunk = b"400\r\n" + bytes(1024) + b"\r\n"
    server.routes["/clip.mp4"] = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, forever=True)
    with pytest.raises(LimitError, match=r"limits.max_fetch_bytes"):
        get(server.url("/clip.mp4"), SMALL)


def test_a_body_of_exactly_the_limit_is_accepted(server: Server) -> None:
    server.routes["/clip.mp4"] = send(bytes(10_000))
    assert len(get(server.url("/clip.mp4"), SMALL)) == 10_000


def test_max_bytes_holds_for_urls_where_it_is_the_smaller_one(server: Server) -> None:
    server.routes["/clip.mp4"] = send(bytes(2000))
    with pytest.raises(LimitError, match=r"1000 bytes of limits.max_bytes"):
        get(server.url("/clip.mp4"), Limits(allow_private_hosts=True, max_bytes=1000))


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 400,),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 9000 + b"\r\na\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"Header: x\r\n" * 400),
    ],
    ids=["informational", "chunk extensions", "headers"],
)
def test_endless_protocol_data_without_a_body_is_refused(pieces: tuple[bytes, ...], server: Server) -> None:
    server.routes["/clip.mp4"] = raw(*pieces, forever=True)
    with pytest.raises(SourceError, match=r"more than a response|not valid HTTP"):
        get(server.url("/clip.mp4"), SMALL, Deadline())


@pytest.mark.timing
@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "],
    ids=["body", "header"],
)
def test_slow_server_is_stopped_by_the_deadline_although_each_read_is_in_time(head: bytes, server: Server) -> None:
    server.routes["/clip.mp4"] = raw(head, b"x", every=0.02, forever=True)
    begun = time.monotonic()
    with pytest.raises(DeadlineError, match=r"timeout of 0\.4 s"):
        get(server.url("/clip.mp4"), PRIVATE_OK, Deadline(0.4))
    assert 0.4 <= time.monotonic() - begun < 2


@pytest.mark.timing
def test_silent_server_is_stopped_by_the_deadline_before_the_read_timeout(server: Server) -> None:
    server.routes["/clip.mp4"] = raw(b"", every=3)
    begun = time.monotonic()
    with pytest.raises(DeadlineError):
        get(server.url("/clip.mp4"), PRIVATE_OK, Deadline(0.3))
    assert time.monotonic() - begun < 2


@pytest.mark.timing
def test_silent_server_is_stopped_by_the_read_timeout(server: Server) -> None:
    server.routes["/clip.mp4"] = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", every=2)
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"no byte for 0\.4 s \(limits.read_timeout\)"):
        get(server.url("/clip.mp4"), Limits(allow_private_hosts=True, read_timeout=0.4), Deadline())
    assert 0.4 <= time.monotonic() - begun < 2


def test_unanswered_connection_is_stopped_by_the_connect_timeout(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    internet.names["video.example"] = ["93.184.216.34", "93.184.216.35"]
    waits: list[float | None] = []

    def never(self: object, host: str, port: int, timeout: float | None = None, *rest: object) -> None:
        waits.append(timeout)
        time.sleep(timeout or 0)
        raise httpcore.ConnectTimeout("timed out")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", never)
    with pytest.raises(SourceError, match=r"no connection within 0\.4 s \(limits.connect_timeout\)"):
        get("http://video.example/clip.mp4", Limits(connect_timeout=0.4), Deadline())
    assert waits == pytest.approx([0.2, 0.2], abs=0.1)


@pytest.mark.timing
def test_a_cancelled_request_ends_while_it_waits_for_the_server(server: Server) -> None:
    server.routes["/clip.mp4"] = raw(b"", every=3)
    deadline = Deadline(30)
    timer = threading.Timer(0.2, deadline.cancel)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        get(server.url("/clip.mp4"), PRIVATE_OK, deadline)
    assert time.monotonic() - begun < 2
    timer.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for video.example with its key, and the authority that issued it, in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority = trustme.CA()
    authority.issue_cert("video.example").private_key_and_cert_chain_pem.write_to_path(str(path))
    authority.cert_pem.write_to_path(str(path), append=True)
    return path


@pytest.fixture
def tls_server(certificate: Path, internet: Internet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(fetch_module, "_tls_context", lambda: trusting)
    server = Server(context)
    internet.names = {"video.example": ["93.184.216.40"], "other.example": ["93.184.216.40"]}
    internet.ports["93.184.216.40"] = server.port
    yield server
    server.close()


def test_https_connects_to_the_checked_address_and_verifies_the_host_name(
    tls_server: Server, internet: Internet
) -> None:
    tls_server.routes["/clip.mp4"] = send(VIDEO * 20)
    assert get("https://video.example/clip.mp4", Limits()) == VIDEO * 20
    assert internet.dialled == ["93.184.216.40"]


def test_a_certificate_for_another_name_is_refused(tls_server: Server) -> None:
    tls_server.routes["/clip.mp4"] = send()
    with pytest.raises(SourceError, match=r"certificate of other\.example is not accepted: Hostname mismatch"):
        get("https://other.example/clip.mp4", Limits())
    assert tls_server.seen == []


def test_an_unknown_certificate_is_refused(tls_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "_tls_context", REAL_TLS_CONTEXT)
    with pytest.raises(SourceError, match=r"certificate of video\.example is not accepted: self"):
        get("https://video.example/clip.mp4", Limits())
    assert tls_server.seen == []


def test_a_redirect_from_https_to_http_is_refused(tls_server: Server, server: Server) -> None:
    tls_server.routes["/clip.mp4"] = send(b"", 302, Location="http://video.example/clip.mp4")
    with pytest.raises(SourceError, match="from https to http"):
        get("https://video.example/clip.mp4", Limits())
    assert server.seen == []


def test_a_redirect_from_http_to_https_is_followed(tls_server: Server, server: Server, internet: Internet) -> None:
    internet.names["plain.example"] = ["93.184.216.34"]
    server.routes["/clip.mp4"] = send(b"", 301, Location="https://video.example/clip.mp4")
    tls_server.routes["/clip.mp4"] = send()
    assert get("http://plain.example/clip.mp4", Limits()) == VIDEO


@pytest.mark.timing
def test_a_tls_handshake_without_an_answer_ends_by_the_deadline_and_leaves_no_connection_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begun = time.monotonic()
        with pytest.raises(DeadlineError):
            get(f"https://127.0.0.1:{listener.getsockname()[1]}/", PRIVATE_OK, Deadline(0.3))
        assert time.monotonic() - begun < 2
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(2)
            while connection.recv(4096):
                pass


def test_a_request_cancelled_between_connection_and_handshake_leaves_no_connection_open(
    tls_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = Deadline()
    streams: list[httpcore.NetworkStream] = []
    dialler = httpcore.SyncBackend.connect_tcp

    def connect_and_cancel(*args: Any) -> httpcore.NetworkStream:
        streams.append(dialler(*args))
        deadline.cancel()
        return streams[-1]

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect_and_cancel)
    with pytest.raises(Cancelled):
        get("https://video.example/clip.mp4", Limits(), deadline)
    assert [stream.get_extra_info("socket").fileno() for stream in streams] == [-1]


def test_without_httpx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'telecine\[http\]'"):
        get("http://video.example/clip.mp4")


def test_importing_the_module_brings_in_neither_httpx_nor_httpcore() -> None:
    code = "import sys, telecine.source.source; sys.exit(bool({'httpx', 'httpcore'} & set(sys.modules)))"
    environment = {"PYTHONPATH": str(Path(fetch_module.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize("content", [None, b"no certificate"], ids=["absent", "not a certificate"])
def test_certificates_that_cannot_be_read_are_named_by_their_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificates.pem"))
    monkeypatch.setattr(fetch_module, "_tls_context", REAL_TLS_CONTEXT)
    REAL_TLS_CONTEXT.cache_clear()
    if content is not None:
        (tmp_path / "certificates.pem").write_bytes(content)
    with pytest.raises(BackendUnavailable, match="correct or unset SSL_CERT_FILE in the environment"):
        get("https://127.0.0.1:1/", PRIVATE_OK)
    assert REAL_TLS_CONTEXT.cache_info().currsize == 0  # corrected, it is read again


@pytest.mark.parametrize("url", ["http://", "http:clip.mp4", "https:///clip.mp4", "http://a b/", "http://a\n.example/"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(TelecineError) as caught:
        open_source(url, PRIVATE_OK, Deadline(5))
    assert isinstance(caught.value, SourceError | OptionsError)


@pytest.mark.parametrize("host", ["xn--a", "xn--", "xn--zzzzzz--"])
def test_a_host_that_is_no_international_name_is_an_invalid_url(host: str) -> None:
    with pytest.raises(SourceError, match="an invalid URL"):
        open_source(f"http://{host}/video.mp4", Limits(), Deadline(5))


@pytest.mark.timing
def test_a_host_with_thousands_of_addresses_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def connect(self: object, address: str, port: int, timeout: float, *_: object) -> None:
        tried.append(address)
        time.sleep(min(timeout, 0.01))
        raise httpcore.ConnectError("refused")

    addresses = [f"93.184.{high}.{low}" for high in range(80) for low in range(250)]
    monkeypatch.setattr(fetch_module, "resolve", lambda host, port: addresses)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    started = time.monotonic()
    with pytest.raises(TelecineError):
        open_source("http://example.com/video.mp4", Limits(connect_timeout=0.5), Deadline())
    assert time.monotonic() - started < 3 and 0 < len(tried) < len(addresses)
