"""Division of a live stream into slices of arrival time: which frames are wanted, and when a slice is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Received", "Slice", "SlicePlanner"]

_GRACE = 1.0
"""Seconds after the end of a slice for its last frames to arrive and to be decoded."""


@dataclass(frozen=True)
class Received:
    """A received packet."""

    ordinal: int
    """Number of the packet since the capture began."""
    time: int
    """Stream time, microseconds."""
    arrival: float
    """Monotonic clock, seconds."""
    wall: float
    """Wall-clock time of the arrival, seconds since 1970."""
    sender_wall: float | None
    """Wall-clock time by the sender's clock, seconds since 1970; None if it gives none."""


@dataclass
class Slice:
    """A slice of arrival time and the frames wanted in it."""

    start: float
    end: float
    num_targets: int
    pictures: dict[int, Any] = field(default_factory=dict)
    """Decoded pictures by the stream time of their packet."""
    pending: set[int] = field(default_factory=set)
    """Ordinals of wanted packets that are not decoded yet."""
    satisfied: int = 0
    """Targets for which a packet has been chosen."""

    @property
    def next_target(self) -> float:
        """Arrival time from which the next frame is wanted; the last one is wanted at the end of the slice."""
        missing = self.num_targets - 1 - self.satisfied
        return self.end - (self.end - self.start) * missing / self.num_targets

    def take(self, received: Received) -> bool:
        """Choose a packet for all targets that are due. Returns True if one was."""
        before = self.satisfied
        while self.satisfied < self.num_targets and self.next_target <= received.arrival:
            self.satisfied += 1
        if self.satisfied > before:
            self.pending.add(received.ordinal)
        return self.satisfied > before

    def is_complete(self, now: float) -> bool:
        """Return True if all frames are there, or no more are waited for."""
        return (self.satisfied == self.num_targets and not self.pending) or now >= self.end + _GRACE


class SlicePlanner:
    """Chooses packets for slices of equal length, which may overlap. Not thread-safe.

    Args:
        every: seconds from the end of one slice to the end of the next.
        frames: frames in each slice, at most.
        overlap: seconds that a slice also covers of the one before it.
    """

    def __init__(self, every: float, frames: int, overlap: float) -> None:
        self._every, self._frames, self._overlap = every, frames, overlap
        self._origin: float | None = None
        self._next = 0
        self.open: list[Slice] = []
        """Slices that have begun, oldest first."""

    def begin_slices(self, arrival: float) -> None:
        """Begin the slices that contain an arrival time. The first packet begins the first one."""
        if self._origin is None:
            self._origin = arrival
        # none is begun for the time of an outage
        self._next = max(self._next, int((arrival - self._origin) // self._every))
        while arrival >= (start := self._origin + self._next * self._every - self._overlap * (self._next > 0)):
            self.open.append(Slice(start, self._origin + (self._next + 1) * self._every, self._frames))
            self._next += 1

    def next_target(self) -> float:
        """Return the arrival time from which the next frame is wanted."""
        return min((each.next_target for each in self.open if each.satisfied < each.num_targets), default=float("inf"))

    def take(self, received: Received) -> bool:
        """Choose a packet for all slices in which a frame is due. Returns True if there was one."""
        return any([each.take(received) for each in self.open])

    def add_picture(self, ordinal: int, time: int, picture: Any) -> None:
        """Add the decoded picture of a chosen packet; None if it could not be decoded."""
        for each in self.open:
            if ordinal in each.pending:
                each.pending.remove(ordinal)
                if picture is not None:
                    each.pictures[time] = picture

    def restart(self) -> None:
        """Drop the open slices; the next packet begins the first of new ones."""
        self.open.clear()
        self._origin, self._next = None, 0

    def pop_complete(self, now: float) -> Slice | None:
        """Remove and return the oldest open slice if it is complete."""
        return self.open.pop(0) if self.open and self.open[0].is_complete(now) else None
