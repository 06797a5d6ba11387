"""Metrics of all pools of this process, for prometheus-client, and OpenTelemetry spans.

Nothing is counted before :func:`enable_prometheus` is called. docs/pool.md lists the metrics.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

from telecine.errors import BackendUnavailable
from telecine.frames import Frames

__all__ = ["METRICS", "GaugeOwner", "Metrics", "RequestSpan", "enable_prometheus"]

_log = logging.getLogger("telecine.metrics")

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms, seconds."""
_MAX_REASONS = 32
"""Number of fallback reasons that are told apart. They may contain sizes, and a label must have few values."""
_MAX_REASON_LENGTH = 100

_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "telecine_requests": ("Requests that ended, by outcome: ok, or the class of the error.", ("outcome", "backend")),
    "telecine_packets": ("Packets of the videos, fed to a decoder or skipped.", ("kind",)),
    "telecine_frames": ("Requested frames, kept or lost.", ("kind",)),
    "telecine_fallbacks": ("Requests decoded by another backend than the first choice.", ("reason",)),
    "telecine_index_cache": ("Lookups in the packet index cache.", ("result",)),
    "telecine_timeouts": ("Requests whose timeout passed.", ()),
    "telecine_cancellations": ("Requests that were cancelled.", ()),
    "telecine_refusals": ("Requests refused because the queue was full.", ()),
    "telecine_threads_abandoned": ("Threads given up because a library did not return.", ()),
}
_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "telecine_request_seconds": ("Time from submission to the end of a request.", ()),
    "telecine_queue_seconds": ("Time that a request waited for a thread, cores or memory.", ()),
    "telecine_stage_seconds": ("Wall time of each stage, without waiting.", ("stage",)),
}
_COUNTED_ERRORS = {"DeadlineError": "telecine_timeouts", "Cancelled": "telecine_cancellations"}
_GAUGES: dict[str, str] = {
    "telecine_threads_stuck": "Abandoned threads that have not come back.",
    "telecine_requests_queued": "Requests that have not started.",
    "telecine_requests_running": "Requests that have started.",
    "telecine_memory_leased_bytes": "Host memory leased to requests.",
    "telecine_vram_leased_bytes": "GPU memory leased to requests.",
    "telecine_index_cache_bytes": "Memory of the packet index cache.",
    "telecine_sessions": "Hardware decoder sessions.",
    "telecine_vram_bytes": "GPU memory of decoder sessions.",
}


_REPORTED = ("backend", "packets_fed", "packets_skipped", "index_cached")
"""Fields of a report that become attributes of a span."""


class GaugeOwner(Protocol):
    """A pool or a backend that reports current values."""

    def gauges(self) -> Mapping[str, float]:
        """Return current values by metric name."""


class Metrics:
    """Metrics of this process. Thread-safe. A collector of prometheus-client once it is enabled."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._registries: weakref.WeakSet[Any] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Start from zero: in a forked child the counts are those of its parent. Gauges are forgotten too."""
        self._lock = threading.Lock()
        self._owners: weakref.WeakSet[GaugeOwner] = weakref.WeakSet()
        self._reasons: set[str] = set()
        if self._metrics:
            self._metrics = _make_metrics()

    def register(self, registry: Any) -> None:
        """Start to count if that was not done before, and add the metrics to a registry of prometheus-client."""
        with self._lock:
            self._metrics = self._metrics or _make_metrics()
            if registry in self._registries:
                return
            self._registries.add(registry)
        registry.register(self)

    def count(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter, or add a value to a histogram."""
        if (metric := self._metrics.get(name)) is not None:
            metric = metric.labels(*labels) if labels else metric
            (metric.inc if name in _COUNTERS else metric.observe)(amount)

    def add_gauges(self, owner: GaugeOwner) -> None:
        """Include the gauges of an object as long as it lives. Values of the same name are added up."""
        with self._lock:
            self._owners.add(owner)

    def record_request(self, outcome: str, backend: str, seconds: float, waited: float, frames: Frames | None) -> None:
        """Count a request that ended after ``seconds``, of which it ``waited`` some for a thread, cores or memory.

        ``outcome`` is "ok" or the name of the error's class. ``backend`` is the name of an installed one, "auto" or
        "unknown": other names would make endless labels.
        """
        if not self._metrics:
            return
        self.count("telecine_requests", 1, outcome, backend)
        self.count("telecine_request_seconds", seconds)
        self.count("telecine_queue_seconds", waited)
        if outcome in _COUNTED_ERRORS:
            self.count(_COUNTED_ERRORS[outcome])
        if frames is None:
            return
        report = frames.report
        for stage, value in report.seconds.items():
            if stage != "queue":
                self.count("telecine_stage_seconds", value, "fetch" if stage == "source" else stage)
        self.count("telecine_packets", report.packets_fed, "fed")
        self.count("telecine_packets", report.packets_skipped, "skipped")
        self.count("telecine_frames", len(frames), "kept")
        self.count("telecine_frames", len(report.lost), "lost")
        if report.fallback_reason is not None:
            self.count("telecine_fallbacks", 1, self._bounded_reason(report.fallback_reason))

    def read_gauges(self) -> dict[str, float]:
        """Return the sum of every gauge over the pools and backends in use."""
        with self._lock:
            owners = list(self._owners)
        totals = dict.fromkeys(_GAUGES, 0.0)
        for owner in owners:
            try:
                values = {name: float(value) for name, value in owner.gauges().items()}
            except Exception:  # of a backend; the other numbers are still valid
                _log.exception("gauges of %s cannot be read", type(owner).__name__)
                continue
            for name, value in values.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def describe(self) -> list[Any]:
        """Return nothing, so that registering collects no values. Called by prometheus-client."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metrics. Called by prometheus-client when it is scraped."""
        from prometheus_client.core import GaugeMetricFamily

        for metric in self._metrics.values():
            yield from metric.collect()
        gauges = self.read_gauges()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=gauges[name])

    def _bounded_reason(self, reason: str) -> str:
        reason = reason[:_MAX_REASON_LENGTH]
        with self._lock:
            if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                return "other"
            self._reasons.add(reason)
        return reason


def _make_metrics() -> dict[str, Any]:
    from prometheus_client import Counter, Histogram

    metrics: dict[str, Any] = {name: Counter(name, *rest, registry=None) for name, rest in _COUNTERS.items()}
    for name, rest in _HISTOGRAMS.items():
        metrics[name] = Histogram(name, *rest, registry=None, buckets=_BUCKETS)
    return metrics


METRICS = Metrics()
"""Metrics of this process. All pools add to them."""


def enable_prometheus(registry: Any = None) -> None:
    """Count the requests of all pools of this process, and add the metrics to a registry of prometheus-client.

    Call it once, before the first request. A second call for the same registry does nothing.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; the default registry if None.

    Raises:
        BackendUnavailable: prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise BackendUnavailable(
            "prometheus-client is not installed; install it with pip install 'telecine[metrics]'"
        ) from error
    METRICS.register(REGISTRY if registry is None else registry)


class RequestSpan:
    """OpenTelemetry span of one request. Does nothing if the process has not imported OpenTelemetry.

    It is a child of the span that is current when the request is submitted.
    """

    def __init__(self, backend: str) -> None:
        self._span: Any = None
        if (trace := sys.modules.get("opentelemetry.trace")) is not None:
            tracer = trace.get_tracer("telecine")
            self._span = tracer.start_span("telecine.request", attributes={"telecine.backend": backend})

    def end(self, outcome: str, waited: float, frames: Frames | None) -> None:
        """Close the span. Arguments as for :meth:`Metrics.record_request`."""
        if self._span is None:
            return
        attributes: dict[str, Any] = {"outcome": outcome, "queue_seconds": waited}
        if frames is None:
            trace = import_module("opentelemetry.trace")
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, outcome))
        else:
            report = frames.report
            attributes |= {f"{stage}_seconds": value for stage, value in report.seconds.items()}
            attributes |= {name: getattr(report, name) for name in _REPORTED}
            attributes["frames_lost"] = len(report.lost)
        for name, value in attributes.items():
            self._span.set_attribute(f"telecine.{name}", value)
        self._span.end()
