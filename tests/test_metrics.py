"""Metrics: nothing is counted before they are enabled, then every request once, at a small cost."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import types
from dataclasses import replace

import numpy as np
import pytest

import telecine.metrics
import telecine.pool.job
import telecine.pool.pool
import telecine.pool.workers
from support.clips import CLIPS
from support.fake_backends import Gate, fakes, filled
from support.pool_cases import until
from telecine import BackendUnavailable, DeadlineError, OverloadedError, Pool, TelecineError, load
from telecine.backends.registry import backend_names
from telecine.metrics import Metrics, RequestSpan, enable_prometheus
from telecine.pool.index_cache import settled_file_version
from telecine.pool.job import backend_label

__all__ = ["fakes"]

prometheus_client = pytest.importorskip("prometheus_client", exc_type=ImportError)


@pytest.fixture
def path():
    found = CLIPS["base.mp4"].path()
    until(lambda: settled_file_version(found) is not None)
    return found


class Exported:
    """Metrics of one test with the registry that exports them."""

    def __init__(self, metrics):
        self.metrics = metrics
        self.registry = prometheus_client.CollectorRegistry()
        metrics.register(self.registry)

    def value(self, name, **labels):
        """Return a value as it is exported; 0 if there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def labels(self, name, label):
        return {
            sample.labels[label]
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name
        }


@pytest.fixture
def exported(monkeypatch):
    """Replace the metrics of the process by new ones that start at zero."""
    metrics = Metrics()
    for module in (telecine.metrics, telecine.pool.job, telecine.pool.pool, telecine.pool.workers):
        monkeypatch.setattr(module, "METRICS", metrics)
    return Exported(metrics)


def frames_with(**report):
    """Return the frames of a request, as far as metrics look at them."""
    empty = {"seconds": {}, "packets_fed": 0, "packets_skipped": 0, "lost": (), "fallback_reason": None}

    class Empty(types.SimpleNamespace):
        def __len__(self):
            return 0

    return Empty(report=types.SimpleNamespace(**{**empty, **report}))


def test_a_request_is_counted_in_every_metric(exported, path):
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=4)
        pool.load(path, num_frames=4)
    assert exported.value("telecine_requests_total", outcome="ok", backend="pyav") == 2
    assert exported.value("telecine_request_seconds_count") == exported.value("telecine_queue_seconds_count") == 2
    assert exported.value("telecine_frames_total", kind="kept") == 8
    packets = [exported.value("telecine_packets_total", kind=kind) for kind in ("fed", "skipped")]
    assert sum(packets) == 2 * CLIPS["base.mp4"].num_frames
    for stage in ("fetch", "index", "plan", "decode", "convert"):
        assert exported.value("telecine_stage_seconds_sum", stage=stage) > 0
    assert [exported.value("telecine_index_cache_total", result=result) for result in ("miss", "hit")] == [1, 1]


def test_failures_are_counted_by_their_class(exported, path):
    with Pool(threads=1) as pool:
        for options in ({"timeout": 1e-6}, {"size": (10**5, 10**5)}):
            with pytest.raises(TelecineError):
                pool.load(path, **options)
    late = [exported.value("telecine_requests_total", outcome="DeadlineError", backend=b) for b in ("auto", "pyav")]
    assert sum(late) == exported.value("telecine_timeouts_total") == 1
    assert exported.value("telecine_requests_total", outcome="LimitError", backend="pyav") == 1


@pytest.mark.usefixtures("fakes")
def test_refused_and_cancelled_requests_are_counted_and_gauges_exported(exported, path):
    gate = Gate()
    with Pool(threads=1, queue=1) as pool:
        first = pool.submit(path, backend="fake", do=gate)
        gate.wait_for(1)
        second = pool.submit(path, backend="fake")
        assert exported.value("telecine_requests_queued") == exported.value("telecine_requests_running") == 1
        assert exported.value("telecine_memory_leased_bytes") > 0
        with pytest.raises(OverloadedError):
            pool.submit(path)
        second.cancel()
        gate.open()
        first.result()
    assert exported.value("telecine_refusals_total") == exported.value("telecine_cancellations_total") == 1


def test_the_number_of_fallback_reasons_is_bounded(exported):
    for i in range(500):
        exported.metrics.record_request("ok", "nvdec", 0.1, 0.0, frames_with(fallback_reason=f"{i}x{i} is too large"))
    reasons = exported.labels("telecine_fallbacks_total", "reason")
    assert len(reasons) == 33 and "other" in reasons


class Sessions:
    def gauges(self):
        return {"telecine_sessions": 2.0}


def test_gauges_are_added_up_and_each_owner_is_asked_once(exported):
    first, second = Sessions(), Sessions()
    for owner in (first, second, first):
        exported.metrics.add_gauges(owner)
    assert exported.value("telecine_sessions") == 4


def test_gauges_end_with_their_owner(exported):
    owner = Sessions()
    exported.metrics.add_gauges(owner)
    assert exported.value("telecine_sessions") == 2
    del owner
    gc.collect()
    assert exported.value("telecine_sessions") == 0


def test_a_dropped_pool_leaves_no_gauges_behind(exported):
    for _ in range(50):
        Pool(threads=1)
    gc.collect()
    alive = Pool(threads=1)
    assert list(exported.metrics._owners) == [alive]


@pytest.mark.parametrize("backend", [5, ["x"], b"pyav", "no such one", "", np.zeros(2)], ids=repr)
@pytest.mark.parametrize("way", ["load", "submit", "aload"])
def test_only_the_name_of_a_backend_becomes_a_label(exported, path, spans, backend, way):
    with Pool(threads=1) as pool:
        with pytest.raises(TelecineError):
            if way == "aload":
                asyncio.run(pool.aload(path, backend=backend, timeout=20))
            else:
                getattr(pool, way)(path, backend=backend, timeout=20)
        assert len(pool.load(path, num_frames=1, timeout=20)) == 1
    labels = exported.labels("telecine_requests_total", "backend")
    assert "pyav" in labels and labels <= {"auto", "unknown", *backend_names()}
    names = [span.attributes["telecine.backend"] for span in spans]
    assert names[-1] == "pyav" and set(names[:-1]) <= {"unknown"}
    assert all(span.ended for span in spans)


def test_a_backend_of_another_package_becomes_a_label(exported, path, monkeypatch):
    monkeypatch.setattr(telecine.pool.job, "backend_names", lambda: [*backend_names(), "outside"])
    assert backend_label("outside", search_plugins=True) == "outside"
    assert backend_label("outside", search_plugins=False) == "unknown"
    with Pool(threads=1) as pool, pytest.raises(TelecineError):
        pool.load(path, backend="outside")
    assert exported.value("telecine_requests_total", outcome="OptionsError", backend="outside") == 1


@pytest.mark.usefixtures("fakes")
def test_losses_fallbacks_and_copies_are_counted(exported, path):
    def lose(request):
        decoded = filled(request)
        kept = decoded.kept.copy()
        kept[0] = False
        return replace(decoded, kept=kept, seconds={"copy": 0.5}, backend="pyav", fallback_reason="too tall")

    with Pool(threads=1) as pool:
        pool.load(path, indices=[3, 4, 5], backend="fake", do=lose)
    assert [exported.value("telecine_frames_total", kind=kind) for kind in ("lost", "kept")] == [1, 2]
    assert exported.value("telecine_fallbacks_total", reason="too tall") == 1
    assert exported.value("telecine_stage_seconds_sum", stage="copy") == 0.5
    assert exported.value("telecine_requests_total", outcome="ok", backend="fake") == 1


@pytest.mark.usefixtures("fakes")
def test_abandoned_threads_are_counted_and_shown_while_they_are_stuck(exported, path):
    gate = Gate()
    with Pool(threads=1) as pool:
        with pytest.raises(DeadlineError):
            pool.load(path, backend="fake", do=gate.block, timeout=0.05)
        assert exported.value("telecine_threads_abandoned_total") == exported.value("telecine_threads_stuck") == 1
        gate.open()
        until(lambda: exported.value("telecine_threads_stuck") == 0)


def test_gauges_that_raise_do_not_hide_other_metrics(exported):
    class Raising:
        def gauges(self):
            raise RuntimeError("the driver is gone")

    owners = [Raising(), Sessions()]
    for owner in owners:
        exported.metrics.add_gauges(owner)
    exported.metrics.count("telecine_refusals")
    assert exported.value("telecine_sessions") == 2
    assert exported.value("telecine_refusals_total") == 1


@pytest.mark.usefixtures("fakes")
def test_gauges_of_a_backend_are_exported_after_it_has_decoded(exported, path):
    with Pool(threads=1) as pool:
        for _ in range(3):
            pool.load(path, num_frames=1, backend="costly")
        assert [exported.value(name) for name in ("telecine_sessions", "telecine_vram_bytes")] == [3, 4096]


def test_nothing_is_counted_before_metrics_are_enabled(path):
    metrics = Metrics()
    metrics.record_request("ok", "pyav", 0.1, 0.0, frames_with())
    metrics.count("telecine_refusals")
    exported = Exported(metrics)
    assert exported.value("telecine_refusals_total") == exported.value("telecine_request_seconds_count") == 0


def test_registering_twice_exports_once(exported):
    exported.metrics.register(exported.registry)
    text = prometheus_client.generate_latest(exported.registry).decode()
    assert text.count("# TYPE telecine_requests_total counter") == 1


def test_metrics_count_from_zero_after_a_reset(exported):
    """A forked child resets them, while the registry still has the metrics."""
    exported.metrics.count("telecine_refusals", 5)
    exported.metrics.reset()
    exported.metrics.count("telecine_refusals")
    assert exported.value("telecine_refusals_total") == 1


def run_python(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_prometheus_is_imported_and_its_registry_used_only_after_enable_prometheus(path):
    done = run_python(f"""
import sys
from telecine import Pool
with Pool(threads=1) as pool:
    pool.load({str(path)!r}, num_frames=1)
    assert "prometheus_client" not in sys.modules and "opentelemetry" not in sys.modules
    from telecine.metrics import enable_prometheus
    enable_prometheus()
    enable_prometheus()
    pool.load({str(path)!r}, num_frames=1)
import prometheus_client
print(prometheus_client.REGISTRY.get_sample_value("telecine_request_seconds_count"))
""")
    assert (done.stdout.strip(), done.stderr) == ("1.0", "")


def test_enable_prometheus_without_prometheus_client_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'telecine\[metrics\]'"):
        enable_prometheus()


def test_a_pool_works_without_prometheus_and_opentelemetry(path):
    done = run_python(f"""
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = sys.modules["opentelemetry.trace"] = None
from telecine import Pool
with Pool(threads=1) as pool:
    print(len(pool.load({str(path)!r}, num_frames=1)))
""")
    assert (done.stdout.strip(), done.stderr) == ("1", "")


class FakeSpan:
    def __init__(self, name, attributes):
        self.name, self.attributes, self.status, self.ended = name, attributes, None, 0

    def set_attribute(self, name, value):
        self.attributes[name] = value

    def set_status(self, status):
        self.status = status

    def end(self):
        self.ended += 1


@pytest.fixture
def spans(monkeypatch):
    """A fake of opentelemetry.trace that collects the spans."""
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
    assert (good.name, good.status, good.ended) == ("telecine.request", None, 1)
    assert good.attributes["telecine.outcome"] == "ok"
    assert good.attributes["telecine.decode_seconds"] > 0
    assert bad.status == ("error", "SourceError") and bad.ended == 1


def test_counting_costs_less_than_a_hundredth_of_a_small_decode(exported, path):
    frames = load(path, num_frames=8)
    started = time.process_time()
    for _ in range(3):
        load(path, num_frames=8)
    decode = (time.process_time() - started) / 3
    started = time.process_time()
    for _ in range(500):
        span = RequestSpan("pyav")
        exported.metrics.record_request("ok", "pyav", 0.1, 0.01, frames)
        exported.metrics.count("telecine_index_cache", 1, "hit")
        span.end("ok", 0.01, frames)
    assert (time.process_time() - started) / 500 < 0.01 * decode
