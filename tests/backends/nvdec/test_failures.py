"""The NVDEC engine with driver failures, concurrent requests, deadlines, cancellation, and exported arrays."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from support.fake_driver.double import Double, check_frames, double_fixture, engine_fixture, numbers_at  # noqa: F401, fixtures
from support.fake_driver.stream import Shape, gop
from telecine.pixels.geometry import Geometry


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"create_failures": 1}, "driver"),
        ({"decode_error_at": 5}, "driver"),
        ({"map_failures": 1}, "driver"),
        ({"parser_failures": 1}, "driver"),
        ({"create_out_of_memory": 1}, "memory"),
    ],
)
def test_a_driver_failure_costs_one_request_only(double: Double, fault: dict[str, int], kind: str) -> None:
    pictures = gop(0, 9)
    if not any(name.startswith("create") for name in fault):
        assert double.decode(pictures, [8])[0].loss == b"\0"
    destroyed = double.nvdec.stats(0)["sessions_destroyed_after_error"]
    double.set(**fault)
    result, _ = double.decode(pictures, [8])
    assert result.loss == b"\x04" and result.failure_kind == kind and result.failure
    if "decode_error_at" in fault or "map_failures" in fault:
        assert double.nvdec.stats(0)["sessions_destroyed_after_error"] == destroyed + 1
    double.set(decode_error_at=0)
    result, frames = double.decode(pictures, [8])
    assert result.loss == b"\0" and result.failure is None
    check_frames(frames, numbers_at(pictures, [8]), Shape())


def test_frames_before_a_decode_error_are_kept(double: Double) -> None:
    pictures = gop(0, 15)
    double.set(decode_error_at=pictures[12].number + 1)
    result, frames = double.decode(pictures, [0, 14])
    assert list(result.loss) == [0, 4]
    check_frames(frames[:1], [0], Shape())


def test_out_of_memory_frees_idle_sessions_and_retries(double: Double) -> None:
    double.decode(gop(0, 3), [0])
    double.set(create_out_of_memory=1)
    assert double.decode(gop(0, 3), [0], shape=Shape(depth=10))[0].loss == b"\0"
    assert double.nvdec.stats(0)["sessions_idle"] == 1


def test_a_failed_reconfiguration_destroys_the_session(double: Double) -> None:
    double.decode(gop(0, 3), [0])
    double.set(reconfigure_failures=1)
    assert double.decode(gop(0, 3), [0], shape=Shape(96, 64))[0].loss == b"\x04"
    assert double.decode(gop(0, 3), [0], shape=Shape(96, 64))[0].loss == b"\0"


@pytest.mark.parametrize("shape", [Shape(8, 8), Shape(8192, 64), Shape(chroma=0), Shape(64, 48, 65, 48)])
def test_unsupported_sizes_and_chroma_formats_fail_as_unsupported(double: Double, shape: Shape) -> None:
    result, _ = double.decode(gop(0, 3), [0], shape=shape, geometry=Geometry(16, 16, 0, False, 16, 16))
    assert result.loss == b"\x04" and result.failure_kind == "unsupported"


def test_refusal_gives_the_reason_without_decoding(double: Double) -> None:
    assert double.nvdec.refusal(0, "h264", "420", 8, 1920, 1080) is None
    assert "4096x4096" in double.nvdec.refusal(0, "h264", "420", 8, 8000, 1080)
    assert double.nvdec.refusal(0, "theora", "420", 8, 64, 48) == "theora is not decoded on the GPU"
    assert double.nvdec.caps(0, "h264", "420", 8)["num_engines"] == 3


def test_an_unknown_device_index_is_an_unusable_device(double: Double) -> None:
    with pytest.raises(double.nvdec.NvdecError, match="no GPU 7") as caught:
        double.nvdec.device_name(7)
    assert caught.value.args[1] == "unusable"


def test_ranges_of_one_request_are_decoded_by_several_sessions(double: Double) -> None:
    double.set(slow_microseconds=2000)
    pictures = [*gop(0, 6), *gop(6, 6), *gop(12, 6)]
    wanted = list(range(18))
    result, frames = double.decode(pictures, wanted, ranges=[(0, 6), (6, 12), (12, 18)])
    assert result.loss == bytes(18)
    check_frames(frames, numbers_at(pictures, wanted), Shape())
    assert double.nvdec.stats(0)["sessions_idle"] == 3


def test_requests_of_eight_threads_get_their_own_frames(double: Double) -> None:
    shapes = [Shape(), Shape(96, 64, 96, 54), Shape(64, 48, 62, 46), Shape(depth=10)]
    failures: list[str] = []

    def work(seed: int) -> None:
        for i in range(6):
            shape, pictures = shapes[(seed + i) % 4], gop(seed * 10, 14)
            result, frames = double.decode(pictures, [13, 0, 6], shape=shape)
            try:
                assert result.loss == bytes(3)
                check_frames(frames, numbers_at(pictures, [13, 0, 6]), shape)
            except AssertionError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert double.nvdec.stats(0)["workers"] == 4  # one more than engines


def test_a_short_request_finishes_before_an_earlier_long_one(double: Double) -> None:
    double.set(slow_microseconds=2000)
    groups = [gop(10 * i, 10) for i in range(30)]
    long = [picture for group in groups for picture in group]
    ranges = [(10 * i, 10 * i + 10) for i in range(30)]
    done: list[str] = []

    def ask(name: str, *arguments: Any, **options: Any) -> None:
        assert not any(double.decode(*arguments, **options)[0].loss)
        done.append(name)

    thread = threading.Thread(target=ask, args=("long", long, [299]), kwargs={"ranges": ranges})
    thread.start()
    while double.nvdec.stats(0)["queued_ranges"] == 0:
        time.sleep(0.001)
    ask("short", gop(0, 5), [4])
    thread.join()
    assert done == ["short", "long"]


@pytest.mark.timing
def test_a_deadline_stops_a_request_and_its_session_is_reused(double: Double) -> None:
    assert double.decode(gop(0, 3), [0])[0].loss == b"\0"
    made = double.count("decoders_made")
    double.set(slow_microseconds=5000)
    started = time.perf_counter()
    result, _ = double.decode(gop(0, 400), [399], timeout=0.1)
    assert time.perf_counter() - started < 1.0
    assert result.stopped and result.loss == b"\x05"
    double.set(slow_microseconds=0)
    result, frames = double.decode(gop(30, 9), [8])
    assert result.loss == b"\0" and double.count("decoders_made") == made
    check_frames(frames, numbers_at(gop(30, 9), [8]), Shape())


@pytest.mark.timing
def test_a_request_can_be_cancelled_from_another_thread(double: Double) -> None:
    double.set(slow_microseconds=5000)
    flag = threading.Event()
    threading.Timer(0.05, flag.set).start()
    started = time.perf_counter()
    result, _ = double.decode(gop(0, 400), [399], cancelled=flag.is_set)
    assert result.stopped and time.perf_counter() - started < 1.0


def test_an_exception_of_the_cancelled_callback_is_raised(double: Double) -> None:
    double.set(slow_microseconds=5000)

    def raises() -> bool:
        raise KeyError("from the caller")

    with pytest.raises(KeyError, match="from the caller"):
        double.decode(gop(0, 400), [399], cancelled=raises)


def test_a_request_whose_deadline_expires_in_the_queue_decodes_nothing(double: Double) -> None:
    double.set(slow_microseconds=20_000)
    blockers = [threading.Thread(target=double.decode, args=(gop(0, 20), [19])) for _ in range(4)]
    for thread in blockers:
        thread.start()
    while double.nvdec.stats(0)["running_ranges"] < 4:
        time.sleep(0.001)
    result, _ = double.decode(gop(0, 3), [0], timeout=0.05)
    assert result.stopped and result.pictures == 0
    for thread in blockers:
        thread.join()


def test_worker_and_caller_streams_wait_for_each_other(double: Double) -> None:
    worker, caller = double.count("worker_waits"), double.count("caller_waits")
    double.decode([*gop(0, 5), *gop(5, 5)], [0, 9], ranges=[(0, 5), (5, 10)])
    assert double.count("worker_waits") >= worker + 2 and double.count("caller_waits") >= caller + 2


def test_device_array_exports_dlpack_and_cuda_array_interface(double: Double) -> None:
    double.decode(gop(0, 5), [0, 4])
    array = double.nvdec.DeviceArray(0, (2, 3, 4, 3))
    interface = array.__cuda_array_interface__
    assert interface["shape"] == (2, 3, 4, 3) and interface["data"] == (array.pointer, False)
    assert array.__dlpack_device__() == (2, 0) and len(array) == 2 and array.shape == (2, 3, 4, 3)
    assert "dltensor" in repr(array.__dlpack__(stream=None))
    ctypes.memmove(array.pointer, bytes(range(72)), 72)
    assert np.array_equal(array.to_host().ravel(), np.arange(72))
    assert np.array_equal(array[np.array([False, True])].to_host().ravel(), np.arange(36, 72))
    assert array[1:].shape == (1, 3, 4, 3) and array[[-1]].shape == (1, 3, 4, 3)
    with pytest.raises(IndexError):
        array.rows(np.array([2]))


def test_views_of_a_device_array_are_strided_and_share_its_memory(double: Double) -> None:
    array = double.nvdec.DeviceArray(0, (2, 3, 4, 3))
    host = np.arange(72, dtype=np.uint8).reshape(2, 3, 4, 3)
    array.fill(host)
    planes = array.permute((0, 3, 1, 2))
    for view, expected, address in [
        (array[1], host[1], array.pointer + 36),
        (array[-2], host[0], array.pointer),
        (planes, host.transpose(0, 3, 1, 2), array.pointer),
        (planes[1], host[1].transpose(2, 0, 1), array.pointer + 36),
        (planes.permute((0, 2, 3, 1)), host, array.pointer),
    ]:
        interface = view.__cuda_array_interface__
        assert interface["data"] == (address, False) and interface["strides"] == expected.strides
        assert view.shape == interface["shape"] == expected.shape and len(view) == len(expected)
        assert view.__dlpack_device__() == (2, 0) and "dltensor" in repr(view.__dlpack__(stream=None))
        assert np.array_equal(view.to_host(), expected)
    some = planes[np.array([1, 1, 0])]
    assert np.array_equal(some.to_host(), host[[1, 1, 0]].transpose(0, 3, 1, 2))
    with pytest.raises(IndexError):
        array[2]
    for axes in [(0, 1, 2), (0, 1, 2, 2), (1, 0, 2, 3), (0, 1, 2, 4)]:
        with pytest.raises(ValueError, match="axes must name each axis once"):
            array.permute(axes)


def test_a_view_keeps_the_memory_of_its_array_alive(double: Double) -> None:
    array = double.nvdec.DeviceArray(0, (2, 3, 4, 3))
    array.fill(np.full((2, 3, 4, 3), 7, np.uint8))
    view = array[1]
    del array
    assert (view.to_host() == 7).all()


def test_pinned_memory_is_reused_and_replaced_by_pageable_memory_if_it_runs_out(double: Double) -> None:
    array = double.nvdec.DeviceArray(0, (4, 64, 64, 3))
    first = array.to_host()
    del first
    made = double.count("pinned_made")
    again = array.to_host()
    assert double.count("pinned_made") == made
    double.set(pinned_failures=1)
    plain = array.to_host()
    assert np.array_equal(plain, again)


def test_arguments_of_decode_are_checked(double: Double) -> None:
    with pytest.raises(ValueError, match="one entry for each packet"):
        double.decode(gop(0, 3), [0], display_order=[0])
    with pytest.raises(ValueError, match="ranges must be"):
        double.decode(gop(0, 3), [0], ranges=[(0, 4)])
    with pytest.raises(ValueError, match="targets must be"):
        double.decode(gop(0, 3), [3])
    with pytest.raises(BufferError if sys.version_info >= (3, 14) else TypeError):
        double.nvdec.decode(
            0, "h264", b"", [3], np.zeros(1, np.int64), np.zeros(1, np.uint8), np.zeros((0, 2), np.int64),
            np.zeros((0, 2), np.int64), double.nvdec.Geometry(4, 4), double.nvdec.Output(0, 0),
        )  # fmt: skip


def test_vc1_is_not_decoded_although_its_capabilities_can_be_queried(double: Double) -> None:
    assert not double.nvdec.caps(0, "vc1", "420", 8)["supported"]
    with pytest.raises(double.nvdec.NvdecError, match="vc1 is not decoded on the GPU"):
        double.nvdec.decode(
            0, "vc1", b"", [], np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 2), np.int64),
            np.zeros((0, 2), np.int64), double.nvdec.Geometry(4, 4), double.nvdec.Output(0, 0),
        )  # fmt: skip
