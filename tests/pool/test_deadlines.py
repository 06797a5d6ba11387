"""Deadlines and cancellation: in every stage a request ends in time and frees its cores and memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import threading
import time

import pytest

from support.clips import CLIPS
from support.fake_backends import Gate, fakes, steps
from support.pool_cases import MB, assert_seconds, best_of_five, gate, has_frames, is_idle, path, pool, until
from telecine import DeadlineError, Limits, OverloadedError, Pool
from telecine.deadline import Deadline
from telecine.errors import Cancelled
from telecine.metrics import METRICS

__all__ = ["fakes", "gate", "path", "pool"]

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("fakes"), pytest.mark.timeout(60)]


class SlowFile(io.RawIOBase):
    """File object that returns one byte at a time, slowly."""

    def __init__(self):
        self.reading = threading.Event()

    def readable(self):
        return True

    def read(self, count=-1):
        self.reading.set()
        time.sleep(0.01)
        return b"\x00"


class ReadClip(io.RawIOBase):
    """File object of a clip that has to be read."""

    def __init__(self, path):
        self._content = io.BytesIO(path.read_bytes())

    def readable(self):
        return True

    def read(self, count=-1):
        return self._content.read(count)


class StuckClip(ReadClip):
    """File object of a clip whose first read blocks until a gate is open, as a name lookup may."""

    def __init__(self, path, gate):
        super().__init__(path)
        self._gate = gate

    def read(self, count=-1):
        self._gate.block(None)
        return super().read(count)


# deadlines


@best_of_five
def test_the_timeout_includes_the_time_in_the_queue(path):
    gate, pool = Gate(), Pool(threads=1)
    blockers = [pool.submit(path, indices=[1], backend="fake", do=gate) for _ in range(2)]
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="queue"):
        pool.load(path, timeout=0.2)
    taken = time.monotonic() - started
    gate.open()
    assert all(has_frames(future.result(), [1]) for future in blockers)
    pool.close()
    assert_seconds(taken, above=0.19, below=0.7)


@best_of_five
def test_the_timeout_is_checked_while_decoding(path):
    pool, gate = Pool(threads=1), Gate()
    pool.load(path, num_frames=1)
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="decoding"):
        pool.load(path, backend="fake", do=gate, timeout=0.5)
    taken = time.monotonic() - started
    pool.close()
    assert pool.status().abandoned == 0
    assert_seconds(taken, below=0.9)


@best_of_five
def test_the_timeout_is_checked_while_fetching(path):
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=1)
        started = time.monotonic()
        with pytest.raises(DeadlineError, match="reading"):
            pool.load(SlowFile(), timeout=0.2)
        assert_seconds(time.monotonic() - started, below=0.6)
        assert is_idle(pool) and pool.status().abandoned == 0


def test_the_timeout_is_checked_while_reading_the_packet_index(pool, path):
    """The progress callback lets the time pass when the first packets are read."""

    def watch(doing, done, total):
        if doing == "reading the packets":
            time.sleep(deadline.remaining() + 0.01)

    deadline = Deadline(1.0, watch)
    with pytest.raises(DeadlineError, match="reading the packets"):
        pool.load(path, timeout=deadline)
    assert is_idle(pool) and pool.status().abandoned == 0


@best_of_five
def test_a_hanging_fetch_fails_within_a_second_and_other_requests_continue(path):
    gate = Gate()
    with Pool(threads=1, workers=1) as pool:
        started = time.monotonic()
        with pytest.raises(DeadlineError, match="did not return"):
            pool.load(StuckClip(path, gate), timeout=0.1)
        taken = time.monotonic() - started
        assert len(pool.load(ReadClip(path), num_frames=1, timeout=30)) == 1
        assert pool.status().stuck == 1
        gate.open()
        until(lambda: pool.status().stuck == 0 and is_idle(pool))
        assert pool._workers.resources.scheduler.free_cores == 1  # a thread that came back too late holds no core
    assert_seconds(taken, below=1.1)


@best_of_five
def test_a_hanging_backend_fails_within_a_second_and_its_thread_is_replaced(path):
    gate = Gate()
    with Pool(threads=1, workers=1) as pool:
        hung = pool.submit(path, backend="fake", do=gate.block, timeout=0.2)
        others = [pool.submit(path, indices=[i], backend="fake") for i in range(3)]
        started = time.monotonic()
        with pytest.raises(DeadlineError, match="fake did not return"):
            hung.result()
        taken = time.monotonic() - started
        assert all(has_frames(future.result(20), [i]) for i, future in enumerate(others))
        status = pool.status()
        assert (status.abandoned, status.stuck) == (1, 1)
        assert METRICS.read_gauges()["telecine_threads_stuck"] >= 1
        assert status.memory_leased > 0  # the stuck thread may still use it
        gate.open()
        until(lambda: pool.status().stuck == 0 and is_idle(pool))
        assert pool.status().abandoned == 1
    assert_seconds(taken, below=1.2)


def test_memory_of_stuck_threads_stays_leased(path, gate):
    with Pool(threads=1, memory=200 * MB) as pool:
        budget = pool._workers.config.memory
        with pytest.raises(DeadlineError):
            pool.load(path, backend="costly", host=budget * 3 // 4, do=gate.block, timeout=0.1)
        with pytest.raises(OverloadedError, match="threads that hang"):
            pool.load(path, backend="costly", host=budget // 2)
        assert has_frames(pool.load(path, indices=[1], backend="costly", host=budget // 5), [1])


def test_a_deadline_of_the_caller_reports_progress_and_cancels(pool, path):
    seen = []
    deadline = Deadline(20, lambda doing, done, total: seen.append(doing))
    pool.load(path, num_frames=2, timeout=deadline)
    assert "decoding" in seen
    deadline.cancel()
    with pytest.raises(Cancelled):
        pool.load(path, timeout=deadline)


# cancellation at every stage


def test_cancelling_a_queued_request(pool, path, gate):
    blockers = [pool.submit(path, indices=[1], backend="fake", do=gate) for _ in range(2)]
    queued = pool.submit(path)
    assert queued.cancel() and queued.cancelled()
    status = pool.status()
    assert status.queued + status.running == 2
    gate.open()
    assert all(has_frames(future.result(), [1]) for future in blockers)


def test_cancelling_during_the_fetch(pool, path):
    file = SlowFile()
    future = pool.submit(file)
    assert file.reading.wait(20)
    future.cancel()
    until(lambda: is_idle(pool))
    assert len(pool.load(path, num_frames=1)) == 1


def test_cancelling_while_the_packet_index_is_read(pool, path):
    """The progress callback blocks the request there until it is cancelled."""
    there, go_on = threading.Event(), threading.Event()

    def watch(doing, done, total):
        if doing == "reading the packets":
            there.set()
            assert go_on.wait(20)

    future = pool.submit(path, timeout=Deadline(None, watch))
    assert there.wait(20)
    assert future.cancel()
    go_on.set()
    until(lambda: is_idle(pool))
    assert pool.status().abandoned == 0
    assert len(pool.load(path, num_frames=1)) == 1


def test_cancelling_while_waiting_for_a_core_after_the_fetch(path, gate):
    with Pool(threads=1) as pool:
        first = pool.submit(path, indices=[1], backend="fake", do=gate)
        gate.wait_for(1)
        second = pool.submit(ReadClip(path), num_frames=1)
        until(lambda: pool.status().running == 2)
        second.cancel()
        until(lambda: pool.status().running == 1)
        gate.open()
        assert has_frames(first.result(), [1])


def test_cancelling_while_waiting_for_memory(pool, path, gate):
    budget = pool._workers.config.memory - MB  # the index keeps some packets
    first = pool.submit(path, indices=[1], backend="costly", host=budget, threads=1, do=gate)
    gate.wait_for(1)
    second = pool.submit(path, backend="costly", host=budget)
    until(lambda: pool._workers.resources.memory.waiting == 1)
    second.cancel()
    until(lambda: pool._workers.resources.memory.waiting == 0)
    gate.open()
    assert has_frames(first.result(), [1])


def test_cancelling_a_request_that_has_yielded_its_cores(path):
    with Pool(threads=1) as pool:
        long = pool.submit(path, backend="fake", do=steps(1000, 0.005))
        time.sleep(0.5)
        short = pool.submit(path, indices=[1], backend="fake", do=steps(20, 0.01))
        until(lambda: short.done() or pool._workers.resources.scheduler.waiting)
        long.cancel()
        assert has_frames(short.result(20), [1])
        until(lambda: is_idle(pool))


@best_of_five
def test_cancelling_during_the_decode_frees_everything_within_a_tenth_of_a_second(pool, path):
    gate = Gate()
    future = pool.submit(path, backend="fake", do=gate)
    gate.wait_for(1)
    started = time.monotonic()
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    until(lambda: is_idle(pool))
    assert_seconds(time.monotonic() - started, below=0.1)
    assert pool.load(path, indices=[0], backend="fake").indices.tolist() == [0]


@best_of_five
def test_a_real_decode_stops_within_a_tenth_of_a_second(pool):
    indices, limits = [i % 60 for i in range(3000)], Limits(max_output_bytes=16 << 30)
    future = pool.submit(CLIPS["base.mp4"].path(), indices=indices, size=(720, 1280), limits=limits)
    until(lambda: pool.status().memory_leased or future.done())
    started = time.monotonic()
    assert future.cancel()
    until(lambda: is_idle(pool))
    assert_seconds(time.monotonic() - started, below=0.1)
    assert pool.status().abandoned == 0


def test_cancelling_although_the_backend_never_checks_its_deadline(path, gate):
    with Pool(threads=1) as pool:
        future = pool.submit(path, backend="fake", do=gate.block)
        gate.wait_for(1)
        future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(0.1)
        assert has_frames(pool.load(path, indices=[2], backend="fake", timeout=30), [2])
        assert pool.status().stuck == 1


def test_closing_a_pool_with_cancel_raises_cancelled_for_its_callers(path, gate):
    """One request runs, the others are queued; only the pool cancelled them."""
    pool = Pool(threads=1)

    def load_one():
        return pool.load(path, backend="fake", do=gate)

    def map_one():
        return list(pool.map([path], backend="fake", do=gate, return_errors=True))

    with concurrent.futures.ThreadPoolExecutor(2) as callers:
        loading = callers.submit(load_one)
        gate.wait_for(1)
        mapping = callers.submit(map_one)
        until(lambda: pool.status().queued == 1)
        future = pool.submit(path, backend="fake", do=gate)
        pool.close(cancel=True)
        with pytest.raises(Cancelled, match="decoding"):
            loading.result(5)
        assert [type(error) for error in mapping.result(5)] == [Cancelled]
        with pytest.raises(Cancelled, match="queue"):
            future.result(5)
        assert not future.cancelled()


def test_closing_a_pool_does_not_cancel_the_task_that_awaits_frames(path, gate):
    async def main():
        task = asyncio.ensure_future(pool.aload(path, backend="fake", do=gate))
        await asyncio.to_thread(gate.wait_for, 1)
        await asyncio.to_thread(pool.close, cancel=True)
        with pytest.raises(Cancelled):
            await task
        assert not task.cancelled()

    pool = Pool(threads=1)
    asyncio.run(main())


def test_closing_a_pool_does_not_wait_for_a_hanging_library(path, gate):
    pool = Pool(threads=1)
    future = pool.submit(path, backend="fake", do=gate.block)
    gate.wait_for(1)
    started = time.monotonic()
    pool.close(cancel=True)
    assert time.monotonic() - started < 10
    assert isinstance(future.exception(0), Cancelled)
    assert pool.status().stuck == 1


def test_a_cancelled_future_stays_cancelled_when_the_pool_is_closed(path, gate):
    pool = Pool(threads=1)
    future = pool.submit(path, backend="fake", do=gate)
    gate.wait_for(1)
    assert future.cancel()
    pool.close(cancel=True)
    assert future.cancelled()


def test_a_finished_request_cannot_be_cancelled(pool, path):
    future = pool.submit(path, num_frames=1)
    concurrent.futures.wait([future])
    assert not future.cancel()
    assert len(future.result()) == 1
