"""Metrics of the streams of the service, for prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telecine.server.streams import Streams

__all__ = ["StreamCollector"]

_COUNTERS = {
    "segments": "Segments of a stream.",
    "captions": "Captions of a stream.",
    "caption_errors": "Segments that the model gave no complete caption for.",
    "dropped_segments": "Segments that were dropped because the model was slow.",
}


class StreamCollector:
    """Collector of prometheus-client. Streams are told apart by their id: URIs may contain secrets."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def describe(self) -> list[Any]:
        """Return nothing, so that registering collects no values. Called by prometheus-client."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metrics. Called by prometheus-client when it is scraped."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        streams = [(stream, stream.describe()) for stream in self._streams.all()]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"telecine_stream_{name}", text, labels=["stream"])
            for stream, facts in streams:
                counter.add_metric([stream.stored.id], facts[name])
            yield counter
        reconnects = CounterMetricFamily("telecine_stream_reconnects", "Connections opened again.", labels=["stream"])
        state = GaugeMetricFamily("telecine_stream_state", "1 for the state of a stream.", labels=["stream", "state"])
        age = GaugeMetricFamily("telecine_stream_age_seconds", "Age of the last segment.", labels=["stream"])
        for stream, facts in streams:
            reconnects.add_metric([stream.stored.id], facts["reconnects"])
            state.add_metric([stream.stored.id, facts["state"]], 1)
            if facts["age"] is not None:
                age.add_metric([stream.stored.id], facts["age"])
        yield from (reconnects, state, age)
