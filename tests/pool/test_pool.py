"""Many requests at once: each gets its own frames or its own error, within the cores, memory and queue of the pool."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from support.clips import CLIPS
from support.fake_backends import Costly, Gate, fakes, steps
from support.pool_cases import MB, assert_seconds, best_of_five, gate, has_frames, is_idle, path, pool, until
from telecine import DecodeError, LimitError, Limits, NoVideoError, OptionsError, OverloadedError, Pool, SourceError
from telecine.api import load
from telecine.errors import Cancelled, TelecineError
from telecine.request import Request

__all__ = ["fakes", "gate", "path", "pool"]

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("fakes"), pytest.mark.timeout(60)]


# results and errors


def test_frames_are_those_of_load(pool, path):
    alone = load(path, num_frames=5)
    for frames in [future.result() for future in [pool.submit(path, num_frames=5) for _ in range(12)]]:
        np.testing.assert_array_equal(frames.data, alone.data)
        np.testing.assert_array_equal(frames.timestamps, alone.timestamps)
        assert frames.info == alone.info


def test_each_request_gets_its_own_frames(pool, path):
    futures = {i: pool.submit(path, indices=[i, 0, i], backend="fake") for i in range(40)}
    assert all(has_frames(future.result(), [i, 0, i]) for i, future in futures.items())


@best_of_five
def test_the_report_has_the_waiting_time_and_whether_the_index_was_cached(path):
    gate, pool = Gate(), Pool(threads=2)
    first = pool.submit(path, num_frames=2, backend="fake", do=gate)
    others = [pool.submit(path, num_frames=2, backend="fake", do=gate) for _ in range(3)]
    time.sleep(0.2)
    gate.open()
    seconds = [future.result().report.seconds["queue"] for future in (first, *others)]
    assert_seconds(seconds[0], below=0.15)
    assert seconds[3] > 0.15
    later = pool.load(path, num_frames=2)
    pool.close()
    assert later.report.index_cached and not first.result().report.index_cached
    assert set(later.report.seconds) >= {"queue", "source", "index", "plan", "decode"}


def test_errors_are_those_of_load(pool):
    with pytest.raises(SourceError, match="cannot be opened"):
        pool.load("/no/such/file.mp4")
    with pytest.raises(SourceError):
        pool.load(b"\x00\x01" * 500)
    with pytest.raises(OptionsError, match="backend is"):
        pool.submit(b"x", backend="nothing")
    with pytest.raises(OptionsError, match="timeout"):
        pool.submit(b"x", timeout=-1)
    with pytest.raises(OptionsError, match="backend is"):
        pool.load(b"x", backend="nothing")
    assert is_idle(pool)


def ask(pool, way, source, **options):
    """Make the same request in one of three ways."""
    if way == "load":
        return pool.load(source, **options)
    if way == "submit":
        return pool.submit(source, **options).result(30)
    return asyncio.run(pool.aload(source, **options))


in_every_way = pytest.mark.parametrize("way", ["load", "submit", "aload"])


@in_every_way
@pytest.mark.parametrize(
    ("clip", "options", "kind"),
    [
        (b"\x00\x01" * 500, {}, SourceError),
        (b"<html>no</html>", {}, SourceError),
        (b"", {}, SourceError),
        (7, {}, OptionsError),
        ("audio.mp4", {}, NoVideoError),
        ("noise_disposable.mp4", {"indices": [14]}, DecodeError),
        ("noise_disposable.mp4", {"indices": [14, 3], "errors": "strict"}, DecodeError),
        ("base.mp4", {"indices": [10**6]}, OptionsError),
        ("base.mp4", {"num_frames": 0}, OptionsError),
        ("base.mp4", {"size": (10**5, 10**5)}, LimitError),
    ],
    ids=str,
)
def test_bad_input_is_the_same_value_error_as_without_a_pool(pool, way, clip, options, kind):
    """Serving engines turn a ValueError into an HTTP 400."""
    source = CLIPS[clip].path() if isinstance(clip, str) else clip
    with pytest.raises(kind) as alone:
        load(source, **options)
    with pytest.raises(kind) as failure:
        ask(pool, way, source, **options)
    assert type(failure.value) is type(alone.value) and isinstance(failure.value, ValueError)
    assert str(failure.value) == str(alone.value)
    assert is_idle(pool)


@in_every_way
@pytest.mark.parametrize("raised", [SourceError, NoVideoError, DecodeError, LimitError, OptionsError])
def test_a_telecine_error_of_a_backend_is_raised_unchanged(pool, path, way, raised):
    error = raised("said by the backend")

    def fail(request):
        raise error

    with pytest.raises(raised) as failure:
        ask(pool, way, path, backend="fake", do=fail)
    assert failure.value is error


@in_every_way
@pytest.mark.parametrize("raised", [ValueError, OSError, IndexError])
def test_a_foreign_error_of_a_backend_becomes_a_telecine_error_that_is_no_value_error(pool, path, way, raised):
    def fail(request):
        raise raised("quotes the input")

    with pytest.raises(TelecineError, match=f"fake with {raised.__name__}") as failure:
        ask(pool, way, path, backend="fake", do=fail)
    assert not isinstance(failure.value, ValueError)
    assert "quotes" not in str(failure.value)


@in_every_way
def test_a_backend_whose_constructor_fails_raises_a_telecine_error(pool, path, way):
    with pytest.raises(TelecineError, match="unmakeable with RuntimeError"):
        ask(pool, way, path, backend="unmakeable")
    assert is_idle(pool)


def test_an_unhashable_caller_is_refused(pool, path):
    with pytest.raises(OptionsError, match="caller is a list"):
        pool.submit(path, caller=["name"])
    assert is_idle(pool)


@pytest.mark.parametrize("name", ["threads", "memory", "workers", "queue", "vram"])
def test_arguments_of_a_pool_are_checked(name):
    with pytest.raises(OptionsError, match=name):
        Pool(**{name: 0})


def test_the_environment_variable_sets_the_number_of_cores(monkeypatch):
    monkeypatch.setenv("TELECINE_POOL_SIZE", "3")
    assert Pool()._workers.config.cores == 3
    monkeypatch.setenv("TELECINE_POOL_SIZE", "many")
    with pytest.raises(OptionsError, match="TELECINE_POOL_SIZE"):
        Pool()


# threads, closing, map


def test_a_pool_has_no_thread_before_its_first_request_nor_after_closing():
    def threads():
        return {thread for thread in threading.enumerate() if thread.name == "telecine-pool"}

    until(lambda: not threads())
    with Pool(threads=2) as pool:
        assert not threads()
        pool.load(CLIPS["base.mp4"].path(), num_frames=1)
        assert threads()
    assert not threads()


def test_close_waits_for_running_requests_and_refuses_new_ones(path):
    pool = Pool(threads=2)
    futures = [pool.submit(path, indices=[1], backend="fake", do=steps(5, 0.01)) for _ in range(6)]
    pool.close()
    pool.close()
    assert all(has_frames(future.result(0), [1]) for future in futures)
    with pytest.raises(OptionsError, match="closed"):
        pool.load(path)


def test_an_error_in_the_with_block_cancels_all_requests(path, gate):
    with pytest.raises(KeyError), Pool(threads=1) as pool:
        futures = [pool.submit(path, backend="fake", do=gate) for _ in range(4)]
        raise KeyError
    assert all(isinstance(future.exception(0), Cancelled) for future in futures)


def test_there_is_one_default_pool_and_a_new_one_after_closing(path):
    first = Pool.default()
    assert Pool.default() is first
    first.close()
    second = Pool.default()
    assert second is not first and len(second.load(path, num_frames=2)) == 2
    second.close()


def test_map_keeps_the_order_and_submits_a_bounded_number_in_advance(pool, path):
    taken = []

    def sources():
        for i in range(30):
            taken.append(i)
            yield path

    for count, frames in enumerate(pool.map(sources(), ahead=4, num_frames=2, backend="fake", do=steps(2, 0.001))):
        assert len(frames) == 2
        assert len(taken) <= count + 5
    assert len(taken) == 30


def test_map_raises_the_error_of_a_bad_source_or_yields_it(pool, path):
    sources = [path, b"not a video", path]
    results = pool.map(sources, num_frames=1)
    assert len(next(results)) == 1
    with pytest.raises(SourceError):
        next(results)
    kinds = [type(result).__name__ for result in pool.map(sources, num_frames=1, return_errors=True)]
    assert kinds == ["Frames", "SourceError", "Frames"]


def test_map_cancels_its_requests_when_the_iterator_is_closed(pool, path, gate):
    results = pool.map([path] * 10, ahead=4, backend="fake", do=gate)
    threading.Timer(0.1, gate.open).start()
    next(results)
    results.close()
    until(lambda: is_idle(pool))


def test_map_waits_while_the_queue_is_full(path):
    with Pool(threads=1, queue=2) as pool:
        assert len(list(pool.map([path] * 12, ahead=8, num_frames=1, backend="fake"))) == 12


def test_map_raises_errors_other_than_a_full_queue_at_once(pool, path, monkeypatch):
    def fail(*_, **__):
        assert next(calls) < 3, "asked again and again"
        raise MemoryError

    calls = itertools.count()
    monkeypatch.setattr(Request, "of", fail)
    with pytest.raises(OverloadedError, match="not enough memory"):
        list(pool.map([path], num_frames=1))
    calls = itertools.count()
    errors = list(pool.map([path] * 2, num_frames=1, return_errors=True))
    assert [type(error) for error in errors] == [OverloadedError] * 2


@pytest.mark.parametrize("single", ["clip.mp4", b"clip", bytearray(b"clip"), Path("clip.mp4")], ids=repr)
def test_map_refuses_a_single_source(pool, single):
    """Otherwise it would take each character of a path for a source."""
    with pytest.raises(OptionsError, match="a single source goes into a list"):
        pool.map(single)


@pytest.mark.parametrize(
    "wrong", [{"num_frames": -1}, {"nun_frames": 3}, {"ahead": 0}, {"backend": "none"}, {"cache_key": 1}], ids=str
)
def test_map_refuses_wrong_arguments_at_once(pool, path, wrong):
    """They are refused before the first source, and not once for each source."""
    with pytest.raises(OptionsError):
        pool.map([path], return_errors=True, **wrong)


@pytest.mark.timeout(20)
def test_map_raises_if_the_system_cannot_start_a_thread(pool, path, monkeypatch):
    monkeypatch.setattr(pool._workers, "_start_thread", lambda target: None)
    with pytest.raises(OverloadedError, match="no thread left"):
        list(pool.map([path], num_frames=1))
    (error,) = pool.map([path], num_frames=1, return_errors=True)
    assert isinstance(error, OverloadedError)


def test_map_yields_earlier_frames_before_it_raises(path):
    with Pool(threads=1) as pool:

        def sources():
            yield path
            pool._workers.closed = True
            yield path

        results = pool.map(sources(), num_frames=1)
        assert len(next(results)) == 1
        with pytest.raises(OptionsError, match="closed"):
            next(results)


# asyncio


def longest_stall(pool, requests):
    async def health():
        worst, last = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            worst, last = max(worst, now - last), now
            yield worst

    async def main():
        tasks = [asyncio.ensure_future(request(pool)) for request in requests]
        gaps = health()
        while not all(task.done() for task in tasks):
            worst = await anext(gaps)
        return worst, [await task for task in tasks]

    return asyncio.run(main())


@best_of_five
def test_the_event_loop_responds_during_sixteen_decodes(pool, path):
    def ask(pool):
        return pool.aload(path, num_frames=20, size=360)

    stalled, results = longest_stall(pool, [ask] * 16)
    assert [len(frames) for frames in results] == [20] * 16
    assert_seconds(stalled, below=0.25)


@best_of_five
def test_the_event_loop_responds_while_backends_block(pool, path):
    gate = Gate()
    threading.Timer(0.3, gate.open).start()

    def ask(pool):
        return pool.aload(path, indices=[3], backend="fake", do=gate.block)

    stalled, results = longest_stall(pool, [ask] * 16)
    assert all(has_frames(frames, [3]) for frames in results)
    assert_seconds(stalled, below=0.25)


@best_of_five
def test_cancelling_a_task_stops_the_decode_and_frees_its_lease(pool, path):
    gate = Gate()

    async def main():
        task = asyncio.ensure_future(pool.aload(path, backend="fake", do=gate))
        await asyncio.to_thread(gate.wait_for, 1)
        assert pool.status().memory_leased > 0
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, lambda: is_idle(pool))
        return time.monotonic() - started

    assert_seconds(asyncio.run(main()), below=0.3)


# cores


def test_one_request_gets_all_cores_and_many_get_one_each(path):
    seen = []

    def note(request):
        seen.append(request.cores)
        time.sleep(0.02)

    with Pool(threads=4) as pool:
        pool.load(path, num_frames=1, backend="fake", do=note)
        assert seen == [4]
        seen.clear()
        gate = Gate()
        first = [pool.submit(path, num_frames=1, backend="fake", do=gate) for _ in range(4)]
        crowd = [pool.submit(path, num_frames=1, backend="fake", do=note) for _ in range(12)]
        gate.wait_for(1)
        gate.open()
        concurrent.futures.wait([*first, *crowd])
        assert seen.count(1) >= 8


def test_decodes_at_the_same_time_have_no_more_cores_than_the_pool(path):
    now, most, lock = [0], [0], threading.Lock()

    def note(request):
        with lock:
            now[0] += request.cores
            most[0] = max(most[0], now[0])
        time.sleep(0.005)
        with lock:
            now[0] -= request.cores

    with Pool(threads=3) as pool:
        concurrent.futures.wait([pool.submit(path, num_frames=1, backend="fake", do=note) for _ in range(30)])
    assert most[0] <= 3


def test_the_threads_option_bounds_the_cores_of_a_decode(path):
    with Pool(threads=8) as pool:
        seen = []
        pool.load(path, num_frames=1, backend="fake", threads=3, do=lambda request: seen.append(request))
        assert seen[0].cores == 3 and seen[0].options["threads"] == 3


def test_many_requests_start_no_more_decoder_threads_than_there_are_cores():
    """Each core has one decoder with one thread. The threads of the pool are in addition to these."""

    def threads():
        return len(os.listdir("/proc/self/task"))

    most, before = 0, threads()
    with Pool(threads=2, cache=0) as pool:
        futures = [pool.submit(CLIPS["base.mp4"].path(), num_frames=60, size=128) for _ in range(32)]
        while not all(future.done() for future in futures):
            most = max(most, threads())
            time.sleep(0.001)
        assert all(len(future.result()) == 60 for future in futures)
    # the watchdog, some worker threads, and four decoder threads of the first request while it is alone. Sixteen
    # requests at a time would have sixty-four
    assert most - before <= 12


def test_equal_requests_run_one_after_the_other_before_their_run_time_is_known(path):
    order = []

    def work(i):
        def do(request):
            order.append(i)
            steps(100, 0.004)(request)
            order.append(i)

        return do

    with Pool(threads=1) as pool:
        concurrent.futures.wait([pool.submit(path, num_frames=1, backend="fake", do=work(i)) for i in range(4)])
    assert order == [0, 0, 1, 1, 2, 2, 3, 3]


def test_threads_are_reused(path):
    with Pool(threads=1) as pool:
        started = []
        start = pool._workers._start_thread
        pool._workers._start_thread = lambda target: started.append(target) or start(target)
        for _ in range(50):
            pool.load(path, num_frames=1, backend="fake")
        assert len(started) <= 8


@best_of_five
def test_a_long_request_yields_to_short_ones_and_still_finishes(path):
    with Pool(threads=2) as pool:
        pool.load(path, num_frames=1, backend="fake", do=steps(10, 0.005))  # the pool learns the usual run time
        long = pool.submit(path, indices=[7], backend="fake", do=steps(300, 0.005))
        time.sleep(0.6)
        waits = []
        for _ in range(12):
            started = time.monotonic()
            assert has_frames(pool.load(path, indices=[1], backend="fake", do=steps(10, 0.005)), [1])
            waits.append(time.monotonic() - started)
        assert not long.done()
        assert_seconds(sorted(waits)[6], below=0.3)  # without yielding, each would take more than a second
        assert has_frames(long.result(30), [7])
        assert long.result().report.seconds["queue"] > 0.1


# memory


def test_requests_wait_for_memory_and_never_exceed_the_budget(path):
    budget = Pool(threads=4, memory=400 * MB)._workers.config.memory - MB  # the index keeps some packets
    held, lock, most = [0], threading.Lock(), [0]

    def note(request):
        with lock:
            held[0] += request.options["host"]
            most[0] = max(most[0], held[0])
        time.sleep(0.003)
        with lock:
            held[0] -= request.options["host"]

    with Pool(threads=4, memory=400 * MB) as pool:
        futures = [
            pool.submit(path, indices=[i % 5], backend="costly", host=budget // (1 + i % 3), do=note) for i in range(40)
        ]
        assert all(has_frames(future.result(30), [i % 5]) for i, future in enumerate(futures))
        assert budget // 2 < most[0] <= budget
        assert is_idle(pool)


def test_a_request_larger_than_the_budget_is_refused_at_once(pool, path, gate):
    other = pool.submit(path, indices=[2], backend="fake", do=gate)
    with pytest.raises(LimitError, match="memory at its peak"):
        pool.load(path, backend="costly", host=1 << 50)
    gate.open()
    assert has_frames(other.result(), [2])


def test_output_larger_than_the_budget_is_refused_before_it_is_allocated(path):
    with Pool(threads=1, memory=100 * MB) as pool, pytest.raises(LimitError, match="memory at its peak"):
        pool.load(path, size=(4000, 4000), limits=Limits(max_output_bytes=16 << 30))


def test_lease_vram_is_held_around_a_gpu_decode(path):
    log = []

    class Lease:
        def __init__(self, nbytes, device):
            self.what = nbytes, device

        def __enter__(self):
            log.append(("in", *self.what))

        def __exit__(self, *_):
            log.append(("out", *self.what))

    with Pool(threads=1, lease_vram=Lease) as pool:
        do = lambda request: log.append("decode")  # noqa: E731
        frames = pool.load(path, indices=[4], backend="costly", device="cuda:1", gpu=77, do=do)
        assert has_frames(frames, [4])
        assert log == [("in", 77, "cuda:1"), "decode", ("out", 77, "cuda:1")]


def test_gpu_memory_has_its_own_budget_and_gpu_decodes_hold_no_core(path, gate):
    with Pool(threads=1, vram=100) as pool:
        first = pool.submit(path, indices=[1], backend="costly", device="cuda", gpu=60, do=gate)
        second = pool.submit(path, indices=[2], backend="costly", device="cuda", gpu=60, do=gate)
        gate.wait_for(1)
        assert pool.status().vram_leased == 60
        assert has_frames(pool.load(path, indices=[3], backend="fake"), [3])
        with pytest.raises(LimitError, match="GPU memory"):
            pool.load(path, backend="costly", device="cuda", gpu=101)
        gate.open()
        assert has_frames(first.result(), [1]) and has_frames(second.result(), [2])
        assert is_idle(pool)


def test_a_backend_that_decodes_on_the_cpu_holds_cores_whatever_the_device_of_its_frames(path, gate, monkeypatch):
    """As pyav, which decodes on the CPU and uploads the frames."""
    monkeypatch.setattr(Costly, "decodes_on_cpu", lambda self, device: True)
    with Pool(threads=1, vram=100) as pool:
        uploading = pool.submit(path, indices=[1], backend="costly", device="cuda", gpu=60, do=gate)
        gate.wait_for(1)
        assert pool.status().vram_leased == 60
        other = pool.submit(path, indices=[2], backend="fake")
        time.sleep(0.2)
        assert pool.status().queued == 1
        gate.open()
        assert has_frames(uploading.result(), [1]) and has_frames(other.result(), [2])
        assert is_idle(pool)


# the queue


def test_a_full_queue_raises_overloaded_error_and_recovers(path, gate):
    with Pool(threads=1, queue=2) as pool:
        running = pool.submit(path, indices=[1], backend="fake", do=gate)
        gate.wait_for(1)
        queued = [pool.submit(path, indices=[2], backend="fake") for _ in range(2)]
        with pytest.raises(OverloadedError, match="queue is full") as refusal:
            pool.submit(path)
        assert refusal.value.http_status == 503 and not isinstance(refusal.value, ValueError)
        gate.open()
        assert has_frames(running.result(), [1]) and all(has_frames(future.result(), [2]) for future in queued)
        assert len(pool.load(path, num_frames=1)) == 1


def test_many_requests_of_one_caller_do_not_delay_another_caller(path, gate):
    with Pool(threads=1) as pool:
        ended = []
        first = pool.submit(path, backend="fake", do=gate, caller="crowd")
        gate.wait_for(1)
        crowd = [pool.submit(path, backend="fake", do=steps(5, 0.005), caller="crowd") for _ in range(30)]
        for future in crowd:
            future.add_done_callback(lambda _: ended.append("crowd"))
        single = pool.submit(path, backend="fake", do=steps(10, 0.005), caller="single")
        single.add_done_callback(lambda _: ended.append("single"))
        time.sleep(0.6)  # more than the usage of callers may differ by
        gate.open()
        concurrent.futures.wait([first, single, *crowd])
        assert ended.index("single") <= 2


class GatedFile(io.RawIOBase):
    """File object that returns nothing before its gate is open."""

    def __init__(self, data, gate, started):
        self._left, self._gate, self._started = io.BytesIO(data), gate, started

    def readable(self):
        return True

    def read(self, count=-1):
        self._started()
        self._gate.wait(20)
        return self._left.read(count)


def test_fetches_of_different_callers_start_alternately(path):
    order, gates = [], [threading.Event() for _ in range(2)]

    def file(caller, number, gate):
        def started():
            if (caller, number) not in order:
                order.append((caller, number))

        return GatedFile(path.read_bytes(), gate, started)

    with Pool(threads=2, workers=2) as pool:
        futures = [pool.submit(file("crowd", i, gates[i > 1]), caller="crowd", num_frames=1) for i in range(8)]
        until(lambda: len(order) == 2)
        futures.append(pool.submit(file("single", 0, gates[1]), caller="single", num_frames=1))
        gates[0].set()
        until(lambda: len(order) == 4)
        assert ("single", 0) in order[:4]
        gates[1].set()
        assert all(len(future.result(20)) == 1 for future in futures)
