"""The capture of one stream: reconnects, decodes the wanted frames, and gives segments to its consumers."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from telecine.errors import (
    BackendUnavailable,
    LimitError,
    OptionsError,
    OverloadedError,
    SourceError,
    TelecineError,
    UnsupportedVideoError,
)
from telecine.live.assembly import Assembler, SegmentFacts
from telecine.live.clock import BurstFilter, StreamClock
from telecine.live.connection import ConnectionOptions
from telecine.live.decoder import LiveDecoder
from telecine.live.reader import Arrived, Overflow, Reader
from telecine.live.segments import Segment, State, Stats
from telecine.live.slices import Received, SlicePlanner
from telecine.live.uris import LiveUri
from telecine.pixels.geometry import Size

__all__ = ["Capture", "LiveOptions", "Slot"]

_log = logging.getLogger("telecine.live")

_TICK_SECONDS = 0.1
_IDLE_SECONDS = 2.0
"""Seconds without a packet after which a connection counts as idle."""
_ABANDON_SECONDS = 0.5
"""Seconds beyond the timeout after which a reader that has not ended is abandoned."""
_MIN_BACKOFF, _MAX_BACKOFF = 0.5, 30.0
"""Seconds between attempts to connect: doubled with each failure, and varied by a random factor from 0.5 to 1."""
_PERMANENT = (OptionsError, UnsupportedVideoError, LimitError, BackendUnavailable, OverloadedError)
"""Errors that another attempt would only repeat."""
_numbers = itertools.count()


@dataclass(frozen=True)
class LiveOptions:
    """The checked options of a capture; captures with equal ones are shared."""

    every: float
    frames: int
    overlap: float
    size: Size
    device: str
    key_frames: bool
    connection: ConnectionOptions


class Slot:
    """The newest segment of one consumer that has not been taken. Thread-safe."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._segment: Segment | None = None
        self.is_over = False
        self.error: TelecineError | None = None
        self.on_change: Callable[[], object] | None = None
        """Called when there is a segment, or the end; for consumers that do not wait in a thread."""

    def offer(self, segment: Segment) -> None:
        """Replace the segment, and add what was missed with the one before."""
        with self.condition:
            if (missed := self._segment) is not None:
                reasons = ", ".join(
                    dict.fromkeys(
                        filter(None, f"{missed.discontinuity or ''}, {segment.discontinuity or ''}".split(", "))
                    )
                )
                segment = replace(
                    segment,
                    gap=missed.gap or segment.gap,
                    discontinuity=reasons or None,
                    dropped_packets=missed.dropped_packets + segment.dropped_packets,
                    dropped_frames=missed.dropped_frames + segment.dropped_frames,
                    dropped_segments=missed.dropped_segments + 1,
                )
            self._segment = segment
            self._changed()

    def end(self, error: TelecineError | None) -> None:
        """End the stream; a segment that was not taken can still be."""
        with self.condition:
            self.is_over, self.error = True, error
            self._changed()

    def _changed(self) -> None:
        self.condition.notify_all()
        if self.on_change is not None:
            with suppress(RuntimeError):  # the event loop of the consumer is closed
                self.on_change()

    def take(self) -> Segment | None:
        """Return and remove the segment, with its age; None if there is none."""
        with self.condition:
            segment, self._segment = self._segment, None
        return None if segment is None else replace(segment, age=max(0.0, time.time() - segment.wall_end))


class Capture:
    """Captures one stream in a thread of its own, for consumers of which ``slot`` is the first. Thread-safe."""

    def __init__(self, uri: LiveUri, options: LiveOptions, slot: Slot) -> None:
        self.uri, self._options = uri, options
        self.state: State = "connecting"
        self.stats = Stats()
        self.last_error: TelecineError | None = None
        """Reason of the last failure."""
        self._lock = threading.RLock()
        self._slots = {slot}
        self._stopped = threading.Event()
        self._reader: Reader | None = None
        self._planner = SlicePlanner(options.every, options.frames, options.overlap)
        limits = options.connection.limits
        self._assembler = Assembler(options.size, options.device, limits, options.every + options.overlap)
        self._clock, self._bursts = StreamClock(), BurstFilter()
        self._facts = SegmentFacts()
        self._decoder: LiveDecoder | None = None
        self._pending: dict[int, Received] = {}
        self._ordinal, self._last_wanted = 0, -1
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"telecine-live-{next(_numbers)}", daemon=True)
        self._thread.start()

    def join(self, slot: Slot) -> bool:
        """Add a consumer. Returns False if the capture is over."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._slots.add(slot)
            return True

    def leave(self, slot: Slot) -> bool:
        """Remove a consumer. Returns True if it was the last one; the capture is closed then."""
        with self._lock:
            self._slots.discard(slot)
            if self._slots:
                return False
            self._stopped.set()
            reader = self._reader
        if reader is not None:
            reader.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        return True

    def _run(self) -> None:
        error: TelecineError | None = None
        try:
            while not self._stopped.is_set():
                error = self._connect_once()
                if self._stopped.is_set() or error is None or self._is_permanent(error):
                    break
                self.last_error = error
                _log.warning("%s", error)
                self._wait_for_retry()
        except TelecineError as failure:
            error = failure
        except Exception as failure:
            _log.exception("%s: the capture failed", self.uri.name)
            error = SourceError(f"{self.uri.name}: the capture failed ({type(failure).__name__})")
        finally:
            if self._reader is not None:
                self._reader.cancel()
            self._finish(error)

    def _is_permanent(self, error: TelecineError) -> bool:
        return isinstance(error, _PERMANENT) or (self._reader is not None and self._reader.connection.is_refused)

    def _finish(self, error: TelecineError | None) -> None:
        with self._lock:
            is_closed = self._stopped.is_set()
            self._stopped.set()
            self.state = "closed" if is_closed else "ended" if error is None else "failed"
            self.last_error = self.last_error if is_closed else error
            slots = list(self._slots)
        if self.state == "ended":
            self._deliver(float("inf"))
        for slot in slots:
            slot.end(None if is_closed else error)

    def _wait_for_retry(self) -> None:
        self._lose_connection()
        delay = min(_MAX_BACKOFF, _MIN_BACKOFF * 2 ** min(self._failures, 16)) * random.uniform(0.5, 1.0)
        self._failures += 1
        self.state = "waiting"
        end = time.monotonic() + delay
        while (left := end - time.monotonic()) > 0 and not self._stopped.wait(min(left, _TICK_SECONDS)):
            self._deliver(time.monotonic())

    def _lose_connection(self) -> None:
        """Forget all that belongs to the last connection."""
        if self._decoder is None:
            return
        self._decoder = None
        self._lose_pending()
        self._clock.reconnect()
        self._bursts = BurstFilter()
        self._facts.gap = True
        self._facts.add_reason("reconnected")

    def _connect_once(self) -> TelecineError | None:
        """Read one connection to its end. Returns the reason; None if a recording has ended, or on closing."""
        reader = Reader(self.uri, self._options.connection)
        with self._lock:
            self._reader = reader
        self.state = "connecting"
        started = last_packet = time.monotonic()
        while not self._stopped.is_set():
            item, now = reader.get(_TICK_SECONDS), time.monotonic()
            if isinstance(item, Arrived):
                last_packet = now
                self.state = "live"
                self._take(reader, item)
            elif isinstance(item, Overflow):
                self._drop(item.dropped)
            elif reader.has_ended:
                return reader.error if isinstance(reader.error, TelecineError) else None
            elif reader.connection.refusal is not None:
                reader.cancel()
                return reader.connection.refusal
            else:
                silent_since = reader.connection.last_life if reader.is_open else started
                if now - silent_since > self._options.connection.timeout + _ABANDON_SECONDS:
                    reader.cancel()
                    what = "no sign of life" if reader.is_open else "no answer"
                    return SourceError(f"{self.uri.name}: {what} for {self._options.connection.timeout:g} s")
                if reader.is_open and now - last_packet > _IDLE_SECONDS:
                    self.state = "idle"
            self._deliver(now)
        return None

    def _drop(self, count: int) -> None:
        self._facts.dropped_packets += count
        self._count(dropped_packets=count)
        self._lose_synchronization("overload")

    def _lose_synchronization(self, reason: str) -> None:
        self._facts.gap = True
        self._facts.add_reason(reason)
        if self._decoder is not None:
            self._decoder.lose_synchronization()
        self._lose_pending()

    def _lose_pending(self) -> None:
        """Give up the wanted frames that are not decoded yet."""
        self._facts.dropped_frames += len(self._pending)
        self._count(dropped_frames=len(self._pending))
        for ordinal, received in self._pending.items():
            self._planner.add_picture(ordinal, received.time, None)
        self._pending.clear()

    def _count(self, **added: int) -> None:
        with self._lock:
            self.stats = replace(self.stats, **{name: getattr(self.stats, name) + n for name, n in added.items()})

    def _take(self, reader: Reader, item: Arrived) -> None:
        if self._decoder is None:
            self._begin_connection(reader)
        decoder, packet, arrival = self._decoder, item.packet, item.arrival
        assert decoder is not None
        base: Any = packet.time_base
        pts, dts = (None if ticks is None else float(ticks * base) for ticks in (packet.pts, packet.dts))
        seconds, reason = self._clock.stream_time(dts if pts is None else pts, dts, arrival)
        if reason is not None:
            self._facts.add_reason(reason)
        received = Received(self._ordinal, round(seconds * 1e6), arrival, item.wall, item.sender_wall)
        self._ordinal += 1
        self._count(packets=1, bytes_received=packet.size)
        taken = decoder.hold(received.ordinal, packet, received.time, arrival)
        if taken.is_shown and received.time >= 0:
            self._assembler.add_received(received)
        if taken.is_usable or self._planner.open:
            self._planner.begin_slices(arrival)
        is_candidate = taken.is_usable and (taken.is_access_point or not self._options.key_frames)
        is_late = self._bursts.is_late(seconds, arrival)
        is_wanted = is_candidate and not is_late and received.time > self._last_wanted and self._planner.take(received)
        if is_wanted:
            self._last_wanted = received.time
            self._pending[received.ordinal] = received
        is_needed = (
            not self._options.key_frames and not is_late and decoder.is_needed_before(self._planner.next_target())
        )
        if self._pending or is_needed:
            self._decode(decoder, received.ordinal if is_wanted else None)
        if decoder.is_damaged:
            decoder.is_damaged = False
            self._lose_synchronization("damage")

    def _begin_connection(self, reader: Reader) -> None:
        stream = reader.connection.stream
        limits = self._options.connection.limits
        context: Any = stream.codec_context
        if context.width * context.height > limits.max_pixels:
            raise LimitError(
                f"{self.uri.name}: {context.width}x{context.height} pixels; limits.max_pixels is {limits.max_pixels}"
            )
        self._decoder = LiveDecoder(stream, limits.max_pixels)
        self._stream, self._container = stream, reader.connection.container.format.name
        if self._ordinal:
            self._facts.reconnects += 1
            self._count(reconnects=1)

    def _decode(self, decoder: LiveDecoder, wanted: int | None) -> None:
        fed = decoder.packets_fed
        for ordinal, picture in decoder.decode(wanted):
            received = self._pending.pop(ordinal, None)
            if received is None:
                continue
            if is_reshaped := self._assembler.is_reshaped_by(picture):
                self._deliver(float("inf"))
                self._planner.restart()
            if self._assembler.set_stored_size(picture):
                self._facts.add_reason("size")
            self._assembler.check_memory(self._options.frames * max(1, len(self._planner.open)))
            if not is_reshaped:
                self._planner.add_picture(ordinal, received.time, self._assembler.convert(picture))
            self._failures = 0  # the stream works: the next outage begins with a short wait again
        self._facts.packets_fed += decoder.packets_fed - fed
        self._count(packets_fed=decoder.packets_fed - fed)

    def _deliver(self, now: float) -> None:
        """Give the complete slices to the consumers, those without a frame left out."""
        while (slice_ := self._planner.pop_complete(now)) is not None:
            if not slice_.pictures:
                continue
            facts, self._facts = self._facts, SegmentFacts(reconnects=self._facts.reconnects)
            segment = self._assembler.make(slice_, facts, self._stream, self._container)
            self._count(segments=1, frames=len(segment.frames))
            with self._lock:
                self.stats = replace(self.stats, fps=self._assembler.fps)
                slots = list(self._slots)
            for slot in slots:
                slot.offer(segment)
