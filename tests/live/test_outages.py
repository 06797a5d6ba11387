"""Servers that say nothing, freeze, break off or come back: deadlines hold, and the stream goes on."""

from __future__ import annotations

import itertools
import socket
import threading
import time

import pytest

import telecine
from support.live_servers import ffmpeg_server, free_port, live_clip, play, rtsp_server, serve_connections
from support.painting import read_number
from telecine.live import capture
from telecine.live.connection import Connection


def numbers(segment: telecine.Segment) -> list[int]:
    return [read_number(frame.image) for frame in segment.frames]


def wait_silently(connection: socket.socket) -> None:
    """Read all that comes and answer nothing, until the other side closes."""
    while connection.recv(4096):
        pass


def wait_for_state(stream: telecine.LiveStream, state: str, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while stream.state != state:
        assert time.monotonic() < end, f"the state is {stream.state}, not {state}; {stream.error}"
        time.sleep(0.02)


@pytest.mark.timing
@pytest.mark.parametrize("scheme", ["rtsp", "rtmp", "http", "tcp"])
def test_a_server_that_accepts_and_says_nothing_is_given_up_within_the_timeout(scheme: str) -> None:
    with serve_connections(wait_silently) as (port, _):
        started = time.monotonic()
        with telecine.live(f"{scheme}://127.0.0.1:{port}/x", every=1, frames=1, timeout=0.5) as stream:
            wait_for_state(stream, "waiting")
            assert time.monotonic() - started < 3
            assert stream.error is not None and f"127.0.0.1:{port}" in stream.error
            with pytest.raises(telecine.DeadlineError):
                stream.get(timeout=0.1)
            started = time.monotonic()
        assert time.monotonic() - started < 1.5


@pytest.mark.timing
@pytest.mark.parametrize("scheme", ["rtsp", "rtmp", "http", "tcp"])
def test_closing_interrupts_a_connection_that_is_being_opened(scheme: str) -> None:
    with serve_connections(wait_silently) as (port, accepted):
        stream = telecine.live(f"{scheme}://127.0.0.1:{port}/x", every=1, frames=1, timeout=60)
        while not accepted:
            time.sleep(0.01)
        started = time.monotonic()
        stream.close()
        assert time.monotonic() - started < 1.5
        assert stream.get() is None and stream.state == "closed"


def test_a_server_that_dribbles_bytes_cannot_hold_the_opening_beyond_the_timeout() -> None:
    def dribble(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"\0")
            time.sleep(0.05)

    with serve_connections(dribble) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=1, frames=1, timeout=1) as stream:
            wait_for_state(stream, "waiting", 5)


def test_a_frozen_rtsp_server_is_left_and_found_again(quick_retries: None) -> None:
    with rtsp_server("live_h264.mp4") as server, telecine.live(server.uri, every=0.5, frames=2, timeout=1) as stream:
        assert stream.get(timeout=10) is not None
        server.freeze()
        wait_for_state(stream, "waiting")
        server.thaw()
        while (segment := stream.get(timeout=20)) is not None and not segment.reconnects:
            pass
        assert segment is not None and segment.gap and segment.discontinuity == "reconnected"


def test_a_killed_and_restarted_rtsp_server_is_found_again_with_its_new_frames(quick_retries: None) -> None:
    port = free_port()
    with rtsp_server("live_h264.mp4", port) as server:
        stream = telecine.live(server.uri, every=0.5, frames=2)
        before = [stream.get(timeout=10) for _ in range(3)]
        server.kill()
    wait_for_state(stream, "waiting")
    with rtsp_server("live_h264.mp4", port), stream:
        after = [stream.get(timeout=20) for _ in range(3)]
    times = [
        (segment.start, segment.end, segment.wall_start, segment.wall_end) for segment in [*before, *after] if segment
    ]
    assert len(times) == 6
    assert all(a <= b for a, b in itertools.pairwise(time for start in times for time in start[:2]))
    assert all(a[2] <= b[2] and a[3] <= b[3] for a, b in itertools.pairwise(times))
    marked = [segment.discontinuity for segment in after if segment]
    assert marked[0] == "reconnected" and marked[1:] == [None, None]
    assert [segment.reconnects for segment in after if segment] == [1, 1, 1]
    # the server plays from the start again: the frames are those that it sends now
    assert after[0] is not None and max(numbers(after[0])) < 60


def test_an_unreachable_server_is_tried_again_from_the_first_connection_on(quick_retries: None) -> None:
    port = free_port()
    with telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=1) as stream:
        wait_for_state(stream, "waiting")
        with serve_connections(lambda connection: play(connection.sendall), port):
            segment = stream.get(timeout=20)
            assert segment is not None and segment.reconnects == 0


def test_the_wait_between_attempts_grows_and_is_short_again_after_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(capture, "_MIN_BACKOFF", 0.01)
    monkeypatch.setattr(capture, "_MAX_BACKOFF", 0.4)
    monkeypatch.setattr(capture.random, "uniform", lambda low, high: waits.append(stream._capture._failures) or low)
    outcomes = iter([False] * 6 + [True, False, False])

    def serve(connection: socket.socket) -> None:
        if next(outcomes, False):
            play(connection.sendall, stop=40, speed=2)

    with serve_connections(serve) as (port, _):
        stream = telecine.live(f"tcp://127.0.0.1:{port}", every=0.2, frames=1)
        with stream:
            assert stream.get(timeout=20) is not None
            end = time.monotonic() + 10
            while len(waits) < 9 and time.monotonic() < end:
                time.sleep(0.02)
    assert waits[:6] == [0, 1, 2, 3, 4, 5]
    assert waits[6:9] == [0, 1, 2]


def test_nothing_is_left_after_many_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture of this folder counts threads and descriptors."""
    monkeypatch.setattr(capture, "_MIN_BACKOFF", 0.001)
    monkeypatch.setattr(capture, "_MAX_BACKOFF", 0.001)
    tries = itertools.count()

    def serve(connection: socket.socket) -> None:
        next(tries)
        play(connection.sendall, stop=20, speed=1000)

    with serve_connections(serve) as (port, _), telecine.live(f"tcp://127.0.0.1:{port}", every=0.1, frames=1) as stream:
        end = time.monotonic() + 90
        while next(tries) < 400 and time.monotonic() < end:
            time.sleep(0.05)
        assert stream.stats.reconnects >= 100


def test_a_reader_that_does_not_come_back_is_abandoned(quick_retries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    released, opened = threading.Event(), Connection.open
    calls = itertools.count()

    def hang_once(self: Connection) -> None:
        if next(calls) == 0:
            released.wait(60)  # as a library does that reacts to nothing
        opened(self)

    monkeypatch.setattr(Connection, "open", hang_once)
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.3, frames=1, timeout=0.5) as stream:
            assert stream.get(timeout=20) is not None
    released.set()


def test_one_hanging_stream_does_not_hold_up_others() -> None:
    with (
        serve_connections(wait_silently) as (silent, _),
        serve_connections(lambda connection: play(connection.sendall)) as (port, _),
    ):
        uris = [f"tcp://127.0.0.1:{port}/{number}" for number in range(9)]
        streams = [telecine.live(uri, every=0.5, frames=1) for uri in [f"tcp://127.0.0.1:{silent}", *uris]]
        for stream in streams[1:]:
            for _ in range(2):
                assert stream.get(timeout=30) is not None
        assert streams[0].state == "connecting"
        for stream in streams:
            stream.close()


@pytest.mark.timing
def test_many_streams_open_at_the_same_time() -> None:
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        started = time.monotonic()
        streams = [
            telecine.live(f"tcp://127.0.0.1:{port}/{n}", every=0.5, frames=1, key_frames=True) for n in range(30)
        ]
        assert all(stream.get(timeout=60) is not None for stream in streams)
        # one after the other, FFmpeg's probing alone would take half a second each
        assert time.monotonic() - started < 12
        for stream in streams:
            stream.close()


def test_a_camera_that_sends_only_on_motion_is_idle_and_not_failed() -> None:
    def serve(connection: socket.socket) -> None:
        play(connection.sendall, stop=45)
        time.sleep(4)
        play(connection.sendall, start=165, stop=240)

    with serve_connections(serve) as (port, accepted):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=1, timeout=60) as stream:
            assert stream.get(timeout=10) is not None
            wait_for_state(stream, "idle")
            wait_for_state(stream, "live")
            segment = stream.get(timeout=10)
            while segment is not None and max(numbers(segment)) < 165:
                segment = stream.get(timeout=10)
            assert segment is not None and segment.reconnects == 0 and len(accepted) == 1


def test_keep_alives_count_as_life() -> None:
    null_packet = b"\x47\x1f\xff\x10" + bytes(184)

    def serve(connection: socket.socket) -> None:
        play(connection.sendall, stop=45)
        for _ in range(60):
            connection.sendall(null_packet)
            time.sleep(0.1)

    with serve_connections(serve) as (port, accepted):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=1, timeout=1) as stream:
            wait_for_state(stream, "idle")
            time.sleep(2)
            assert stream.state == "idle" and len(accepted) == 1


def test_consumers_share_one_connection_which_the_last_one_closes() -> None:
    with serve_connections(lambda connection: play(connection.sendall)) as (port, accepted):
        uri = f"tcp://127.0.0.1:{port}"
        first, second = (telecine.live(uri, every=0.5, frames=2) for _ in range(2))
        other = telecine.live(uri, every=0.5, frames=3)
        found = {stream: stream.get(timeout=10) for stream in (first, second, other)}
        assert len(accepted) == 2
        assert found[first].frames.data is found[second].frames.data  # type: ignore[union-attr]
        first.close()
        assert second.get(timeout=10) is not None
        second.close()
        other.close()
        assert second.state == "closed"


def test_a_stream_that_is_not_closed_ends_with_its_last_reference() -> None:
    """The fixture of this folder waits for the threads to end."""
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        stream = telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=1)
        assert next(stream).frames
        del stream


def test_packets_of_a_slow_decoder_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from telecine.live import decoder, reader

    monkeypatch.setattr(reader, "_MAX_QUEUED_PACKETS", 20)
    feed = decoder.LiveDecoder._feed

    def slow_feed(self, packets):  # type: ignore[no-untyped-def]
        time.sleep(0.1 * len(packets))
        return feed(self, packets)

    monkeypatch.setattr(decoder.LiveDecoder, "_feed", slow_feed)
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=5) as stream:
            segment = stream.get(timeout=30)
            while segment is not None and not segment.dropped_packets:
                segment = stream.get(timeout=30)
            assert segment is not None and segment.gap and "overload" in (segment.discontinuity or "")
            assert stream.stats.dropped_packets >= 20


def test_a_process_that_was_forked_cannot_use_the_stream() -> None:
    import os

    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.5, frames=1) as stream:
            child = os.fork()
            if not child:
                try:
                    stream.get()
                except telecine.Cancelled:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_hls_and_http_streams_recover(quick_retries: None) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}/x.ts"
    output = ("-f", "mpegts", "-listen", "1", uri)
    with telecine.live(uri, every=0.5, frames=1) as stream:
        for _ in range(2):
            with ffmpeg_server("live_h264.mp4", uri, *output):
                assert stream.get(timeout=20) is not None
            live_clip("live_h264.mp4")
        assert stream.stats.reconnects == 1
