"""Everything that is counted, in one place: requests, times, packets, frames, losses, fallbacks, memory.

The numbers are kept here, whether or not anybody exports them. Where prometheus-client is installed, the first request
of a pool adds a collector to its default registry that reads them when it is scraped; so a request pays for a few
additions, and a forked child never meets a lock of another library. Where the process uses OpenTelemetry, every request
of a pool is a span.
docs/pool.md lists the names.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from telecine.frames import Frames

__all__ = ["METRICS", "Family", "Metrics", "Sample", "Tracing"]

_log = logging.getLogger("telecine.metrics")

_Read: TypeAlias = "Callable[[], Mapping[str, float]]"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_MOST_REASONS = 32
"""Different fallback reasons that are told apart: they may hold sizes, and a label must not have endless values."""
_LONGEST_REASON = 100
_STAGES = {"source": "fetch"}

_FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "telecine_requests": (
        "counter",
        "Requests that ended, by outcome: ok, or the error's class.",
        ("outcome", "backend"),
    ),
    "telecine_request_seconds": ("histogram", "From submission to the end.", ()),
    "telecine_queue_seconds": ("histogram", "Waiting for a thread, cores or memory, in all.", ()),
    "telecine_stage_seconds": ("histogram", "Wall time of each stage, without waiting.", ("stage",)),
    "telecine_packets": ("counter", "Packets of the videos, fed to a decoder or skipped.", ("kind",)),
    "telecine_frames": ("counter", "Wanted frames, kept or lost.", ("kind",)),
    "telecine_fallbacks": ("counter", "Requests that another backend than the first choice did.", ("reason",)),
    "telecine_index_cache": ("counter", "Look-ups of the packet index cache.", ("result",)),
    "telecine_timeouts": ("counter", "Requests whose timeout passed.", ()),
    "telecine_cancellations": ("counter", "Requests that were withdrawn.", ()),
    "telecine_refusals": ("counter", "Requests that a full queue refused.", ()),
    "telecine_threads_written_off": ("counter", "Threads given up because a library did not return.", ()),
    "telecine_threads_stuck": ("gauge", "Threads given up that have not come back.", ()),
    "telecine_requests_queued": ("gauge", "Requests that have not begun.", ()),
    "telecine_requests_running": ("gauge", "Requests that have begun.", ()),
    "telecine_memory_leased_bytes": ("gauge", "Host memory leased to requests.", ()),
    "telecine_vram_leased_bytes": ("gauge", "GPU memory leased to requests.", ()),
    "telecine_index_cache_bytes": ("gauge", "Taken by the packet index cache.", ()),
    "telecine_sessions": ("gauge", "Hardware decoder sessions.", ()),
    "telecine_vram_bytes": ("gauge", "GPU memory held by decoder sessions.", ()),
}
"""Every name: its kind, what it is, and its labels. Counters are exported with ``_total`` behind the name."""


@dataclass(frozen=True)
class Sample:
    """One value of a family. For a histogram: counts per bucket, and the sum."""

    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[str, float], ...] = ()
    """(upper bound, requests up to it), the last one for all."""


@dataclass(frozen=True)
class Family:
    """All values of one name."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    samples: tuple[Sample, ...]


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0


class Metrics:
    """Counts. Thread-safe."""

    def __init__(self) -> None:
        self._gauges: list[Callable[[], _Read | None]] = []
        self._exported = False
        self.reset()

    def reset(self) -> None:
        """Begin at 0: in a forked child, what was counted is its parent's. Gauges are forgotten as well."""
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, tuple[str, ...]], float] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], _Histogram] = {}
        self._reasons: set[str] = set()
        self._gauges.clear()

    def count(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._count(name, amount, labels)

    def watch(self, read: _Read) -> None:
        """Ask ``read`` for gauges whenever the numbers are read; what several say of one name is added up.

        Args:
            read: gives values by name. A method is asked as long as its object lives, and does not keep it alive. The
                same one is asked once, however often it is given.
        """
        known = _weakly(read)
        with self._lock:
            # here and not when the object goes: that may be in the middle of anything, with this lock held
            self._gauges = [other for other in self._gauges if other() is not None]
            if all(other() != read for other in self._gauges):
                self._gauges.append(known)

    def ended(self, outcome: str, backend: str, seconds: float, waited: float, frames: Frames | None) -> None:
        """Count one request.

        Args:
            outcome: "ok", or the name of the error's class.
            backend: that decoded, or should have: one that there is, or "unknown". Every other name would be one more
                label for ever.
            seconds: from submission to the end.
            waited: of these, for a thread, cores or memory.
            frames: what came out; None where it failed.
        """
        with self._lock:
            self._count("telecine_requests", 1, (outcome, backend))
            self._observe("telecine_request_seconds", seconds, ())
            self._observe("telecine_queue_seconds", waited, ())
            if outcome == "DeadlineError":
                self._count("telecine_timeouts", 1, ())
            elif outcome == "Cancelled":
                self._count("telecine_cancellations", 1, ())
            if frames is None:
                return
            report = frames.report
            for stage, value in report.seconds.items():
                if stage != "queue":
                    self._observe("telecine_stage_seconds", value, (_STAGES.get(stage, stage),))
            self._count("telecine_packets", report.packets_fed, ("fed",))
            self._count("telecine_packets", report.packets_skipped, ("skipped",))
            self._count("telecine_frames", len(frames), ("kept",))
            self._count("telecine_frames", len(report.lost), ("lost",))
            if report.fallback_reason is not None:
                self._count("telecine_fallbacks", 1, (self._reason(report.fallback_reason),))

    def collect(self) -> Iterator[Family]:
        """Every family, with its values of this moment."""
        with self._lock:
            watched = list(self._gauges)
        gauges: dict[str, float] = {}
        for read in filter(None, (known() for known in watched)):
            try:
                values = {name: float(value) for name, value in read().items()}
            except Exception:  # of a backend: the other numbers are as good as ever
                _log.exception("gauges of a backend cannot be read")
                continue
            for name, value in values.items():
                gauges[name] = gauges.get(name, 0.0) + value
        with self._lock:
            counters = dict(self._counters)
            histograms = {key: (list(h.counts), h.sum) for key, h in self._histograms.items()}
        for name, (kind, text, labels) in _FAMILIES.items():
            if kind == "gauge":
                samples = [Sample((), gauges.get(name, 0.0))]
            elif kind == "counter":
                samples = [Sample(values, value) for (own, values), value in counters.items() if own == name]
            else:
                samples = [
                    Sample(values, total, _cumulated(counts))
                    for (own, values), (counts, total) in histograms.items()
                    if own == name
                ]
            yield Family(name, kind, text, labels, tuple(samples))

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges by name and labels: ``{"telecine_frames{lost}": 3.0}``; of histograms the sums."""
        return {
            family.name + ("{" + ",".join(sample.labels) + "}" if sample.labels else ""): sample.value
            for family in self.collect()
            for sample in family.samples
        }

    def export(self) -> None:
        """Add a collector to the default registry of prometheus-client, once, where that is installed."""
        with self._lock:
            if self._exported:
                return
            self._exported = True
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            return
        REGISTRY.register(_Collector(self))

    def _count(self, name: str, amount: float, labels: tuple[str, ...]) -> None:
        self._counters[name, labels] = self._counters.get((name, labels), 0.0) + amount

    def _observe(self, name: str, value: float, labels: tuple[str, ...]) -> None:
        histogram = self._histograms.get((name, labels))
        if histogram is None:
            histogram = self._histograms[name, labels] = _Histogram()
        histogram.counts[bisect.bisect_left(_SECONDS, value)] += 1
        histogram.sum += value

    def _reason(self, reason: str) -> str:
        reason = reason[:_LONGEST_REASON]
        if reason not in self._reasons and len(self._reasons) >= _MOST_REASONS:
            return "other"
        self._reasons.add(reason)
        return reason


def _cumulated(counts: list[int]) -> tuple[tuple[str, float], ...]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, _SECONDS), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return tuple(buckets)


def _weakly(read: _Read) -> Callable[[], _Read | None]:
    if isinstance(read, types.MethodType):
        with contextlib.suppress(TypeError):  # an object with __slots__ may allow no weak references
            return weakref.WeakMethod(read)
    return lambda: read


class _Collector:
    """What prometheus-client asks at every scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Any]:
        return []  # or registering it would collect once

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        for family in self._metrics.collect():
            exported = kinds[family.kind](family.name, family.text, labels=family.labels)
            for sample in family.samples:
                if family.kind == "histogram":
                    exported.add_metric(sample.labels, list(sample.buckets), sample.value)
                else:
                    exported.add_metric(sample.labels, sample.value)
            yield exported


def _tracer() -> Any:
    """OpenTelemetry's tracer for this package, or None where nobody in this process has imported OpenTelemetry.

    Spans would go nowhere then; and importing it takes long for the event loop that asks for frames.
    """
    trace = sys.modules.get("opentelemetry.trace")
    return None if trace is None else _tracer_of(trace)


@functools.cache
def _tracer_of(trace: Any) -> Any:
    return trace.get_tracer("telecine")


class Tracing:
    """The OpenTelemetry span of one request, or nothing where that is not in use.

    It is a child of what was the current span when the request was submitted, and ends with it.
    """

    def __init__(self, attributes: Mapping[str, str]) -> None:
        tracer = _tracer()
        self._span: Any = None
        if tracer is not None:
            self._span = tracer.start_span("telecine.request", attributes=dict(attributes))

    def begun(self) -> None:
        """Note that a thread works on the request from now on."""
        if self._span is not None:
            self._span.add_event("begun")

    def ended(self, outcome: str, waited: float, frames: Frames | None, error: BaseException | None) -> None:
        """Close the span.

        Args:
            outcome: "ok", or the name of the error's class.
            waited: seconds, for a thread, cores or memory.
            frames: what came out; None where it failed.
            error: what it failed with.
        """
        if self._span is None:
            return
        attributes: dict[str, Any] = {"telecine.outcome": outcome, "telecine.queue_seconds": waited}
        if frames is not None:
            report = frames.report
            attributes["telecine.backend"] = report.backend
            attributes |= {f"telecine.{stage}_seconds": value for stage, value in report.seconds.items()}
            attributes["telecine.packets_fed"] = report.packets_fed
            attributes["telecine.packets_skipped"] = report.packets_skipped
            attributes["telecine.frames_lost"] = len(report.lost)
            attributes["telecine.index_cached"] = report.index_cached
        for name, value in attributes.items():
            self._span.set_attribute(name, value)
        if error is not None:
            trace = import_module("opentelemetry.trace")
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        self._span.end()


METRICS = Metrics()
"""Those of this process. All pools add to them."""
