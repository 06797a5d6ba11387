"""Servers of live streams on this machine, as context managers that yield the URI, and the clips that they play."""

from __future__ import annotations

import functools
import http.server
import itertools
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import imageio_ffmpeg
import pytest

from support.recipes import Recipe, encode, make

__all__ = [
    "Server", "ffmpeg_server", "free_port", "hls_server", "live_clip", "lossy_rtsp_proxy", "play", "rtsp_server",
    "serve_connections", "serve_folder",
]  # fmt: skip

_GST_SERVER = Path(__file__).with_name("gst_rtsp_server.py")
_IS_REQUIRED = bool(os.environ.get("TELECINE_REQUIRE_RTSP"))
_SYSTEM_PYTHON = "/usr/bin/python3"
_X264 = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p -threads 1"
_RECIPES: dict[str, Recipe] = {
    "live_h264.mp4": encode(f"{_X264} -g 15 -bf 0", (96, 64), 1200),
    "live_h264_b.mp4": encode("-c:v libx264 -pix_fmt yuv420p -threads 1 -g 30 -bf 3", (96, 64), 600),
    "live_hevc.mp4": encode(
        "-c:v libx265 -preset ultrafast -x265-params keyint=15:log-level=none -tag:v hvc1", (96, 64), 900
    ),
    "live_large.mp4": encode(f"{_X264} -g 15 -bf 0", (160, 96), 600, "15"),
    "live_1080p.mp4": encode(f"{_X264} -g 30 -b:v 4M", (1920, 1080), 300),
}


def live_clip(name: str) -> Path:
    """Return the path of a clip that is long enough to be played as a live stream."""
    return make(name, _RECIPES)


def free_port() -> int:
    """Return a TCP port that nothing listens to."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Server:
    """A child process that serves a stream."""

    def __init__(self, uri: str, command: list[str]) -> None:
        self.uri = uri
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def freeze(self) -> None:
        """Stop the process: its connections stay open, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@functools.cache
def _has_rtsp_server() -> bool:
    code = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    try:
        return subprocess.run([_SYSTEM_PYTHON, "-c", code], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def rtsp_server(clip: str, port: int = 0, codec: str = "h264", user: str = "", password: str = "") -> Iterator[Server]:
    """Serve a clip by RTSP at real speed, once from its start when the first client connects."""
    if not _has_rtsp_server():
        message = "GStreamer's RTSP server is not installed: run scripts/rtsp-server"
        if _IS_REQUIRED:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    port = port or free_port()
    arguments = [str(live_clip(clip)), codec, str(port), *((user, password) if user else ())]
    credentials = f"{user}:{password}@" if user else ""
    server = Server(f"rtsp://{credentials}127.0.0.1:{port}/clip", [_SYSTEM_PYTHON, str(_GST_SERVER), *arguments])
    try:
        assert server.process.stdout is not None
        assert server.process.stdout.readline().strip() == str(port).encode()
        yield server
    finally:
        server.kill()


@contextmanager
def lossy_rtsp_proxy(target: int, loss: float) -> Iterator[int]:
    """Stand between an RTSP client and a server, and lose RTP datagrams after the first fifty. Yields the port."""
    chance, stopped = random.Random(7), threading.Event()

    def forward_datagrams(received: socket.socket, port: int) -> None:
        received.settimeout(0.1)
        for count in itertools.count():
            while not stopped.is_set():
                with suppress(TimeoutError):
                    data = received.recv(65536)
                    break
            else:
                received.close()
                return
            if count < 50 or chance.random() >= loss:
                received.sendto(data, ("127.0.0.1", port))

    def forward(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", target)) as server:
            while not stopped.is_set():
                for ready in select.select([connection, server], [], [], 0.1)[0]:
                    if not (data := ready.recv(65536)):
                        return
                    if found := re.search(rb"client_port=(\d+)-(\d+)", data) if ready is connection else None:
                        pair = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
                        for each, port in zip(pair, found.groups(), strict=True):
                            each.bind(("127.0.0.1", 0))
                            thread = threading.Thread(target=forward_datagrams, args=(each, int(port)))
                            threads.append(thread)
                            thread.start()
                        ports = b"client_port=%d-%d" % tuple(each.getsockname()[1] for each in pair)
                        data = data.replace(found[0], ports)
                    (server if ready is connection else connection).sendall(data)

    threads: list[threading.Thread] = []
    with serve_connections(forward) as (port, _):
        yield port
        stopped.set()
    for thread in threads:
        thread.join()


@contextmanager
def ffmpeg_server(clip: str, uri: str, *output: str) -> Iterator[Server]:
    """Play a clip at real speed, again and again, to a URI with ffmpeg, which may listen there."""
    source = ["-hide_banner", "-loglevel", "error", "-re", "-stream_loop", "-1", "-i", str(live_clip(clip))]
    server = Server(uri, [imageio_ffmpeg.get_ffmpeg_exe(), *source, "-c", "copy", *output])
    try:
        yield server
    finally:
        server.kill()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_folder(folder: Path) -> Iterator[int]:
    """Serve the files of a folder by HTTP and yield the port."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def hls_server(clip: str, folder: Path) -> Iterator[str]:
    """Serve a clip as a live HLS playlist with segments of one second."""
    playlist = folder / "live.m3u8"
    options = ["-f", "hls", "-hls_time", "1", "-hls_list_size", "4", "-hls_flags", "delete_segments", str(playlist)]

    with ffmpeg_server(clip, "", *options), serve_folder(folder) as port:
        end = time.monotonic() + 20
        while not playlist.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/live.m3u8"


@contextmanager
def serve_connections(
    handle: Callable[[socket.socket], None], port: int = 0
) -> Iterator[tuple[int, list[socket.socket]]]:
    """Accept TCP connections and handle each in a thread. Yields the port and the list of the connections."""
    accepted: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", port))

    def run(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            handle(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                accepted.append(connection)
                threads.append(threading.Thread(target=run, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1], accepted
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in accepted:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [acceptor, *threads]:
            thread.join(10)


@functools.cache
def _transport_stream(clip: str) -> list[tuple[float, bytes]]:
    """Return a clip as (time, bytes of a transport stream that begins with tables and one frame)."""
    import io

    import av

    chunks: list[tuple[float, bytes]] = []
    out = io.BytesIO()
    with (
        av.open(str(live_clip(clip))) as source,
        av.open(out, "w", "mpegts", options={"mpegts_flags": "resend_headers", "flush_packets": "1"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        written = 0
        for packet in source.demux(video=0):
            if packet.dts is None:
                continue
            at = float(packet.dts * packet.time_base)
            packet.stream = stream
            target.mux(packet)
            chunks.append((at, out.getvalue()[written:]))
            written = len(out.getvalue())
    return chunks


def play(
    send: Callable[[bytes], object],
    clip: str = "live_h264.mp4",
    start: int = 0,
    stop: int | None = None,
    speed: float = 1.0,
    change: Callable[[int, bytes], bytes | None] = lambda _, data: data,
) -> None:
    """Send the frames of a clip as a transport stream, in real time.

    Args:
        send: takes the bytes of each frame.
        clip: name of the clip.
        start: first frame.
        stop: frame after the last one.
        speed: factor on real time.
        change: returns other bytes for a frame, or None to leave it out.
    """
    chunks = _transport_stream(clip)[start:stop]
    origin = time.monotonic() - chunks[0][0] / speed
    for number, (at, data) in enumerate(chunks, start):
        time.sleep(max(0.0, origin + at / speed - time.monotonic()))
        changed = change(number, data)
        if changed is not None:
            send(changed)
