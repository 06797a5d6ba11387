"""Decoding ranges with two decoders in parallel: when it is done, the frames, and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import telecine
from support.children import run_python
from support.clips import CLIPS
from telecine.backends.pyav import backend as pyav
from telecine.backends.pyav import parallel_ranges
from telecine.backends.pyav.parallel_ranges import DecodeProgress, decode_in_parallel, split_threads
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import Cancelled, DeadlineError
from telecine.index.packet_index import read_index
from telecine.limits import Limits
from telecine.plan.decode_plan import make_plan
from telecine.plan.ranges import DecodeRange
from telecine.source.source import open_source

SPREAD = [1, 14, 27, 40, 53]


def thread_split_of(
    name: str, frames: list[int], threads: int = 4, drop_packets: bool = False
) -> tuple[int, int] | None:
    limits, deadline = Limits(), Deadline()
    with open_source(CLIPS[name].path(), limits, deadline) as source, Demuxer(source, deadline) as demuxer:
        index = read_index(demuxer, limits, deadline)
        plan = make_plan(index, np.array(frames, np.int64))
        if drop_packets:
            object.__setattr__(index, "packets", None)
        request: Any = SimpleNamespace(plan=plan, index=index, demuxer=demuxer)
        return split_threads(request, threads)


@pytest.mark.parametrize("name", ["h264_keyint4.mp4", "h264_all_intra.mp4", "h264.mkv"])
def test_ranges_are_split_between_decoders_if_the_container_has_all_parameter_sets(name: str) -> None:
    assert thread_split_of(name, SPREAD) == (2, 2)


@pytest.mark.parametrize(
    ("threads", "lengths", "expected"),
    [
        (4, [1, 1], (2, 2)),
        (4, [119, 35], (3, 1)),
        (4, [35, 119], (3, 1)),
        (4, [1, 1, 1, 500], (3, 1)),
        (16, [119, 35], (12, 4)),
        (16, [10, 10, 10], (8, 8)),
        (3, [100, 1], (2, 1)),
        (2, [10, 10], (1, 1)),
        (2, [10, 9], None),
        (1, [10, 10], None),
        (4, [10], None),
        (4, [], None),
    ],
)
def test_the_decoder_of_the_longest_range_gets_threads_for_its_share_of_the_packets(
    threads: int, lengths: list[int], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_ranges, "_are_independent", lambda request: True)
    request: Any = SimpleNamespace(plan=SimpleNamespace(ranges=[SimpleNamespace(packets=range(n)) for n in lengths]))
    assert split_threads(request, threads) == expected


def test_one_decoder_is_used_if_packets_must_be_read_from_the_file_in_order() -> None:
    assert thread_split_of("h264_keyint4.mp4", SPREAD, drop_packets=True) is None


def test_one_decoder_is_used_for_a_single_range() -> None:
    assert thread_split_of("h264_long_gop.mp4", SPREAD) is None
    assert thread_split_of("h264_keyint4.mp4", [1]) is None
    assert thread_split_of("h264_keyint4.mp4", []) is None


@pytest.mark.parametrize("name", ["h264.ts", "h264_raw.h264", "hevc.ts", "mpeg2.mp4"])
def test_one_decoder_is_used_if_packets_carry_parameter_sets(name: str) -> None:
    """A decoder that starts at a later range would lack those of earlier packets."""
    assert thread_split_of(name, SPREAD) is None


@pytest.mark.parametrize(
    "name", ["h264_keyint4.mp4", "h264_uneven_keys.mp4", "h264_open_gop.mp4", "hevc_open_gop.mp4", "vp9_layers.webm"]
)
def test_two_decoders_give_the_same_frames_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(ranges: Any, *rest: Any) -> list[bool]:
        calls.append(len(ranges))
        return decode_in_parallel(ranges, *rest)

    monkeypatch.setattr(pyav, "decode_in_parallel", counted)
    wanted = [53, 1, 14, 14, 27, 40, 2]
    parallel = telecine.load(CLIPS[name].path(), indices=wanted, threads=4, errors="strict")
    was_parallel = list(calls)
    alone = telecine.load(CLIPS[name].path(), indices=wanted, threads=1, errors="strict")
    assert calls == was_parallel
    assert np.array_equal(parallel.data, alone.data)
    if name.startswith("h264_keyint4"):
        assert was_parallel == [len(set(wanted)) - 1]


def split_always(request: Any, threads: int) -> tuple[int, int] | None:
    """Split the threads of every request with several ranges, even if the ranges are not independent."""
    return (2, 2) if len(request.plan.ranges) > 1 else None


@pytest.mark.parametrize(
    "name", ["noise_reference.mp4", "noise_disposable.mp4", "noise_key.mp4", "missing_reference.mp4"]
)
def test_two_decoders_lose_the_same_frames_of_damaged_video_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode pass of a damaged range is decoded again by one decoder."""
    monkeypatch.setattr(pyav, "split_threads", split_always)
    total = telecine.probe(CLIPS[name].path()).num_frames
    wanted = list(range(1, total, 5))
    parallel = telecine.load(CLIPS[name].path(), indices=wanted, threads=4)
    alone = telecine.load(CLIPS[name].path(), indices=wanted, threads=1)
    assert parallel.report.lost == alone.report.lost
    assert np.array_equal(parallel.data, alone.data)


def test_a_size_change_is_noted_if_only_the_second_decoder_has_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyav, "split_threads", split_always)
    frames = telecine.load(CLIPS["size_change.ts"].path(), indices=[0, 59], threads=4)
    assert any("size changes" in note for note in frames.report.notes)


def make_ranges(count: int) -> list[DecodeRange]:
    nothing = np.empty(0, np.int64)
    return [DecodeRange(nothing, nothing.astype(np.bool_), {number: ()}, True) for number in range(count)]


def test_every_range_is_decoded_once_and_has_the_result_of_its_decoder() -> None:
    def decoder(seen: list[int]) -> Callable[[DecodeRange], bool]:
        def decode(range_: DecodeRange) -> bool:
            (number,) = range_.targets
            seen.append(number)
            time.sleep(0.001)
            return number % 3 != 0

        return decode

    first: list[int] = []
    second: list[int] = []
    answers = decode_in_parallel(make_ranges(40), (decoder(first), decoder(second)), DecodeProgress(Deadline(), 0))
    assert answers == [number % 3 != 0 for number in range(40)]
    assert sorted(first + second) == list(range(40)) and first and second


def test_the_first_decoder_starts_with_the_longest_range() -> None:
    lengths = [3, 1, 9, 4]
    todo = [DecodeRange(np.arange(n), np.ones(n, np.bool_), {}, True) for n in lengths]
    seen: tuple[list[int], list[int]] = ([], [])
    both = threading.Barrier(2, timeout=10)

    def decoder(own: list[int]) -> Callable[[DecodeRange], bool]:
        def decode(range_: DecodeRange) -> bool:
            own.append(len(range_.packets))
            if len(own) == 1:
                both.wait()
            return True

        return decode

    assert all(decode_in_parallel(todo, (decoder(seen[0]), decoder(seen[1])), DecodeProgress(Deadline(), 0)))
    assert seen[0][0] == 9 and seen[1][0] == 4


@pytest.mark.parametrize("fails", [0, 1])
def test_a_failing_decoder_stops_the_other_and_its_error_is_raised(fails: int) -> None:
    progress = DecodeProgress(Deadline(), 100)
    began = threading.Event()

    def failing(range_: DecodeRange) -> bool:
        began.wait(10)
        raise DeadlineError("late")

    def endless(range_: DecodeRange) -> bool:
        began.set()
        while True:
            progress.step()
            time.sleep(0.001)

    decoders = (failing, endless) if fails == 0 else (endless, failing)
    before = threading.active_count()
    with pytest.raises(DeadlineError, match="late"):
        decode_in_parallel(make_ranges(8), decoders, progress)
    assert threading.active_count() == before


def test_cancelling_the_request_stops_both_decoders() -> None:
    deadline = Deadline()
    progress = DecodeProgress(deadline, 100)
    both = threading.Barrier(2, timeout=10)

    def decode(range_: DecodeRange) -> bool:
        both.wait()
        deadline.cancel()
        while True:
            progress.step()

    with pytest.raises(Cancelled):
        decode_in_parallel(make_ranges(2), (decode, decode), progress)


def test_the_progress_callback_is_called_by_one_thread_at_a_time() -> None:
    inside: list[int] = []
    counted: list[int] = []

    def watch(doing: str, done: int, total: int) -> None:
        inside.append(done)
        assert len(inside) == 1
        counted.append(done)
        inside.pop()

    progress = DecodeProgress(Deadline(on_progress=watch), 2000)

    def decode(range_: DecodeRange) -> bool:
        for _ in range(100):
            progress.step()
        return True

    assert all(decode_in_parallel(make_ranges(20), (decode, decode), progress))
    assert counted == list(range(2000))


def test_the_first_decoder_decodes_all_ranges_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ranges: Any = [SimpleNamespace(packets=range(count)) for count in (3, 9, 5)]
    done: list[int] = []

    def decode(range_: Any) -> bool:
        done.append(len(range_.packets))
        return True

    assert decode_in_parallel(ranges, (decode, decode), DecodeProgress(Deadline(), 17)) == [True] * 3
    assert done == [9, 5, 3]


def test_the_second_decoder_is_closed_in_its_own_thread_after_its_last_range() -> None:
    used: list[int] = []
    closed: list[int] = []

    def decode(range_: DecodeRange) -> bool:
        time.sleep(0.001)
        return True

    def decode_second(range_: DecodeRange) -> bool:
        assert not closed
        used.append(threading.get_ident())
        return decode(range_)

    progress = DecodeProgress(Deadline(), 0)
    decode_in_parallel(make_ranges(20), (decode, decode_second), progress, lambda: closed.append(threading.get_ident()))
    assert closed == used[:1] and closed != [threading.get_ident()]


INTERRUPTED = """
import signal, sys, threading, time
import telecine

class Interrupt(Exception):
    pass

def handler(number, frame):
    if frame.f_globals is not globals():  # in telecine.load
        signal.setitimer(signal.ITIMER_REAL, 0.0002)  # a second one while the first is handled
        raise Interrupt

signal.signal(signal.SIGALRM, handler)
path, wanted = sys.argv[1], [1, 14, 27, 40, 53]
durations = []
for _ in range(5):
    started = time.perf_counter()
    telecine.load(path, indices=wanted, threads=4)
    durations.append(time.perf_counter() - started)
duration = min(durations)
interrupted = 0
for attempt in range(40):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, duration * (attempt + 1) / 40)
            telecine.load(path, indices=wanted, threads=4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
# a signal inside Thread.start() leaves threads that never started: they are listed, but not alive
others = [thread for thread in threading.enumerate() if thread.name == "telecine-decode" and thread.is_alive()]
for thread in others:  # at most that of the last attempt, about to end
    thread.join(5)
print(interrupted, len(others), sum(thread.is_alive() for thread in others))
assert len(telecine.load(path, indices=wanted, threads=4)) == 5
"""


def test_signals_during_a_parallel_decode_neither_crash_the_process_nor_leave_a_thread() -> None:
    """Flushing a decoder that another thread uses ends the process."""
    result = run_python(INTERRUPTED, CLIPS["h264_keyint4.mp4"].path(), timeout=120)
    assert result.returncode == 0, result.stderr
    interrupted, ending, left = map(int, result.stdout.split())
    assert interrupted > 10 and ending <= 1 and left == 0
