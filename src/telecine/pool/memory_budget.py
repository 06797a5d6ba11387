"""How much memory requests may take together: a request holds a lease on its true peak before it decodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from telecine.backends.base import Backend, DecodeRequest
from telecine.errors import LimitError
from telecine.index.video_info import VideoInfo

__all__ = ["INDEX_ROOM", "Cost", "Lease", "Memory", "cost_of"]

INDEX_ROOM = 48 << 20
"""Bytes that making one packet index takes at most, for usual videos: 32 MiB of kept packets, the index, buffers. What
it will be is not known before, so that a pool sets this aside for every core instead of leasing it."""

_FRAMES_PER_THREAD = 16
"""Decoded pictures that a decoder thread can hold on to: the references that H.264 and HEVC allow."""
_EXTRA_THREADS = 2
"""Decoder threads beside one for each core, as in backends/pyav.py."""
_PACKET_BYTES = 1024
_SAMPLES = {
    "yuva": 4.0,
    "420": 1.5,
    "411": 1.5,
    "410": 1.5,
    "422": 2.0,
    "444": 3.0,
    "nv12": 1.5,
    "p010": 1.5,
    "gray": 1.0,
}
"""For each pixel, by what the name of the pixel format contains; the first that fits counts."""
_POLL_SECONDS = 0.05
_MARGIN = (64, 128)
"""Rows and columns that FFmpeg allocates around a picture at most."""
_GPU_PICTURES = 20
"""Pictures that a hardware decoder keeps: 16 references at most, and a few on their way."""
_GPU_STAGING = 64 << 20
"""Host bytes that a GPU decode takes: a batch of packets."""


@dataclass(frozen=True)
class Cost:
    """What a decode takes at its peak, bytes."""

    host: int
    device: int = 0
    """Of the GPU."""


def cost_of(request: DecodeRequest, backend: Backend, cores: int, copied: int = 0) -> Cost:
    """What a decode will take at its peak.

    A backend with a method ``cost(request) -> Cost`` says it itself, sessions and staging included. Otherwise it is the
    output, the pictures that decoder threads can hold, what converts one of them, and the packets that the index kept.

    Args:
        request: with the plan.
        backend: that will decode.
        cores: that the decode may keep busy.
        copied: bytes of the source that are in memory and not the caller's own.
    """
    if (own := getattr(backend, "cost", None)) is not None:
        answer: Cost = own(request)
        return Cost(answer.host + copied, answer.device)
    geometry, index = request.geometry, request.index
    output = len(request.plan.frames) * geometry.height * geometry.width * 3
    packets = 0 if index.packets is None else int(index.size.sum()) + _PACKET_BYTES * index.num_packets
    pixels = (geometry.stored_height + _MARGIN[0]) * (geometry.stored_width + _MARGIN[1])
    picture = int(pixels * _bytes_per_pixel(request.info))
    converting = 2 * 3 * (pixels + geometry.height * geometry.width)
    one_thread = output + _FRAMES_PER_THREAD * picture + converting
    if request.device != "cpu":
        # a backend with decoder threads falls back to the CPU, on one of them, and uploads what it gets
        host = one_thread if "threads" in request.options else output if request.options.get("out") == "numpy" else 0
        return Cost(_GPU_STAGING + host + packets + copied, output + _GPU_PICTURES * picture)
    asked = request.options.get("threads")
    threads = asked if isinstance(asked, int) and asked > 0 else 1 if cores == 1 else cores + _EXTRA_THREADS
    return Cost(one_thread + (threads - 1) * _FRAMES_PER_THREAD * picture + packets + copied)


def _bytes_per_pixel(info: VideoInfo) -> float:
    """Of a decoded picture; where the format is not known, of the largest there is."""
    samples = next((share for part, share in _SAMPLES.items() if part in info.pixel_format), 4.0)
    return samples * (1 if 0 < info.bit_depth <= 8 else 2)


class Lease:
    """Bytes that a request may use. A context manager; leaving it gives them back."""

    def __init__(self, memory: Memory, need: int) -> None:
        self._memory = memory
        self._need = need
        self._state = "held"

    def release(self) -> None:
        """Give the bytes back. A second call does nothing."""
        self._memory._settle(self, "released")

    def write_off(self) -> None:
        """Say that nobody knows when the bytes come back: a thread that hangs holds them. It may still release them."""
        self._memory._settle(self, "written off")

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Memory:
    """A number of bytes that is leased in order. Thread-safe.

    Args:
        capacity: bytes.
        name: for messages: "memory".
    """

    def __init__(self, capacity: int, name: str = "memory") -> None:
        self.capacity = capacity
        self.name = name
        self.leased = 0
        """Bytes in use by requests that can be expected to end."""
        self.lost = 0
        """Bytes held by threads that hang."""
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for a lease."""
        return len(self._line)

    def try_lease(self, need: int) -> Lease | None:
        """A lease, if it can be had at once and nobody waits.

        Raises:
            LimitError: there will never be so much.
        """
        with self._changed:
            self._check_possible(need)
            return None if self._line else self._take(need)

    def lease(self, need: int, check: Callable[[], None]) -> Lease:
        """Wait in line for a lease.

        Args:
            need: bytes.
            check: called twenty times a second while waiting; what it raises ends the wait.

        Raises:
            LimitError: there will never be so much.
        """
        place = object()
        with self._changed:
            self._line.append(place)
        try:
            while True:
                with self._changed:
                    self._check_possible(need)
                    if self._line[0] is place and (lease := self._take(need)) is not None:
                        return lease
                    self._changed.wait(_POLL_SECONDS)
                check()  # without the lock: it may call the caller's code
        finally:
            with self._changed:
                self._line.remove(place)
                self._changed.notify_all()

    def _take(self, need: int) -> Lease | None:
        if self.leased + self.lost + need > self.capacity:
            return None
        self.leased += need
        return Lease(self, need)

    def _check_possible(self, need: int) -> None:
        if need > self.capacity - self.lost:
            lost = f", of which threads that hang hold {self.lost}" if self.lost else ""
            raise LimitError(
                f"the request takes {need} bytes of {self.name} at its peak; the pool has {self.capacity}{lost}. "
                "Ask for fewer frames, a smaller size or fewer threads, or give the pool more"
            )

    def _settle(self, lease: Lease, state: str) -> None:
        with self._changed:
            before, lease._state = lease._state, state if lease._state != "released" else "released"
            if before == "held" and state != "held":
                self.leased -= lease._need
            if before == "held" and state == "written off":
                self.lost += lease._need
            if before == "written off" and state == "released":
                self.lost -= lease._need
            self._changed.notify_all()
