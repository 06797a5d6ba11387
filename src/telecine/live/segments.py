"""The result of a live stream: frames of a time slice, with wall-clock time and everything that was missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from telecine.frames import Frames

__all__ = ["Clock", "Segment", "State", "Stats"]

Clock: TypeAlias = Literal["sender", "arrival"]
State: TypeAlias = Literal["connecting", "live", "idle", "waiting", "ended", "failed", "closed"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Frames of one time slice of a live stream."""

    frames: Frames
    """The frames, at least one. Their indices and timestamps count from the first frame received in the slice."""
    sequence: int
    """Number of the segment since the capture began, from 0; rises by more than 1 if segments were missed."""
    start: float
    """Stream time of the first frame received in the slice: seconds since the first frame of the capture."""
    end: float
    """Stream time of the last frame received in the slice."""
    wall_start: float
    """Wall-clock time of ``start``, seconds since 1970 (UTC). Never goes back from one segment to the next."""
    wall_end: float
    """Wall-clock time of ``end``."""
    clock: Clock
    """Source of the wall-clock times: the sender's clock (RTCP sender reports), or the arrival of the packets."""
    age: float
    """Seconds from ``wall_end`` to the delivery to the consumer."""
    gap: bool = False
    """True if media is missing inside the segment or since the one before it: a lost connection, dropped packets."""
    discontinuity: str | None = None
    """Reasons why the segment does not continue the one before it, separated by ", ": "reconnected", "timestamps",
    "clock", "size", "codec", "rate", "damage", "overload". None if it does."""
    dropped_packets: int = 0
    """Packets that were dropped since the last segment because decoding was too slow."""
    dropped_frames: int = 0
    """Wanted frames that could not be decoded since the last segment."""
    dropped_segments: int = 0
    """Segments that this consumer missed since its last one because it was slow."""
    reconnects: int = 0
    """Connections that were opened again since the capture began."""


@dataclass(frozen=True)
class Stats:
    """Counters of a capture since it began."""

    packets: int = 0
    """Packets received."""
    bytes_received: int = 0
    """Size of the packets received."""
    packets_fed: int = 0
    """Packets given to the decoder."""
    frames: int = 0
    """Frames delivered in segments."""
    segments: int = 0
    reconnects: int = 0
    dropped_packets: int = 0
    dropped_frames: int = 0
    fps: float = 0.0
    """Measured rate of received frames over the last segment, per second."""
