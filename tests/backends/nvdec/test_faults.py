"""The NVDEC engine if calls of the driver fail or do not return in time: decode status, synchronisation, events."""

from __future__ import annotations

import threading
import time

import pytest

from support.fake_driver.double import HANDLES, Double, check_frames, double_fixture, engine_fixture, numbers_at  # noqa: F401, fixtures
from support.fake_driver.stream import BAD, Coded, Shape, gop
from telecine.pixels.geometry import Geometry

_ENDLESS = 10**9
_QUARTER = Geometry(48, 64, 0, False, 24, 32)
"""A resize, so that filter tables are uploaded."""


def _with_bad_reference() -> list[Coded]:
    """Return two groups of pictures; a reference picture in the middle of the first one is damaged."""
    pictures = [*gop(0, 9), *gop(9, 9)]
    pictures[3] = pictures[3].but(kind=pictures[3].kind | BAD)
    return pictures


def test_damage_is_detected_after_a_status_call_that_failed(double: Double) -> None:
    pictures = _with_bad_reference()
    double.set(status_failures=1)
    result, frames = double.decode(pictures, list(range(18)))
    assert set(result.loss[3:9]) == {2}, "damage must be detected after the failed call"
    assert not any(result.loss[9:]), "the next closed random access point is not affected"
    kept = [i for i in range(18) if result.loss[i] == 0]
    check_frames(frames[kept], numbers_at(pictures, kept), Shape())


def test_a_picture_without_a_status_is_lost_with_those_that_refer_to_it(double: Double) -> None:
    double.set(status_failures=1)  # of the first picture
    result, _ = double.decode([*gop(0, 9), *gop(9, 3)], list(range(12)))
    assert list(result.loss) == [2] * 9 + [0] * 3


def test_frames_are_decoded_if_the_gpu_has_no_decode_status(double: Double) -> None:
    double.set(status_unsupported=1)
    assert double.decode(gop(0, 9), list(range(9)))[0].loss == bytes(9)


@pytest.mark.timing
@pytest.mark.parametrize("wanted", [[8], list(range(9))])
def test_a_deadline_ends_the_wait_for_a_decode_status(double: Double, wanted: list[int]) -> None:
    double.set(in_progress=_ENDLESS)
    started = time.perf_counter()
    result, _ = double.decode(gop(0, 40), wanted, timeout=0.3)
    assert time.perf_counter() - started < 2
    assert result.stopped and set(result.loss) == {5}
    double.set(in_progress=0)
    assert not any(double.decode(gop(0, 9), [8])[0].loss)


@pytest.mark.timing
def test_a_deadline_is_kept_although_each_status_call_is_slow(double: Double) -> None:
    double.set(slow_status_microseconds=100_000)
    started = time.perf_counter()
    result, _ = double.decode(gop(0, 40), list(range(40)), timeout=0.3)
    assert time.perf_counter() - started < 1.5
    assert result.stopped


@pytest.mark.timing
def test_a_cancelled_request_ends_the_wait_for_a_decode_status(double: Double) -> None:
    double.set(in_progress=_ENDLESS)
    flag = threading.Event()
    threading.Timer(0.1, flag.set).start()
    started = time.perf_counter()
    result, _ = double.decode(gop(0, 40), [8], cancelled=flag.is_set)
    assert result.stopped and time.perf_counter() - started < 2


def test_a_stopped_request_says_so_also_if_its_last_range_ends_at_the_deadline(double: Double) -> None:
    double.set(slow_microseconds=3000)
    for timeout in (0.01, 0.02, 0.021, 0.03, 0.04):
        result, _ = double.decode(gop(0, 400), [399], timeout=timeout)
        assert result.stopped and result.loss == b"\x05"


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_frame_whose_conversion_cannot_be_awaited_is_lost(double: Double, failures: int) -> None:
    pictures = gop(0, 9)
    double.set(event_synchronize_failures=failures)
    result, frames = double.decode(pictures, list(range(9)))
    assert result.failure_kind == "driver" and "converting a frame" in result.failure
    assert result.loss[0] == 4, "the first frame was not awaited"
    kept = [i for i in range(9) if result.loss[i] == 0]
    check_frames(frames[kept], numbers_at(pictures, kept), Shape())
    double.set(event_synchronize_failures=0)
    assert double.decode(pictures, [8])[0].loss == b"\0"


def test_a_frame_that_cannot_be_awaited_at_the_end_of_its_range_is_lost(double: Double) -> None:
    double.set(event_synchronize_failures=1)
    result, _ = double.decode(gop(0, 1), [0])
    assert result.loss == b"\x04" and result.failure


@pytest.mark.parametrize(
    "fault",
    [
        {"event_create_failures": 1},
        {"event_record_failures": 1},
        {"event_synchronize_failures": 5},
        {"stream_synchronize_failures": 1},
        {"map_failures": 1},
        {"memory_failures": 1},
    ],
)
@pytest.mark.parametrize("skipped", range(4))
def test_no_handle_is_left_after_a_failure(double: Double, fault: dict[str, int], skipped: int) -> None:
    pictures = gop(0, 9)
    array = double.nvdec.DeviceArray(0, (1, 24, 32, 3))  # memory_failures is for the filter tables

    def decode() -> None:
        try:
            double.decode(pictures, list(range(9)), geometry=_QUARTER)
        except double.nvdec.NvdecError as error:
            assert error.args[1] in ("driver", "memory")

    if skipped:
        double.decode(pictures, [skipped])  # a session and the workers exist already
    double.set(**fault)
    decode()
    double.set(**dict.fromkeys(fault, 0))
    del array
    result, frames = double.decode(pictures, [8])
    assert result.loss == b"\0"
    check_frames(frames, numbers_at(pictures, [8]), Shape())
    del frames
    assert double.nvdec.shutdown()
    assert {name: double.count(name) for name in HANDLES} == dict.fromkeys(HANDLES, 0)


@pytest.mark.timing
def test_no_call_holds_the_interpreter_lock_while_the_gpu_is_awaited(double: Double) -> None:
    nvdec = double.nvdec
    array = nvdec.DeviceArray(0, (2, 4, 4, 3))
    calls = [
        lambda: nvdec.stats(0),
        lambda: nvdec.caps(0, "h264", "420", 8),
        lambda: nvdec.caps(0, "hevc", "420", 10),
        lambda: nvdec.refusal(0, "h264", "420", 8, 64, 48),
        lambda: array[[1]],
        array.to_host,
        lambda: nvdec.configure(0),
    ]
    double.set(slow_synchronize_microseconds=500_000)
    threads = [
        threading.Thread(target=double.decode, args=(gop(0, 5), [4]), kwargs={"geometry": _QUARTER}),
        *(threading.Thread(target=call) for call in calls),
    ]
    pauses: list[float] = []
    started = threading.Event()

    def measure_pauses() -> None:
        while not started.is_set() or any(thread.is_alive() for thread in threads):
            before = time.perf_counter()
            time.sleep(0.001)
            pauses.append(time.perf_counter() - before)

    meter = threading.Thread(target=measure_pauses)
    meter.start()
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # the decode is the first to wait for the GPU
    started.set()
    meter.join()
    assert sum(pauses) > 0.4, "nothing was awaited"
    assert max(pauses) < 0.25, "a thread that only sleeps was held up"


@pytest.mark.timing
def test_facts_of_a_device_are_told_while_filter_tables_are_uploaded(double: Double) -> None:
    double.nvdec.caps(0, "h264", "420", 8)
    double.set(slow_synchronize_microseconds=1_000_000)
    thread = threading.Thread(target=double.decode, args=(gop(0, 5), [4]), kwargs={"geometry": _QUARTER})
    thread.start()
    while double.nvdec.stats(0)["running_ranges"] == 0:
        time.sleep(0.001)
    time.sleep(0.1)
    started = time.perf_counter()
    double.nvdec.caps(0, "hevc", "420", 8)
    double.nvdec.refusal(0, "h264", "420", 8, 64, 48)
    double.nvdec.stats(0)
    assert time.perf_counter() - started < 0.5
    assert thread.is_alive()
    thread.join()


def test_a_picture_that_grows_over_the_limit_fails_as_a_limit(double: Double) -> None:
    result, _ = double.decode(gop(0, 3), [0], max_pixels=64 * 48 - 1)
    assert result.failure_kind == "limit" and result.loss == b"\x04"
    assert "64x48" in result.failure and "3071" in result.failure
