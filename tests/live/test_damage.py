"""Timestamps that jump or lie, bursts, lost packets, and changes in mid-stream: every frame shown is the true one."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import telecine
from support.live_servers import free_port, live_clip, lossy_rtsp_proxy, play, rtsp_server, serve_connections
from support.painting import read_number

Serve = Callable[[socket.socket], object]


def numbers(segment: telecine.Segment) -> list[int]:
    return [read_number(frame.image) for frame in segment.frames]


def collect(serve: Serve, count: int, every: float = 0.5, frames: int = 2, **options: object) -> list[telecine.Segment]:
    """Return the first segments of a transport stream over TCP."""
    with serve_connections(serve) as (port, _):
        stream = telecine.live(f"tcp://127.0.0.1:{port}", every=every, frames=frames, **options)  # type: ignore[arg-type]
        with stream:
            return [segment for segment in itertools.islice(stream, count)]


@pytest.mark.timing
def test_a_relay_that_dials_the_camera_again_in_an_open_session_is_a_discontinuity() -> None:
    """The timestamps begin anew at 0, and nothing says so."""

    def serve(connection: socket.socket) -> None:
        play(connection.sendall, start=600, stop=660)
        play(connection.sendall)

    segments = collect(serve, 8)
    assert ["timestamps" in (segment.discontinuity or "") for segment in segments].count(True) == 1
    jump = next(segment for segment in segments if segment.discontinuity)
    assert jump.sequence <= 5  # within about a second of the end of the first part at 2 s
    times = [time for segment in segments for time in (segment.start + segment.frames.timestamps).tolist()]
    assert all(a < b for a, b in itertools.pairwise(times))
    assert times[-1] < 8 * 0.5 + 2
    assert max(numbers(segments[-1])) < 100


@pytest.mark.timing
def test_a_clock_that_runs_ten_times_too_fast_gives_no_more_segments() -> None:
    segments = collect(lambda connection: play(connection.sendall, speed=10), 6, frames=1)
    walls = [segment.wall_end for segment in segments]
    assert all(0.2 < b - a < 1.5 for a, b in itertools.pairwise(walls))
    assert sum("clock" in (segment.discontinuity or "") for segment in segments) == 1
    # after that, times follow the arrival
    assert segments[-1].end - segments[-2].end < 1


@pytest.mark.timing
def test_old_frames_sent_in_a_burst_after_a_stall_are_skipped() -> None:
    def serve(connection: socket.socket) -> None:
        play(connection.sendall, stop=45)
        time.sleep(3)
        play(connection.sendall, start=45, stop=135, speed=30)
        play(connection.sendall, start=135, stop=240)

    started = time.time()
    segments = collect(serve, 7, frames=20)
    assert time.time() - started > 5.5  # the burst gave no segments of its own
    shown = [number for segment in segments for number in numbers(segment)]
    assert not [number for number in shown if 44 < number < 115]
    assert shown == sorted(shown) and max(shown) > 135


def test_a_change_of_the_picture_size_is_marked_and_every_segment_has_one_size() -> None:
    def serve(connection: socket.socket) -> None:
        play(connection.sendall, stop=60)
        play(connection.sendall, "live_large.mp4", start=0, stop=60)

    segments = collect(serve, 8)
    sizes = [segment.frames.shape[1:3] for segment in segments]
    assert sizes == sorted(sizes) and {(64, 96), (96, 160)} == set(sizes)
    changed = next(segment for segment in segments if segment.frames.shape[1] == 96)
    assert "size" in (changed.discontinuity or "")
    assert all((s.frames.info.height, s.frames.info.width) == s.frames.shape[1:3] for s in segments)
    assert [segment.discontinuity for segment in segments[-2:]] == [None, None]
    assert round(segments[-1].frames.info.average_fps) == 15
    assert any("rate" in (segment.discontinuity or "") for segment in segments)


def test_with_a_fixed_size_segments_go_on_through_a_change_of_the_picture_size() -> None:
    def serve(connection: socket.socket) -> None:
        play(connection.sendall, stop=45)
        play(connection.sendall, "live_large.mp4", start=0, stop=60)

    segments = collect(serve, 6, size=(48, 80))
    assert {segment.frames.shape[1:3] for segment in segments} == {(48, 80)}
    assert sum("size" in (segment.discontinuity or "") for segment in segments) == 1


@pytest.mark.parametrize("clip", ["live_h264.mp4", "live_h264_b.mp4", "live_hevc.mp4"])
def test_frames_are_exact_although_datagrams_are_lost(clip: str) -> None:
    whole = telecine.load(live_clip(clip)).data
    chance, port, done = random.Random(5), free_port(), threading.Event()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def send(data: bytes) -> None:
        for begin in range(0, len(data), 188):
            # the first second is intact, so that the stream begins
            if chance.random() > 0.02 or not begin:
                sender.sendto(data[begin : begin + 188], ("127.0.0.1", port))
        if done.is_set():
            raise OSError

    def run() -> None:
        try:
            play(send, clip)
        except OSError:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with telecine.live(f"udp://127.0.0.1:{port}", every=0.5, frames=8) as stream:
            segments = [segment for segment in itertools.islice(stream, 8)]
    finally:
        done.set()
        thread.join()
        sender.close()
    assert any(segment.gap and "damage" in (segment.discontinuity or "") for segment in segments)
    for frame in (frame for segment in segments for frame in segment.frames):
        number = read_number(frame.image)
        assert np.abs(frame.image.astype(int) - whole[number]).max() <= 2


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_lost_rtp_packets_are_marked_and_the_stream_goes_on(codec: str) -> None:
    """Slices that lose a part are not always noticed, so pictures may be wrong: docs/live.md says so."""
    with rtsp_server(f"live_{codec}.mp4", codec=codec) as server:
        target = int(server.uri.rpartition(":")[2].partition("/")[0])
        with lossy_rtsp_proxy(target, 0.05) as port:
            with telecine.live(f"rtsp://127.0.0.1:{port}/clip", every=0.5, frames=8, transport="udp") as stream:
                segments = list(itertools.islice(stream, 12))
    assert any(segment.gap and "damage" in (segment.discontinuity or "") for segment in segments)
    assert [segment.reconnects for segment in segments] == [0] * 12


def test_nothing_is_shown_before_the_first_key_frame() -> None:
    whole = telecine.load(live_clip("live_h264.mp4")).data
    segments = collect(lambda connection: play(connection.sendall, start=8), 2, frames=8)
    for frame in (frame for segment in segments for frame in segment.frames):
        assert np.abs(frame.image.astype(int) - whole[read_number(frame.image)]).max() <= 2
    assert min(numbers(segments[0])) >= 15


def test_frames_that_could_not_be_decoded_are_counted_and_not_shown() -> None:
    def break_slice(number: int, data: bytes) -> bytes:
        # the payload of the last transport packets of a frame
        return data if number % 15 != 10 or number < 30 else data[:-100] + bytes(100)

    segments = collect(lambda connection: play(connection.sendall, change=break_slice), 6, frames=15)
    shown = [number for segment in segments for number in numbers(segment)]
    assert not [number for number in shown if number % 15 >= 10 and number > 30]
    assert any(segment.discontinuity == "damage" for segment in segments)


def test_timestamps_that_begin_just_before_they_wrap_do_not_disturb_the_stream() -> None:
    import io

    import av

    out = io.BytesIO()
    with av.open(str(live_clip("live_h264.mp4"))) as source, av.open(out, "w", "mpegts") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                assert packet.time_base is not None
                ticks = int((2**33 / 90_000 - 1) / packet.time_base)
                packet.pts, packet.dts, packet.stream = (packet.pts or 0) + ticks, packet.dts + ticks, stream
                target.mux(packet)
    data = out.getvalue()

    def serve(connection: socket.socket) -> None:
        # 40 seconds of video
        for begin in range(0, len(data), 1880):
            connection.sendall(data[begin : begin + 1880])
            time.sleep(40 * 1880 / len(data))

    segments = collect(serve, 6)
    assert [segment.discontinuity for segment in segments] == [None] * 6
    ends = [segment.end for segment in segments]
    assert all(0 < b - a < 1.5 for a, b in itertools.pairwise(ends))


def test_key_frames_only_decodes_nothing_else() -> None:
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=1, frames=8, key_frames=True) as stream:
            segments = [segment for segment in itertools.islice(stream, 3)]
            assert stream.stats.packets_fed <= 8
    assert all(number % 15 == 0 for segment in segments for number in numbers(segment))


def test_packets_of_a_gop_without_a_wanted_frame_are_not_decoded() -> None:
    with serve_connections(lambda connection: play(connection.sendall)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=2, frames=1) as stream:
            assert [segment.sequence for segment in itertools.islice(stream, 3)] == [0, 1, 2]
            # GOPs have 15 packets, and each segment of 60 has one frame
            assert stream.stats.packets_fed <= 3 * 16 < stream.stats.packets / 3


@pytest.mark.timing
def test_segments_overlap_by_the_given_time() -> None:
    segments = collect(lambda connection: play(connection.sendall), 4, every=1, frames=6, overlap=0.5)
    for earlier, later in itertools.pairwise(segments):
        assert 0.4 < earlier.end - later.start < 0.7
        assert 0.8 < later.end - earlier.end < 1.2
    assert all(1.3 < segment.end - segment.start < 1.7 for segment in segments[1:])


def test_memory_does_not_grow_with_the_length_of_the_stream() -> None:
    import gc

    from support.children import memory

    with serve_connections(lambda connection: play(connection.sendall, speed=20)) as (port, _):
        with telecine.live(f"tcp://127.0.0.1:{port}", every=0.05, frames=2) as stream:
            sizes = []
            for segment in itertools.islice(stream, 30):
                assert segment.frames
                gc.collect()
                sizes.append(memory())
    assert max(sizes[10:]) - sizes[9] < 8 << 20
