"""Numbers: counted once, exported where somebody can read them, and cheap."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace

import numpy as np
import pytest

import telecine.pool
from support.clips import CLIPS
from support.fake_backends import Gate, fakes, filled
from telecine import DeadlineError, LimitError, Pool, TelecineError, load
from telecine.backends.base import names
from telecine.metrics import METRICS, Metrics, Tracing
from telecine.pool import job

__all__ = ["fakes"]


@pytest.fixture
def path():
    return CLIPS["base.mp4"].path()


def growth(act):
    before = METRICS.snapshot()
    act()
    after = METRICS.snapshot()
    return {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)}


def test_a_request_is_counted_in_every_respect(path):
    with Pool(threads=1) as pool:
        grown = growth(lambda: pool.load(path, num_frames=4))
        assert grown["telecine_requests{ok,pyav}"] == 1
        assert grown["telecine_frames{kept}"] == 4
        total = grown["telecine_packets{fed}"] + grown.get("telecine_packets{skipped}", 0)
        assert total == CLIPS["base.mp4"].num_frames
        assert grown["telecine_index_cache{miss}"] == 1
        for stage in ("fetch", "index", "plan", "decode", "convert"):
            assert grown[f"telecine_stage_seconds{{{stage}}}"] > 0
        again = growth(lambda: pool.load(path, num_frames=4))
        assert again["telecine_index_cache{hit}"] == 1


def test_failures_are_counted_by_their_class(path):
    def fail():
        for options in ({"timeout": 1e-6}, {"size": (10**5, 10**5)}):
            with pytest.raises(TelecineError):
                pool.load(path, **options)

    with Pool(threads=1) as pool:
        grown = growth(fail)
    assert sum(grown.get(f"telecine_requests{{DeadlineError,{name}}}", 0) for name in ("auto", "pyav")) == 1
    assert grown["telecine_requests{LimitError,pyav}"] == 1
    assert grown["telecine_timeouts"] == 1


@pytest.mark.usefixtures("fakes")
def test_refusals_cancellations_and_gauges(path):
    gate = Gate()
    with Pool(threads=1, queue=1) as pool:

        def act():
            first = pool.submit(path, backend="fake", do=gate)
            gate.wait_for(1)
            second = pool.submit(path, backend="fake")
            now = METRICS.snapshot()
            assert now["telecine_requests_queued"] >= 1 and now["telecine_requests_running"] >= 1
            assert now["telecine_memory_leased_bytes"] > 0
            with pytest.raises(LimitError):
                pool.submit(path)
            second.cancel()
            gate.open()
            first.result()

        grown = growth(act)
    assert grown["telecine_refusals"] == 1 and grown["telecine_cancellations"] == 1


def test_fallback_reasons_do_not_become_endless_labels():
    metrics = Metrics()
    frames = types.SimpleNamespace(
        report=types.SimpleNamespace(seconds={}, packets_fed=0, packets_skipped=0, lost=(), fallback_reason=""),
        __len__=lambda: 0,
    )

    class Few(types.SimpleNamespace):
        def __len__(self):
            return 0

    for i in range(500):
        report = types.SimpleNamespace(**{**vars(frames.report), "fallback_reason": f"{i}x{i} is too large"})
        metrics.ended("ok", "pyav", 0.1, 0.0, Few(report=report))
    labels = [name for name in metrics.snapshot() if name.startswith("telecine_fallbacks")]
    assert len(labels) == 33 and "telecine_fallbacks{other}" in labels


def test_histograms_cumulate():
    metrics = Metrics()
    for seconds in (0.0005, 0.02, 0.02, 1000.0):
        metrics.ended("ok", "pyav", seconds, 0.0, None)
    (family,) = [f for f in metrics.collect() if f.name == "telecine_request_seconds"]
    (sample,) = family.samples
    buckets = dict(sample.buckets)
    assert buckets["0.001"] == 1 and buckets["0.025"] == 3 and buckets["300.0"] == 3 and buckets["+Inf"] == 4
    assert sample.value == pytest.approx(1000.0405)


class Sessions:
    __slots__ = ("__weakref__",)

    def gauges(self):
        return {"telecine_sessions": 2.0}


class Slotted:
    __slots__ = ()
    gauges = Sessions.gauges


def test_gauges_of_all_who_are_watched_are_added_up_and_each_is_asked_once():
    metrics, owner = Metrics(), Sessions()
    for _ in range(3):
        metrics.watch(owner.gauges)
    other = lambda: {"telecine_sessions": 1.0}  # noqa: E731
    metrics.watch(other)
    metrics.watch(other)
    metrics.watch(Slotted().gauges)
    assert metrics.snapshot()["telecine_sessions"] == 5


def test_gauges_go_with_the_object_that_they_are_a_method_of():
    metrics, owner = Metrics(), Sessions()
    metrics.watch(owner.gauges)
    del owner
    gc.collect()
    assert metrics.snapshot()["telecine_sessions"] == 0


def test_pools_that_have_gone_leave_nothing_behind_although_nobody_reads_the_numbers(monkeypatch):
    metrics = Metrics()
    monkeypatch.setattr(telecine.pool, "METRICS", metrics)
    for _ in range(50):
        Pool(threads=1)
    gc.collect()
    alive = Pool(threads=1)
    assert len(metrics._gauges) == 1
    assert alive.status().running == 0


def test_two_may_read_the_numbers_at_once_after_a_pool_has_gone(monkeypatch):
    metrics, barrier = Metrics(), threading.Barrier(2)

    def meet():
        barrier.wait(10)
        return {}

    monkeypatch.setattr(telecine.pool, "METRICS", metrics)
    metrics.watch(meet)
    pool = Pool(threads=1)
    del pool
    gc.collect()
    with concurrent.futures.ThreadPoolExecutor(2) as readers:
        for reading in [readers.submit(metrics.snapshot) for _ in range(2)]:
            assert reading.result(20)["telecine_requests_running"] == 0


def backends_counted():
    return {labels[1] for name, labels in METRICS._counters if name == "telecine_requests"}


@pytest.mark.parametrize("backend", [5, ["x"], b"pyav", "no such one", "", np.zeros(2)], ids=repr)
@pytest.mark.parametrize("way", ["load", "submit", "aload"])
def test_only_a_backend_that_there_is_becomes_a_label(path, spans, backend, way):
    known = {"auto", "unknown", *names()} | backends_counted()
    with Pool(threads=1) as pool:
        for _ in range(2):
            with pytest.raises(TelecineError):
                if way == "aload":
                    asyncio.run(pool.aload(path, backend=backend, timeout=20))
                else:
                    getattr(pool, way)(path, backend=backend, timeout=20)
        assert pool.status().written_off == 0
        assert backends_counted() <= known
        assert {span.attributes["telecine.backend"] for span in spans} <= {"unknown"}
        assert all(span.ended for span in spans)
        assert len(pool.load(path, num_frames=1, timeout=20)) == 1
    METRICS.snapshot()


def test_a_backend_of_another_package_is_a_label_too(path, monkeypatch):
    monkeypatch.setattr(job, "names", lambda: [*names(), "outside"])
    assert job.label_of("outside", outside=True) == "outside"
    assert job.label_of("outside", outside=False) == "unknown"

    def act():
        with pytest.raises(TelecineError):
            pool.load(path, backend="outside")

    with Pool(threads=1) as pool:
        grown = growth(act)
    assert grown["telecine_requests{OptionsError,outside}"] == 1


@pytest.mark.usefixtures("fakes")
def test_losses_fallbacks_and_copies_are_counted(path):
    def lose(request):
        decoded = filled(request)
        kept = decoded.kept.copy()
        kept[0] = False
        return replace(decoded, kept=kept, seconds={"copy": 0.5}, backend="pyav", fallback_reason="too tall")

    with Pool(threads=1) as pool:
        grown = growth(lambda: pool.load(path, indices=[3, 4, 5], backend="fake", do=lose))
    assert grown["telecine_frames{lost}"] == 1 and grown["telecine_frames{kept}"] == 2
    assert grown["telecine_fallbacks{too tall}"] == 1
    assert grown["telecine_stage_seconds{copy}"] == 0.5
    assert grown["telecine_requests{ok,fake}"] == 1


@pytest.mark.usefixtures("fakes")
def test_threads_written_off_are_counted_and_shown_while_they_are_stuck(path):
    gate = Gate()

    def act():
        with pytest.raises(DeadlineError):
            pool.load(path, backend="fake", do=gate.block, timeout=0.05)

    with Pool(threads=1) as pool:
        grown = growth(act)
        names = ("telecine_threads_written_off", "telecine_threads_stuck", "telecine_timeouts")
        assert [grown[name] for name in names] == [1, 1, 1]
        gate.open()
        end = time.monotonic() + 10
        while pool.status().stuck:
            assert time.monotonic() < end
            time.sleep(0.005)


def test_gauges_that_cannot_be_read_hide_no_other_number():
    def broken():
        raise RuntimeError("the driver is gone")

    metrics = Metrics()
    metrics.watch(broken)
    metrics.watch(lambda: {"telecine_sessions": 2.0})
    metrics.count("telecine_refusals")
    snapshot = metrics.snapshot()
    assert (snapshot["telecine_sessions"], snapshot["telecine_refusals"]) == (2, 1)


@pytest.mark.usefixtures("fakes")
def test_a_backend_says_what_sessions_it_has(path):
    def act():
        for _ in range(3):
            pool.load(path, num_frames=1, backend="costly")

    with Pool(threads=1) as pool:
        grown = growth(act)
    assert (grown["telecine_sessions"], grown["telecine_vram_bytes"]) == (3, 4096)


def test_prometheus_reads_the_same_numbers(path):
    prometheus_client = pytest.importorskip("prometheus_client", exc_type=ImportError)
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=1)
        text = prometheus_client.generate_latest().decode()
    snapshot = METRICS.snapshot()
    assert f'telecine_requests_total{{backend="pyav",outcome="ok"}} {snapshot["telecine_requests{ok,pyav}"]}' in text
    assert 'telecine_stage_seconds_bucket{le="+Inf",stage="decode"}' in text
    assert "telecine_requests_running 0.0" in text
    assert text.count("# TYPE telecine_requests_total counter") == 1


def test_prometheus_is_not_imported_before_the_first_request(path):
    script = f"""
import sys
import telecine
from telecine import Pool
pool = Pool(threads=1)
assert "prometheus_client" not in sys.modules and "opentelemetry" not in sys.modules
pool.load({str(path)!r}, num_frames=1)
assert "prometheus_client" in sys.modules
pool.close()
print("done")
"""
    pytest.importorskip("prometheus_client", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_without_prometheus_and_opentelemetry_all_works(path):
    script = f"""
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = sys.modules["opentelemetry.trace"] = None
from telecine import Pool
from telecine.metrics import METRICS
with Pool(threads=1) as pool:
    pool.load({str(path)!r}, num_frames=1)
print(METRICS.snapshot()["telecine_requests{{ok,pyav}}"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1.0", "")


class FakeSpan:
    def __init__(self, name, attributes):
        self.name, self.attributes, self.events, self.status, self.ended = name, attributes, [], None, 0

    def add_event(self, name):
        self.events.append(name)

    def set_attribute(self, name, value):
        self.attributes[name] = value

    def set_status(self, status):
        self.status = status

    def end(self):
        self.ended += 1


@pytest.fixture
def spans(monkeypatch):
    """Stands in for opentelemetry.trace; what is used of it was tried with the real one."""
    made = []

    class Tracer:
        def start_span(self, name, attributes):
            made.append(FakeSpan(name, attributes))
            return made[-1]

    trace = types.ModuleType("opentelemetry.trace")
    trace.get_tracer = lambda name: Tracer()
    trace.Status = lambda code, text: (code, text)
    trace.StatusCode = types.SimpleNamespace(ERROR="error")
    monkeypatch.setitem(sys.modules, "opentelemetry", types.ModuleType("opentelemetry"))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    return made


def test_each_request_is_a_span(spans, path):
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=2)
        with pytest.raises(TelecineError):
            pool.load(b"\x00" * 100)
    good, bad = spans
    assert (good.name, good.events, good.status, good.ended) == ("telecine.request", ["begun"], None, 1)
    assert good.attributes["telecine.outcome"] == "ok"
    assert good.attributes["telecine.decode_seconds"] > 0
    assert bad.status == ("error", "SourceError") and bad.ended == 1


def test_counting_costs_less_than_a_hundredth_of_a_small_decode(path):
    frames = load(path, num_frames=8)
    started = time.process_time()
    for _ in range(3):
        load(path, num_frames=8)
    decode = (time.process_time() - started) / 3
    metrics = Metrics()
    started = time.process_time()
    for _ in range(500):
        tracing = Tracing({"telecine.backend": "pyav"})
        tracing.begun()
        metrics.ended("ok", "pyav", 0.1, 0.01, frames)
        metrics.count("telecine_index_cache", 1, "hit")
        tracing.ended("ok", 0.01, frames, None)
    assert (time.process_time() - started) / 500 < 0.01 * decode
