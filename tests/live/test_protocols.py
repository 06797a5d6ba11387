"""Every protocol gives the right frames soon; credentials stay secret, and hosts and protocols are checked."""

from __future__ import annotations

import itertools
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trustme

import telecine
from support.ffmpeg_cli import ffmpeg
from support.live_servers import (
    ffmpeg_server,
    free_port,
    hls_server,
    live_clip,
    play,
    rtsp_server,
    serve_connections,
    serve_folder,
)
from support.painting import read_number
from telecine.live.uris import LiveUri, host_limits

RTSP_ANSWER = "RTSP/1.0 {}\r\nCSeq: {}\r\n{}\r\n"


@contextmanager
def serve(protocol: str, clip: str, folder: Path) -> Iterator[str]:
    """Play a clip and yield its URI."""
    port = free_port()
    if protocol == "hls":
        with hls_server(clip, folder) as uri:
            yield uri
    elif protocol.startswith("rtsp"):
        codec = "hevc" if "hevc" in clip else "h264"
        with rtsp_server(clip, codec=codec) as server:
            yield server.uri
    elif protocol == "tcp":
        with serve_connections(lambda connection: play(connection.sendall, clip)) as (port, _):
            yield f"tcp://127.0.0.1:{port}"
    else:
        output, listen = {
            "http-ts": (f"http://127.0.0.1:{port}/live.ts", ["-f", "mpegts", "-listen", "1"]),
            "http-flv": (f"http://127.0.0.1:{port}/live.flv", ["-f", "flv", "-listen", "1"]),
            "rtmp": (f"rtmp://127.0.0.1:{port}/app/key", ["-f", "flv", "-listen", "1"]),
            "udp": (f"udp://127.0.0.1:{port}?pkt_size=1316", ["-f", "mpegts"]),
        }[protocol]
        with ffmpeg_server(clip, output, *listen, output):
            yield output.partition("?")[0]


@pytest.mark.parametrize("clip", ["live_h264.mp4", "live_h264_b.mp4", "live_hevc.mp4"])
@pytest.mark.parametrize("protocol", ["rtsp", "rtsp-udp", "rtmp", "http-ts", "http-flv", "hls", "udp", "tcp"])
def test_frames_are_exact_and_the_first_segment_comes_soon(protocol: str, clip: str, tmp_path: Path) -> None:
    whole = telecine.load(live_clip(clip)).data
    transport = "udp" if protocol == "rtsp-udp" else "tcp"
    with serve(protocol, clip, tmp_path) as uri:
        with telecine.live(uri, every=1, frames=4, transport=transport) as stream:  # type: ignore[arg-type]
            segments = list(itertools.islice(stream, 3))
    for segment in segments:
        shown = [read_number(frame.image) for frame in segment.frames]
        assert shown == sorted(shown) and 3 <= len(shown) <= 4
        # the painted number counts frames of a thirtieth of a second
        np.testing.assert_allclose(np.diff(shown) / 30, np.diff(segment.frames.timestamps), atol=0.005)
        for frame, number in zip(segment.frames, shown, strict=True):
            assert np.abs(frame.image.astype(int) - whole[number]).max() <= 2
        assert abs(segment.wall_end + segment.age - time.time()) < 10
    assert [segment.sequence for segment in segments] == [0, 1, 2]
    assert [segment.discontinuity for segment in segments] == [None] * 3


@pytest.mark.timing
def test_the_first_segment_arrives_within_a_second_and_a_half_beyond_its_length_and_the_next_are_fresh() -> None:
    with rtsp_server("live_h264.mp4") as server:
        started = time.monotonic()
        with telecine.live(server.uri, every=1, frames=4) as stream:
            next(stream)
            assert time.monotonic() - started < 2.5
            ages = [next(stream).age for _ in range(4)]
    assert max(ages) < 0.5


def test_the_senders_clock_is_used_where_rtcp_gives_it() -> None:
    with rtsp_server("live_h264.mp4") as server, telecine.live(server.uri, every=1, frames=2) as stream:
        assert list(itertools.islice((segment.clock for segment in stream), 3))[1:] == ["sender", "sender"]


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_right_credentials_open_the_stream(codec: str) -> None:
    with rtsp_server(f"live_{codec}.mp4", codec=codec, user="joe", password="s3%40cret") as server:
        uri = server.uri.replace("s3%40cret", "s3%2540cret")
        with telecine.live(uri, every=0.5, frames=1) as stream:
            assert stream.get(timeout=20) is not None


def test_wrong_credentials_end_the_stream_and_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with rtsp_server("live_h264.mp4", user="joe", password="right") as server, caplog.at_level(logging.DEBUG):
        uri = server.uri.replace("right", "hunter2")
        with telecine.live(uri, every=0.5, frames=1) as stream:
            with pytest.raises(telecine.SourceError, match="refuses the credentials") as caught:
                stream.get(timeout=20)
            assert stream.state == "failed"
            names = [thread.name for thread in threading.enumerate()]
            told = [repr(stream), stream.name, str(stream.error), str(caught.value), caplog.text, *names]
            assert not [text for text in told if "hunter2" in text or "joe" in text]


@pytest.mark.parametrize("scheme", ["rtsp", "rtsps", "rtmp", "http", "tcp"])
def test_secrets_of_a_uri_are_in_no_message(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    uris = [
        f"{scheme}://joe:hunter2@127.0.0.1:{port}/a/b?token=hunter2",
        f"{scheme}://127.0.0.1:{port}/user=joe_password=hunter2_channel=1.sdp",
    ]
    for uri in uris:
        with caplog.at_level(logging.DEBUG), telecine.live(uri, every=1, frames=1) as stream:
            end = time.monotonic() + 10
            while stream.error is None and time.monotonic() < end:
                time.sleep(0.02)
            assert stream.error is not None and f"127.0.0.1:{port}" in stream.error
            assert not [text for text in (stream.error, repr(stream), caplog.text) if "hunter2" in text]


@pytest.mark.parametrize("split", [False, True])
def test_a_redirect_of_an_rtsp_server_is_not_followed(split: bool) -> None:
    reached = threading.Event()

    def elsewhere(connection: socket.socket) -> None:
        reached.set()

    with serve_connections(elsewhere) as (other, _):

        def redirect(connection: socket.socket) -> None:
            number = 0
            while request := connection.recv(4096):
                number += 1
                location = f"Location: rtsp://127.0.0.1:{other}/x\r\n"
                answer = RTSP_ANSWER.format("302 Moved Temporarily", number, location).encode()
                parts = [answer[:9], answer[9:]] if split else [answer]
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.1)
                assert request

        with serve_connections(redirect) as (port, _):
            with telecine.live(f"rtsp://127.0.0.1:{port}/x", every=1, frames=1) as stream:
                end = time.monotonic() + 10
                while stream.error is None and time.monotonic() < end:
                    time.sleep(0.02)
                assert stream.error is not None and "redirects" in stream.error
    assert not reached.is_set()


@pytest.mark.parametrize(
    "named", ["http://127.0.0.1:{}/x.ts", "file:///etc/passwd", "tcp://127.0.0.1:{}", "concat:/etc/passwd"]
)
def test_a_playlist_cannot_lead_to_another_protocol_or_a_host_that_is_not_allowed(named: str) -> None:
    reached = threading.Event()

    def elsewhere(connection: socket.socket) -> None:
        reached.set()

    with serve_connections(elsewhere) as (other, _):
        segment = named.format(other).replace("127.0.0.1", "127.0.0.2" if named.startswith("http") else "127.0.0.1")
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{segment}\n".encode()

        def serve_playlist(connection: socket.socket) -> None:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(playlist), playlist))

        with serve_connections(serve_playlist) as (port, _):
            allowed = ["127.0.0.1"] if named.startswith("http") else None
            limits = telecine.Limits(allow_private_hosts=True)
            uri = f"http://127.0.0.1:{port}/live.m3u8"
            with telecine.live(uri, every=1, frames=1, timeout=2, allowed_hosts=allowed, limits=limits) as stream:
                end = time.monotonic() + 10
                while stream.error is None and time.monotonic() < end:
                    time.sleep(0.02)
                assert stream.error is not None
    assert not reached.is_set()


def test_a_public_stream_cannot_lead_to_a_private_host() -> None:
    assert not host_limits("8.8.8.8", 80, None, telecine.Limits()).allow_private_hosts
    assert host_limits("192.168.1.7", 80, None, telecine.Limits()).allow_private_hosts
    # with an allow-list, only the limits say so, and redirects are not followed
    for allows in (False, True):
        found = host_limits("192.168.1.7", 80, ["192.168.1.7"], telecine.Limits(allow_private_hosts=allows))
        assert found.allow_private_hosts == allows and found.max_redirects == 0


def test_only_allowed_hosts_are_reached() -> None:
    with serve_connections(lambda connection: play(connection.sendall)) as (port, accepted):
        uri = f"tcp://127.0.0.1:{port}"
        with pytest.raises(telecine.SourceError, match="allowed_hosts"):
            telecine.live(uri, every=1, frames=1, allowed_hosts=["camera.example"])
        with telecine.live(uri, every=1, frames=1, allowed_hosts=["127.0.0.1"]) as stream:
            end = time.monotonic() + 10
            while stream.error is None and time.monotonic() < end:
                time.sleep(0.02)
            assert "allow_private_hosts" in str(stream.error)
        assert not accepted
        limits = telecine.Limits(allow_private_hosts=True)
        with telecine.live(uri, every=0.5, frames=1, allowed_hosts=["127.0.0.1"], limits=limits) as stream:
            assert stream.get(timeout=10) is not None


@pytest.mark.parametrize(
    "uri",
    [
        "concat://x",
        "file:///x",
        "gopher://x:1/",
        "rtsp://",
        "rtsp://host:99999/",
        "udp://239.0.0.1",
        "rtsp://a b/",
        "tcp://x/",
        7,
    ],
)
def test_uris_that_are_refused(uri: str) -> None:
    with pytest.raises(telecine.OptionsError):
        telecine.live(uri, every=1, frames=1)


@pytest.mark.parametrize(
    "options",
    [
        *({"every": 0}, {"every": "x"}, {"frames": 0}, {"overlap": -1}, {"transport": "quic"}, {"timeout": 0}),
        *({"size": "big"}, {"device": "tpu"}, {"key_frames": 1}, {"limits": 5}),
    ],
)
def test_options_that_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(telecine.OptionsError):
        telecine.live("tcp://127.0.0.1:1", **{"every": 1, "frames": 1, **options})  # type: ignore[arg-type]


def test_names_of_streams_tell_cameras_apart_without_secrets() -> None:
    assert LiveUri.of("rtsp://u:p@cam:8554/a/b/main?x=p").name == "rtsp://cam:8554/…/main"
    assert LiveUri.of("rtmp://host/app/streamkey").name == "rtmp://host/…/"
    assert LiveUri.of("rtsp://cam/user=a&password=p").name == "rtsp://cam/…/"


def test_rtsps_verifies_the_certificate_unless_told_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with rtsp_server("live_h264.mp4") as server:
        plain = int(server.uri.rpartition(":")[2].partition("/")[0])

        def forward(connection: socket.socket) -> None:
            secure = context.wrap_socket(connection, server_side=True)
            with socket.create_connection(("127.0.0.1", plain)) as inner, secure:
                while True:
                    for ready in select.select([secure, inner], [], [])[0]:
                        data = ready.recv(1 << 16)
                        while ready is secure and secure.pending():
                            data += secure.recv(1 << 16)
                        if not data:
                            return
                        (inner if ready is secure else secure).sendall(data)

        with serve_connections(forward) as (port, _):
            uri = f"rtsps://127.0.0.1:{port}/clip"
            with telecine.live(uri, every=0.5, frames=1) as stream:
                end = time.monotonic() + 10
                while stream.error is None and time.monotonic() < end:
                    time.sleep(0.02)
                assert "self-signed" in str(stream.error) or "certificate" in str(stream.error)
            with telecine.live(uri, every=0.5, frames=1, verify_tls=False) as stream:
                assert stream.get(timeout=20) is not None
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            with telecine.live(uri, every=0.5, frames=2) as stream:
                assert stream.get(timeout=20) is not None


def test_a_recording_behind_hls_is_played_once(tmp_path: Path) -> None:
    command = ["-i", live_clip("live_h264.mp4"), "-t", "3", "-c", "copy", "-f", "hls", "-hls_time", "1"]
    ffmpeg([*command, "-hls_playlist_type", "vod", tmp_path / "live.m3u8"])
    with (
        serve_folder(tmp_path) as port,
        telecine.live(f"http://127.0.0.1:{port}/live.m3u8", every=1, frames=3) as stream,
    ):
        segments = list(stream)
    assert stream.error is None
    shown = [read_number(frame.image) for segment in segments for frame in segment.frames]
    assert shown == sorted(shown) and shown[0] < 15 and shown[-1] > 75


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_an_http_server_that_refuses_the_credentials_ends_the_stream(status: str) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    with serve_connections(refuse) as (port, _):
        with telecine.live(f"http://joe:hunter2@127.0.0.1:{port}/x.ts", every=1, frames=1) as stream:
            with pytest.raises(telecine.SourceError, match=status[:3]):
                stream.get(timeout=10)
            assert stream.state == "failed"
