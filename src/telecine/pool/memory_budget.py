"""Bounds the memory of the requests of a pool: each one leases its peak before it decodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from telecine.backends.base import Backend, DecodeRequest
from telecine.errors import LimitError, OverloadedError
from telecine.index.video_info import VideoInfo

__all__ = ["INDEX_BYTES_PER_CORE", "Cost", "Lease", "MemoryBudget", "cost_of"]

INDEX_BYTES_PER_CORE = 48 << 20
"""Bytes that reading one packet index takes at most for usual videos: 32 MiB of kept packets, the index, and buffers.
The size is not known in advance. So a pool reserves this for every core instead of leasing it."""

_PICTURES_PER_THREAD = 16
"""Decoded pictures that a decoder thread can hold: the reference pictures that H.264 and HEVC allow."""
_EXTRA_THREADS = 2
"""Decoder threads in addition to one for each core, as in backends/pyav."""
_PACKET_BYTES = 1024
"""Bytes of a kept packet in addition to its data."""
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
"""Samples per pixel by a substring of the pixel format's name; the first match counts."""
_POLL_SECONDS = 0.05
_MARGIN = (64, 128)
"""Rows and columns that FFmpeg allocates in addition to a picture at most."""
_GPU_PICTURES = 20
"""Pictures that a hardware decoder keeps: at most 16 reference pictures and a few in progress."""
_GPU_STAGING = 64 << 20
"""Host bytes of a GPU decode: a batch of packets."""


@dataclass(frozen=True)
class Cost:
    """Peak memory of a decode, bytes."""

    host: int
    """Bytes of host memory."""
    device: int = 0
    """Bytes of GPU memory."""


def cost_of(request: DecodeRequest, backend: Backend, cores: int, copied: int = 0) -> Cost:
    """Estimate the peak memory of a decode.

    A backend with a method ``cost(request) -> Cost`` gives the estimate itself, with decoder sessions and staging
    buffers included. Otherwise it is the output, the pictures that the decoder threads can hold, the buffers that
    convert one of them, and the packets that the index kept.

    Args:
        request: what to decode, with its plan.
        backend: the backend that will decode.
        cores: cores that the decode may keep busy.
        copied: bytes of the source that the pool holds in memory.
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
    one_thread = output + _PICTURES_PER_THREAD * picture + converting
    if request.device != "cpu":
        # a backend with decoder threads falls back to one thread on the CPU and uploads the frames
        host = one_thread if "threads" in request.options else output if request.options.get("out") == "numpy" else 0
        return Cost(_GPU_STAGING + host + packets + copied, output + _GPU_PICTURES * picture)
    asked = request.options.get("threads")
    threads = asked if isinstance(asked, int) and asked > 0 else 1 if cores == 1 else cores + _EXTRA_THREADS
    return Cost(one_thread + (threads - 1) * _PICTURES_PER_THREAD * picture + packets + copied)


def _bytes_per_pixel(info: VideoInfo) -> float:
    """Return the bytes per pixel of a decoded picture; of the largest format if its own is unknown."""
    samples = next((share for part, share in _SAMPLES.items() if part in info.pixel_format), 4.0)
    return samples * (1 if 0 < info.bit_depth <= 8 else 2)


class Lease:
    """Bytes of a budget that a request may use. A context manager that returns them."""

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._budget = budget
        self._nbytes = nbytes
        self._is_abandoned = False
        self._is_released = False

    def release(self) -> None:
        """Return the bytes to the budget. A second call does nothing."""
        self._budget._return(self)

    def abandon(self) -> None:
        """Count the bytes as lost: a thread that hangs holds them. It may still release them."""
        self._budget._abandon(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryBudget:
    """A number of bytes that requests lease, first come first served. Thread-safe.

    Args:
        capacity: bytes.
        name: kind of memory, for messages.
    """

    def __init__(self, capacity: int, name: str = "memory") -> None:
        self.capacity = capacity
        self.name = name
        self.leased = 0
        """Bytes leased to requests, without the lost ones."""
        self.lost = 0
        """Bytes leased to threads that hang."""
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a lease."""
        return len(self._queue)

    def try_lease(self, nbytes: int) -> Lease | None:
        """Return a lease, or None if the bytes are not free now or other requests wait.

        Raises:
            LimitError: the budget is smaller than that.
            OverloadedError: threads that hang hold too much of the budget.
        """
        with self._changed:
            self._check_possible(nbytes)
            return None if self._queue else self._take(nbytes)

    def lease(self, nbytes: int, check: Callable[[], None]) -> Lease:
        """Wait in the queue for a lease.

        Args:
            nbytes: number of bytes.
            check: called twenty times a second while waiting; an exception that it raises ends the wait.

        Raises:
            LimitError: the budget is smaller than that.
            OverloadedError: threads that hang hold too much of the budget.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
        try:
            while True:
                with self._changed:
                    self._check_possible(nbytes)
                    if self._queue[0] is ticket and (lease := self._take(nbytes)) is not None:
                        return lease
                    self._changed.wait(_POLL_SECONDS)
                check()  # without the lock: it may call the caller's code
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _take(self, nbytes: int) -> Lease | None:
        if self.leased + self.lost + nbytes > self.capacity:
            return None
        self.leased += nbytes
        return Lease(self, nbytes)

    def _check_possible(self, nbytes: int) -> None:
        if nbytes > self.capacity:
            raise LimitError(
                f"the request takes {nbytes} bytes of {self.name} at its peak; the pool has {self.capacity}. "
                "Ask for fewer frames, a smaller size or fewer threads, or give the pool more"
            )
        if nbytes > self.capacity - self.lost:
            raise OverloadedError(
                f"the request takes {nbytes} bytes of {self.name} at its peak; the pool has {self.capacity}, of which "
                f"threads that hang hold {self.lost}. Try again later"
            )

    def _return(self, lease: Lease) -> None:
        with self._changed:
            if not lease._is_released:
                lease._is_released = True
                if lease._is_abandoned:
                    self.lost -= lease._nbytes
                else:
                    self.leased -= lease._nbytes
            self._changed.notify_all()

    def _abandon(self, lease: Lease) -> None:
        with self._changed:
            if not lease._is_released and not lease._is_abandoned:
                lease._is_abandoned = True
                self.leased -= lease._nbytes
                self.lost += lease._nbytes
            self._changed.notify_all()
