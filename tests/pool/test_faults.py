"""A fault ends only its own request, in bounded time, and leaves no thread, memory or descriptor behind."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from support.clips import CLIPS
from support.fake_backends import fakes, steps
from support.pool_cases import gate, has_frames, is_idle, path, pool, until
from telecine import DeadlineError, DecodeError, NoVideoError, OverloadedError, Pool, SourceError
from telecine.errors import TelecineError

__all__ = ["fakes", "gate", "path", "pool"]

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("fakes"), pytest.mark.timeout(60)]


class Killed(BaseException):
    """Error that ends a thread. SystemExit would end the process if it is raised in the callback of a library."""


def kill(thread):
    """Raise an error in another thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))


# faults


@pytest.mark.parametrize("fault", [SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError, KeyError])
def test_any_exception_of_a_backend_ends_only_its_own_request(pool, path, fault):
    def fail(request):
        raise fault("secret bytes of the input")

    others = [pool.submit(path, indices=[i], backend="fake", do=steps(5, 0.005)) for i in range(4)]
    for _ in range(4):
        with pytest.raises(TelecineError, match=f"fake with {fault.__name__}") as failure:
            pool.load(path, backend="fake", do=fail)
        assert "secret" not in str(failure.value)
    assert all(has_frames(future.result(), [i]) for i, future in enumerate(others))
    assert is_idle(pool)


def test_running_out_of_memory_raises_overloaded_error(pool, path):
    def fail(request):
        raise MemoryError

    with pytest.raises(OverloadedError, match="not enough memory"):
        pool.load(path, backend="fake", do=fail)
    assert is_idle(pool) and has_frames(pool.load(path, indices=[1], backend="fake"), [1])


def test_a_failed_allocation_raises_overloaded_error_and_other_requests_succeed(path):
    """The system has less memory than the pool was told."""
    done = run_script(
        """
        import resource
        pool = Pool(threads=2, memory=16 << 30)
        pool.load(PATH, num_frames=1)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (600 << 20), -1))
        options = {"size": (720, 1280), "limits": telecine.Limits(max_output_bytes=16 << 30)}
        large = [pool.submit(PATH, indices=[i % 60 for i in range(1200)], **options) for _ in range(4)]
        small = [pool.submit(PATH, indices=[i]) for i in range(12)]
        print([type(future.exception(30)).__name__ for future in large])
        print([future.result(30).indices.tolist() for future in small] == [[i] for i in range(12)])
        status = pool.status()
        print(status.queued, status.running, status.memory_leased)
        """,
        path,
    )
    assert done.stdout.splitlines() == [str(["OverloadedError"] * 4), "True", "0 0 0"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["missing", "unmakeable", "cost_raises"])
def test_a_backend_that_fails_before_decoding_ends_only_its_own_request(pool, path, backend):
    for _ in range(3):
        with pytest.raises(TelecineError, match=backend):
            pool.load(path, backend=backend)
    assert is_idle(pool) and has_frames(pool.load(path, indices=[1], backend="fake"), [1])


@pytest.mark.parametrize("answer", [7, object()])
def test_a_backend_that_returns_a_wrong_type_ends_only_its_own_request(pool, path, answer):
    with pytest.raises(TelecineError, match="fake"):
        pool.load(path, backend="fake", do=lambda request: answer)
    assert is_idle(pool)


def test_a_failing_gpu_lease_ends_only_its_own_request(path):
    def refuse(nbytes, device):
        raise ValueError("no room")

    with Pool(threads=1, lease_vram=refuse) as pool:
        with pytest.raises(TelecineError, match="ValueError"):
            pool.load(path, backend="costly", device="cuda", gpu=1)
        assert is_idle(pool) and has_frames(pool.load(path, indices=[1], backend="fake"), [1])


def test_a_killed_thread_ends_only_its_own_request(path, gate):
    with Pool(threads=1) as pool:
        victim = pool.submit(path, backend="fake", do=gate)
        others = [pool.submit(path, indices=[i], backend="fake") for i in range(3)]
        gate.wait_for(1)
        (thread,) = pool._workers.threads
        kill(thread)
        with pytest.raises(TelecineError, match="Killed"):
            victim.result(20)
        assert all(has_frames(future.result(20), [i]) for i, future in enumerate(others))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_idle_thread_is_replaced(path):
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=1, backend="fake")
        (thread,) = pool._workers.threads
        kill(thread)
        for i in range(5):
            assert has_frames(pool.load(path, indices=[i], backend="fake", timeout=30), [i])


def test_a_killed_watchdog_is_replaced(path, gate, caplog):
    with Pool(threads=1) as pool:
        hung = pool.submit(path, backend="fake", do=gate.block, timeout=1.0)
        gate.wait_for(1)
        watch = pool._workers._watchdog
        kill(watch)
        with pytest.raises(DeadlineError):
            hung.result(20)
        assert pool._workers._watchdog is not watch
        assert has_frames(pool.load(path, indices=[1], backend="fake", timeout=30), [1])
    assert "the watchdog of a pool ended" in caplog.text


def test_a_done_callback_may_load_another_source_and_wait(path):
    """The thread that runs the callback is counted as idle, but cannot take the next request."""
    with Pool(threads=1) as pool:
        nested, done = [], threading.Event()

        def again(_):
            nested.append(pool.load(path, indices=[2], backend="fake", timeout=20))
            done.set()

        first = pool.submit(path, indices=[1], backend="fake", do=steps(20, 0.005))
        first.add_done_callback(again)
        assert has_frames(first.result(20), [1])
        assert done.wait(20) and has_frames(nested[0], [2])


def test_a_blocking_done_callback_of_a_late_request_does_not_stop_the_watchdog(path, gate):
    with Pool(threads=1) as pool:
        block = threading.Event()
        late = pool.submit(path, backend="fake", do=gate.block, timeout=0.1)
        late.add_done_callback(lambda _: block.wait(20))
        with pytest.raises(DeadlineError):
            late.result(20)
        with pytest.raises(DeadlineError):
            pool.load(path, backend="fake", do=gate.block, timeout=0.1)
        block.set()


def test_an_error_that_is_its_own_cause_is_raised(pool, path):
    def fail(request):
        error = DecodeError("damaged")
        raise error from error

    with pytest.raises(DecodeError, match="damaged"):
        pool.submit(path, backend="fake", do=fail).result(20)


def test_no_request_is_lost_while_threads_hang_and_are_killed(path, gate, caplog):
    """Two thousand small requests from sixteen threads each end with their own frame, timeout, cancellation or killed
    thread. Then nothing is left, and the pool works as before."""
    caplog.set_level("CRITICAL")

    def die(request):
        kill(threading.current_thread())
        time.sleep(0.001)

    def ask(i):
        kind = "hang" if i % 400 == 7 else "die" if i % 23 == 0 else "cancel" if i % 17 == 0 else "frame"
        do = {"hang": gate.block, "die": die, "cancel": steps(3, 0.001), "frame": None}[kind]
        timeout = 0.05 if kind == "hang" else None
        future = pool.submit(path, indices=[i % 60], backend="fake", do=do, timeout=timeout, caller=i % 5)
        if kind == "cancel":
            time.sleep(i % 3 * 0.001)
            future.cancel()
        try:
            frames = future.result(40)
        except DeadlineError:
            return kind == "hang"
        except concurrent.futures.CancelledError:
            return kind == "cancel"
        except TelecineError as error:
            return kind == "die" and "Killed" in str(error)
        return kind in ("frame", "cancel") and has_frames(frames, [i % 60])

    with Pool(threads=2) as pool:
        with concurrent.futures.ThreadPoolExecutor(16) as callers:
            assert all(callers.map(ask, range(2000)))
        status = pool.status()
        assert 1 <= status.abandoned == status.stuck <= 5  # some were late before they began
        assert status.threads <= 8  # not one for each request that ended badly
        gate.open()
        until(lambda: is_idle(pool) and pool.status().stuck == 0)
        assert pool._workers.resources.scheduler.free_cores == 2
        futures = [pool.submit(path, indices=[i], backend="fake", timeout=30) for i in range(8)]
        assert all(has_frames(future.result(), [i]) for i, future in enumerate(futures))


def test_frames_are_freed_as_soon_as_the_caller_drops_them(pool, path):
    gc.collect()
    gc.disable()
    try:
        frames = pool.load(path, num_frames=4)
        gone = weakref.ref(frames.data)
        del frames
        until(lambda: gone() is None, 2)
    finally:
        gc.enable()


def test_an_error_does_not_keep_the_arrays_of_its_decode(pool, path):
    kept = []

    def fail(request):
        output = np.empty(1000, np.uint8)
        kept.append(weakref.ref(output))
        raise DecodeError("damaged")

    future = pool.submit(path, backend="fake", do=fail)
    error = future.exception()
    assert isinstance(error, DecodeError)
    assert kept[0]() is None


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_good_and_bad_clips_from_sixteen_threads_leak_no_thread_or_descriptor(path):
    video = path.read_bytes()
    kinds = [
        (path, None),
        (video, None),
        (b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 400, SourceError),
        (video[: len(video) // 3], SourceError),
        (b"<html>no</html>", SourceError),
        (Path("/no/such.mp4"), SourceError),
        (CLIPS["audio.mp4"].path(), NoVideoError),
    ]

    def check(i):
        source, error = kinds[i % len(kinds)]
        try:
            frames = pool.load(source, num_frames=2, timeout=60)
        except TelecineError as failure:
            return error is not None and isinstance(failure, error)
        return error is None and len(frames) == 2

    with Pool(threads=2) as pool, concurrent.futures.ThreadPoolExecutor(16) as callers:
        assert all(callers.map(check, range(56)))
        gc.collect()
        descriptors, threads = open_descriptors(), threading.active_count()
        assert all(callers.map(check, range(280)))
        assert pool.load(path, num_frames=1, timeout=30)
        assert is_idle(pool)
        gc.collect()
        assert open_descriptors() <= descriptors + 2
        assert threading.active_count() <= threads + 2


# forks and the exit of the interpreter


def run_script(script, path, timeout=40):
    head = f"import os, sys, threading, time\nsys.path[:0] = {sys.path!r}\nPATH = {str(path)!r}\n" + textwrap.dedent("""
        import telecine
        from telecine import Pool
        from telecine.backends.registry import BUILT_IN
        from support.fake_backends import Gate, steps
        for name in ("Fake", "Costly"):
            BUILT_IN[name.lower()] = f"support.fake_backends:{name}"
    """)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_a_fork_during_requests_leaves_a_usable_pool_in_parent_and_child(path):
    done = run_script(
        """
        pool, gate = Pool(threads=2), Gate()
        futures = [pool.submit(PATH, indices=[i], backend="fake", do=gate) for i in range(6)]
        gate.wait_for(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    futures[0].result(20)
                except telecine.Cancelled:
                    frames = pool.load(PATH, indices=[3], backend="fake", timeout=30)
                    status = pool.status()
                    if frames.indices.tolist() == [3] and (status.queued, status.running) == (0, 0):
                        code = 0
            finally:
                os._exit(code)
        gate.open()
        assert [future.result(10).indices.tolist() for future in futures] == [[i] for i in range(6)]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("both right")
        """,
        path,
    )
    assert (done.stdout.strip(), done.returncode) == ("both right", 0), done.stderr


@pytest.mark.parametrize("kind", ["gate", "gate.block", "steps(10**6, 0.001)"])
def test_the_interpreter_exits_with_queued_requests(path, kind):
    started = time.monotonic()
    done = run_script(
        f"""
        pool, gate = Pool(threads=2), Gate()
        futures = [pool.submit(PATH, backend="fake", do={kind}) for _ in range(20)]
        time.sleep(0.2)
        print("end")
        """,
        path,
    )
    assert (done.stdout.strip(), done.returncode) == ("end", 0), done.stderr
    assert set(done.stderr.splitlines()) <= {"fake does not return while decoding; its thread is abandoned"}
    assert time.monotonic() - started < 20


def test_the_interpreter_exits_during_real_decodes(path):
    done = run_script(
        """
        pool = Pool(threads=2)
        futures = [pool.submit(PATH, indices=list(range(60)) * 20, size=(360, 640)) for _ in range(8)]
        time.sleep(0.3)
        print("end")
        """,
        path,
    )
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("end", 0, "")
