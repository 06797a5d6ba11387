"""Stream time and wall-clock time from simulated arrivals."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

from telecine.limits import Limits
from telecine.live.assembly import Assembler, SegmentFacts
from telecine.live.clock import BurstFilter, StreamClock
from telecine.live.segments import Segment
from telecine.live.slices import Received, Slice, SlicePlanner


def run(clock: StreamClock, packets: list[tuple[float, float]]) -> tuple[list[float], list[str | None]]:
    """Return stream times and reasons for packets given as (timestamp, arrival)."""
    found = [clock.stream_time(pts, pts, arrival) for pts, arrival in packets]
    return [time for time, _ in found], [reason for _, reason in found]


def test_stream_time_follows_the_timestamps_of_a_steady_stream() -> None:
    times, reasons = run(StreamClock(), [(100 + k / 30, 5 + k / 30 + 0.01 * (k % 3)) for k in range(3000)])
    np.testing.assert_allclose(times, [k / 30 for k in range(3000)], atol=1e-6)
    assert set(reasons) == {None}


def test_weeks_of_a_clock_that_drifts_slightly_are_no_discontinuity() -> None:
    # 200 parts per million, one packet in 10 seconds, for 60 days
    times, reasons = run(StreamClock(), [(k * 10 * 1.0002, k * 10) for k in range(60 * 8640)])
    assert set(reasons) == {None}
    assert abs(times[-1] - 60 * 86400 * 1.0002) < 20


def test_a_backward_and_a_far_forward_jump_continue_at_the_time_of_arrival() -> None:
    for origin in (0.0, 1e6):
        packets = [(500 + k / 10, k / 10) for k in range(50)]
        packets += [(origin + k / 10, 5 + k / 10) for k in range(50)]
        times, reasons = run(StreamClock(), packets)
        assert all(a < b for a, b in itertools.pairwise(times))
        assert times[-1] == np.float64(times[-1]) and abs(times[-1] - 9.9) < 0.2
        assert [k for k, reason in enumerate(reasons) if reason] == [50]


def test_a_clock_that_is_ten_times_too_fast_is_replaced_by_the_arrival_within_seconds() -> None:
    times, reasons = run(StreamClock(), [(k / 3, k / 30) for k in range(300)])
    marked = [k for k, reason in enumerate(reasons) if reason]
    assert len(marked) == 1 and marked[0] < 60
    assert times[-1] - times[marked[0] + 1] < 9


def test_a_clock_that_is_too_slow_is_replaced_by_the_arrival_after_a_window() -> None:
    _, reasons = run(StreamClock(), [(k / 300, k / 30) for k in range(3000)])
    assert [reason for reason in reasons if reason] == ["clock"]


def test_a_silent_camera_does_not_have_a_slow_clock() -> None:
    packets = [(k / 10, k / 10) for k in range(100)] + [(40 + k / 10, 40 + k / 10) for k in range(600)]
    assert set(run(StreamClock(), packets)[1]) == {None}


def test_packets_without_timestamps_have_the_time_of_their_arrival() -> None:
    clock = StreamClock()
    times = [clock.stream_time(None, None, 7 + k / 4)[0] for k in range(8)]
    assert times == [k / 4 for k in range(8)]


def test_reordered_pictures_are_no_jump() -> None:
    order = [0, 4, 2, 1, 3, 8, 6, 5, 7]
    clock = StreamClock()
    found = [clock.stream_time(pts / 25, None, k / 25) for k, pts in enumerate(order)]
    assert {reason for _, reason in found} == {None}


def test_a_burst_is_late_until_it_has_caught_up() -> None:
    bursts = BurstFilter()
    assert not any(bursts.is_late(k / 10, k / 10) for k in range(50))
    # a stall of 5 seconds, whose frames then arrive within half a second
    late = [bursts.is_late(5 + k / 10, 10 + k / 100) for k in range(60)]
    assert all(late[:40]) and not any(late[56:])


def test_a_stream_that_is_late_for_good_goes_on_after_a_second() -> None:
    bursts = BurstFilter()
    assert not any(bursts.is_late(k / 10, k / 10) for k in range(50))
    late = [bursts.is_late(5 + k / 10, 8 + k / 10) for k in range(30)]
    assert late[0] and not any(late[12:])


def make(assembler: Assembler, time: float, wall: float, sender: float | None) -> Segment:
    """Return a segment of one black frame."""
    import av

    received = Received(0, round(time * 1e6), time, wall, sender)
    picture = av.VideoFrame(16, 16, "yuv420p")
    assembler.set_stored_size(picture)
    assembler.add_received(received)
    slice_ = Slice(time, time + 1, 1, {received.time: assembler.convert(picture)})
    codec: Any = SimpleNamespace(codec=SimpleNamespace(canonical_name="h264"))
    stream: Any = SimpleNamespace(codec_context=codec, sample_aspect_ratio=None, index=0)
    return assembler.make(slice_, SegmentFacts(), stream, "rtsp")


def test_wall_clock_time_is_the_senders_and_never_goes_back() -> None:
    assembler = Assembler(None, "cpu", Limits(), 1)
    # the camera's clock steps back by 4 seconds, then the clock of this machine does
    steps = [(0, 1000.0, 997.0), (1, 1001.0, 998.0), (2, 1002.0, 995.0), (3, 1003.0, 996.0), (4, 900.0, 897.0)]
    segments = [make(assembler, *step) for step in steps]
    assert [segment.clock for segment in segments] == ["sender"] * 5
    assert segments[1].wall_end == 998
    walls = [(segment.wall_start, segment.wall_end) for segment in segments]
    assert walls == sorted(walls)


def test_a_sender_with_a_clock_that_was_never_set_is_not_believed() -> None:
    assembler = Assembler(None, "cpu", Limits(), 1)
    for sender in (0.0, 1000.0 - 86_400, 1000.0 + 60):
        segment = make(assembler, 1, 1000.0, sender)
        assert segment.clock == "arrival" and segment.wall_end == 1000


def test_slices_are_no_more_frequent_than_asked_and_skip_an_outage() -> None:
    planner = SlicePlanner(10, 4, 0)
    wanted = []
    for k in [*range(400), *range(1400, 2000)]:
        arrival = k / 10
        planner.begin_slices(arrival)
        received = Received(k, k, arrival, 0.0, None)
        if planner.take(received):
            wanted.append(arrival)
            planner.add_picture(k, k, "picture")
        while planner.pop_complete(arrival) is not None:
            pass
    assert wanted[:9] == [2.5, 5, 7.5, 10, 12.5, 15, 17.5, 20, 22.5]
    assert not [arrival for arrival in wanted if 40 < arrival < 140]
    assert np.diff([arrival for arrival in wanted if arrival > 145]).tolist() == [2.5] * (
        len([a for a in wanted if a > 145]) - 1
    )
