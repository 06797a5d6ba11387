"""Leases on memory, and the estimated memory of a decode."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from support.clips import CLIPS
from support.fake_backends import fakes
from telecine.backends.registry import get_backend
from telecine.deadline import Deadline
from telecine.errors import LimitError, OverloadedError
from telecine.pipeline import RequestHooks, run_request
from telecine.pool.memory_budget import MemoryBudget, estimate_memory
from telecine.request import Request

__all__ = ["fakes"]


def never():
    """Check of a wait that nothing ends."""


def test_leases_add_up_and_are_returned():
    memory = MemoryBudget(100)
    with memory.lease(60, never), memory.lease(40, never):
        assert memory.leased == 100
        assert memory.try_lease(1) is None
    assert memory.leased == 0


def test_a_lease_is_returned_once():
    memory = MemoryBudget(100)
    lease = memory.lease(50, never)
    lease.release()
    lease.release()
    lease.abandon()
    assert (memory.leased, memory.lost) == (0, 0)


def test_a_lease_larger_than_the_budget_is_refused():
    with pytest.raises(LimitError, match="101 bytes of memory"):
        MemoryBudget(100).lease(101, never)


def test_an_abandoned_lease_is_lost_until_it_is_released():
    memory = MemoryBudget(100)
    lease = memory.lease(70, never)
    lease.abandon()
    assert (memory.leased, memory.lost) == (0, 70)
    with pytest.raises(OverloadedError, match="threads that hang hold 70"):
        memory.try_lease(50)
    lease.release()
    assert memory.lost == 0
    assert memory.try_lease(50) is not None


def test_leases_are_given_in_order_even_behind_a_large_one():
    memory, order = MemoryBudget(100), []
    first = memory.lease(60, never)

    def wait(need):
        with memory.lease(need, never):
            order.append(need)
            time.sleep(0.01)

    threads = []
    for need in (90, 30, 20):
        threads.append(threading.Thread(target=wait, args=[need]))
        threads[-1].start()
        while memory.waiting < len(threads):
            time.sleep(0.001)
    assert memory.try_lease(10) is None  # no request overtakes those that wait
    first.release()
    for thread in threads:
        thread.join(10)
    assert order[0] == 90 and sorted(order) == [20, 30, 90]
    assert memory.leased == 0


def test_a_wait_that_times_out_leaves_the_queue():
    memory = MemoryBudget(100)
    first = memory.lease(100, never)
    deadline = Deadline(0.05)
    with pytest.raises(TimeoutError):
        memory.lease(10, lambda: deadline.check("waiting"))
    assert memory.waiting == 0
    first.release()
    assert memory.try_lease(100) is not None


@pytest.fixture
def decode_request():
    """Returns the request that a backend gets for ten frames of a small clip."""
    seen = []

    class Look(RequestHooks):
        def reserve_memory(self, decode, backend):
            seen.append((decode, backend))
            return super().reserve_memory(decode, backend)

    def of(**options):
        run_request(Request.of(CLIPS["base.mp4"].path(), num_frames=10, **options), Deadline(), Look())
        return seen[-1]

    return of


def test_cost_grows_with_output_threads_and_depth(decode_request):
    request, backend = decode_request()
    assert request.info.pixel_format == "yuv420p"
    one, four = estimate_memory(request, backend, 1), estimate_memory(request, backend, 4)
    picture = (request.info.height + 64) * (request.info.width + 128) * 3 // 2
    assert four.host - one.host == 5 * 16 * picture
    output = 10 * request.info.height * request.info.width * 3
    assert one.host > output + 16 * picture
    assert one.device == 0
    deep = replace(request, info=replace(request.info, bit_depth=10))
    assert estimate_memory(deep, backend, 1).host - one.host == 16 * picture
    strange = replace(request, info=replace(request.info, pixel_format="unknown", bit_depth=0))
    assert estimate_memory(strange, backend, 1).host > 2 * one.host
    assert estimate_memory(request, backend, 1, copied=1000).host - one.host == 1000


def test_cost_on_a_gpu_is_there(decode_request):
    request, pyav = decode_request()
    output = 10 * request.info.height * request.info.width * 3
    on_gpu = replace(request, device="cuda", options={"out": "array", "threads": None})
    alone = estimate_memory(on_gpu, get_backend("nvdec"), 1)
    assert alone.device > output
    copied = estimate_memory(replace(on_gpu, options={"out": "numpy"}), get_backend("nvdec"), 1)
    assert copied.host - alone.host == output
    falls_back = estimate_memory(on_gpu, get_backend("auto"), 1)
    assert falls_back.host > copied.host and falls_back.device == alone.device
    uploaded = estimate_memory(on_gpu, pyav, 1)
    assert uploaded.device == output and uploaded.host == estimate_memory(request, pyav, 1).host


@pytest.mark.usefixtures("fakes")
def test_a_backend_may_say_what_it_takes(decode_request):
    request, _ = decode_request()
    cost = estimate_memory(replace(request, options={"host": 5, "gpu": 6}), get_backend("costly"), 1)
    assert (cost.host, cost.device) == (5 + request.packet_bytes, 6)


def test_the_estimated_memory_covers_that_of_a_real_decode():
    """Measured in a new process: the growth of its resident set after a first decode."""
    script = """
import sys
from telecine import load
from telecine.backends.registry import get_backend
from telecine.pool.memory_budget import estimate_memory
from telecine.deadline import Deadline
from telecine.pipeline import RequestHooks, run_request
from telecine.request import Request
class Look(RequestHooks):
    def reserve_memory(self, decode, backend):
        costs.append(estimate_memory(decode, backend, 2).host)
        return super().reserve_memory(decode, backend)
def peak():  # getrusage() would also count what the parent had
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
costs, small, large = [], sys.argv[1], sys.argv[2]
load(small, num_frames=1)
before = peak()
frames = run_request(Request.of(large, num_frames=30, size=(1080, 1920)), Deadline(), Look())
after = peak()
print(after - before, costs[0], frames.data.nbytes)
"""
    clip = str(CLIPS["base.mp4"].path())
    done = subprocess.run(
        [sys.executable, "-c", script, clip, clip], capture_output=True, text=True, check=True, timeout=60
    )
    grown, cost, output = map(int, done.stdout.split())
    assert output * 0.9 < grown <= cost + (16 << 20)
