"""The thread of one connection, which reads packets into a bounded queue and never waits for their decoding."""

from __future__ import annotations

import itertools
import logging
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from telecine.errors import SourceError, TelecineError
from telecine.live.connection import Connection, ConnectionOptions
from telecine.live.uris import LiveUri

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

__all__ = ["Arrived", "Overflow", "Reader"]

_log = logging.getLogger("telecine.live")

_MAX_QUEUED_BYTES, _MAX_QUEUED_PACKETS = 64 << 20, 2000
_numbers = itertools.count()


class Arrived(NamedTuple):
    """A packet and the time at which it was read."""

    packet: Packet[VideoStream]
    arrival: float
    """Monotonic clock, seconds."""
    wall: float
    """Seconds since 1970."""
    sender_wall: float | None
    """Time by the sender's clock, seconds since 1970; None if it gives none."""


class Overflow(NamedTuple):
    """A sign that packets were dropped, because decoding was too slow."""

    dropped: int


class Reader:
    """Reads one connection in a thread of its own. Thread-safe.

    The thread ends with the connection. :meth:`cancel` ends it, as soon as FFmpeg returns if that does not react.
    """

    def __init__(self, uri: LiveUri, options: ConnectionOptions) -> None:
        self.connection = Connection(uri, options)
        self._condition = threading.Condition()
        self._queue: deque[Arrived | Overflow] = deque()
        self._queued_bytes = 0
        self.is_open = False
        """True once the video stream is found."""
        self.has_ended = False
        """True once no packet follows those of the queue."""
        self.error: Exception | None = None
        """Reason of the end; None for the end of a recording."""
        self.thread = threading.Thread(target=self._run, name=f"telecine-live-reader-{next(_numbers)}", daemon=True)
        self.thread.start()

    def get(self, timeout: float) -> Arrived | Overflow | None:
        """Return the next packet; None if there is none within ``timeout`` seconds or the connection has ended."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self.has_ended, timeout)
            if not self._queue:
                return None
            item = self._queue.popleft()
            if isinstance(item, Arrived):
                self._queued_bytes -= item.packet.size
            return item

    def cancel(self) -> None:
        """End the thread, without waiting for it."""
        self.connection.cancel()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self.connection.open()
            self.is_open = True
            for packet in self.connection.packets():
                self._put(Arrived(packet, time.monotonic(), time.time(), _sender_wall(packet)))
        except TelecineError as failure:
            error = failure
        except Exception as failure:  # a fault of a library must not end the stream
            _log.error("%s: the reader failed (%s)", self.connection.uri.name, type(failure).__name__)
            error = SourceError(f"{self.connection.uri.name}: reading failed ({type(failure).__name__})")
        finally:
            with suppress(Exception):
                self.connection.close()
            with self._condition:
                self.error, self.has_ended = error, True
                self._condition.notify_all()

    def _put(self, item: Arrived) -> None:
        with self._condition:
            self._queued_bytes += item.packet.size
            if self._queued_bytes > _MAX_QUEUED_BYTES or len(self._queue) >= _MAX_QUEUED_PACKETS:
                dropped = sum(each.dropped if isinstance(each, Overflow) else 1 for each in self._queue)
                self._queue.clear()
                self._queue.append(Overflow(dropped))
                self._queued_bytes = item.packet.size
            self._queue.append(item)
            self._condition.notify_all()


def _sender_wall(packet: Any) -> float | None:
    """Return the time of a packet by the clock of its sender, which RTCP sender reports give."""
    if not packet.has_sidedata("prft"):
        return None
    (microseconds,) = struct.unpack_from("=q", bytes(packet.get_sidedata("prft")))  # AVProducerReferenceTime
    return float(microseconds / 1e6)
