"""Stream time of packets, from timestamps and arrival times, neither of which can be trusted alone."""

from __future__ import annotations

__all__ = ["BurstFilter", "StreamClock"]

_MAX_BACKWARD, _MAX_FORWARD = 1.0, 5.0
"""Seconds by which decoding times may go back (reordered pictures), or forward beyond the time that has passed."""
_MAX_AHEAD = 15.0
"""Seconds that timestamps may run ahead of arrival within a window: servers begin with a burst of buffered pictures."""
_WINDOW_SECONDS, _MIN_RATE, _MAX_SILENCE = 60.0, 0.75, 5.0
"""A clock is too slow below this rate over a window without long silence, after which a burst may follow."""
_MAX_LAG, _CATCH_UP, _MAX_LATE_SECONDS = 0.5, 0.2, 1.0
"""A picture that lags by more than the first is old, as long as the lag falls by the second within the third."""


class StreamClock:
    """Maps timestamps to stream time, which continues across jumps and connections. Not thread-safe."""

    def __init__(self) -> None:
        self._newest = 0.0
        self._arrival: float | None = None
        self._decoding_time = self._window_arrival = self._window_time = self._longest_silence = 0.0
        self.reconnect()

    def reconnect(self) -> None:
        """Forget the timestamps: those of a new connection have another origin."""
        self._offset: float | None = None
        self._uses_arrival = False

    def stream_time(self, pts: float | None, dts: float | None, arrival: float) -> tuple[float, str | None]:
        """Return the stream time of a packet, and the reason of a discontinuity or None.

        Args:
            pts: presentation time, seconds, if there is one.
            dts: decoding time, seconds, if there is one.
            arrival: monotonic clock, seconds.
        """
        elapsed = 0.0 if self._arrival is None else arrival - self._arrival
        continued = self._newest + elapsed
        self._arrival = arrival
        if pts is None or self._uses_arrival:
            return self._advance(continued), None
        reason, decoding_time = None, pts if dts is None else dts
        if self._offset is not None:
            step = decoding_time - self._decoding_time
            if step < -_MAX_BACKWARD or step > elapsed + _MAX_FORWARD:
                self._offset, reason = None, "timestamps"
        if self._offset is None:
            self._offset = continued - pts
            self._begin_window(arrival, continued)
        self._decoding_time = decoding_time
        time = pts + self._offset
        self._longest_silence = max(self._longest_silence, elapsed)
        passed, streamed = arrival - self._window_arrival, time - self._window_time
        if passed >= _WINDOW_SECONDS:
            is_slow = streamed < _MIN_RATE * passed and self._longest_silence < _MAX_SILENCE
            self._begin_window(arrival, time)
        else:
            is_slow = False
        if is_slow or streamed - passed > _MAX_AHEAD:
            self._uses_arrival, reason, time = True, "clock", continued
        return self._advance(time), reason

    def _begin_window(self, arrival: float, time: float) -> None:
        self._window_arrival, self._window_time, self._longest_silence = arrival, time, 0.0

    def _advance(self, time: float) -> float:
        self._newest = max(self._newest, time)
        return time


class BurstFilter:
    """Recognizes the old pictures that a server sends in a burst after a stall. Not thread-safe."""

    def __init__(self) -> None:
        self._delay = float("inf")
        self._lag: tuple[float, float] | None = None

    def is_late(self, time: float, arrival: float) -> bool:
        """Return True if a picture is old and newer ones are on the way. Both times are seconds."""
        self._delay = min(self._delay, arrival - time)
        lag = arrival - time - self._delay
        if lag > _MAX_LAG:
            if self._lag is None or lag < self._lag[0] - _CATCH_UP:
                self._lag = lag, arrival
            if arrival - self._lag[1] <= _MAX_LATE_SECONDS:
                return True
            self._delay = arrival - time  # the stream is late for good
        self._lag = None
        return False
