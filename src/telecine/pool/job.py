"""One request on its way through a pool: its deadline, its future, and what the pool gives it."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from telecine.backends.base import TABLE, Backend, DecodeRequest, names
from telecine.deadline import Deadline
from telecine.errors import Cancelled
from telecine.frames import Frames
from telecine.limits import Limits
from telecine.metrics import METRICS, Tracing
from telecine.pipeline import IndexAndInfo, RequestHooks, run_request
from telecine.pool.index_cache import key_of, version_of
from telecine.pool.memory_budget import Lease, Memory, cost_of
from telecine.pool.scheduler import Claim
from telecine.request import Request
from telecine.source.source import Source

if TYPE_CHECKING:
    from telecine.pool.workers import Crew

__all__ = ["Job", "PoolFuture", "label_of"]

_COPY_BYTES = 4 << 20
"""What source.py holds in memory of a source that it reads or fetches; beyond that it is a mapped file."""
_USUAL_BYTES = 4 << 20
"""Of a source whose size is not known before it is read."""


class PoolFuture(Future[Frames]):
    """The frames that a pool will have.

    Other than the futures of the standard library, it can be cancelled until the result is there: the decode stops
    between two packets.
    """

    def __init__(self, withdraw: Callable[[], None]) -> None:
        super().__init__()
        self._withdraw: Callable[[], None] | None = withdraw

    def cancel(self) -> bool:
        """Withdraw the request; whether that was possible. Whoever waits is told at once."""
        if not super().cancel():
            return False
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()
        return True

    @classmethod
    def failed(cls, error: BaseException) -> PoolFuture:
        """That of a request which could not even be queued."""
        future = cls(lambda: None)
        future.set_exception(error)
        return future

    def settle(self, frames: Frames | None, error: BaseException | None) -> None:
        """Set the result, unless it was cancelled. For the pool."""
        self._withdraw = None
        if self.set_running_or_notify_cancel():
            if error is None:
                self.set_result(frames)  # type: ignore[arg-type]  # one of both is there
            else:
                self.set_exception(error)

    def orphan(self) -> None:
        """In a forked child: nobody works on this request here, and the lock may be held by a thread that is gone."""
        self._condition = threading.Condition()
        self._done_callbacks: list[Any] = []
        self._withdraw = None
        if not self.done():
            self.set_exception(Cancelled("the request belongs to the process that forked this one; ask again here"))


class _JobDeadline(Deadline):
    """The caller's deadline. Between two steps the job also gives way to others where the pool asks it to."""

    def __init__(self, inner: Deadline, job: Job) -> None:
        super().__init__()
        self.seconds = inner.seconds
        self._inner = inner
        self._job = job

    def cancel(self) -> None:
        self._inner.cancel()

    @property
    def cancelled(self) -> bool:
        return self._inner.cancelled

    def remaining(self) -> float | None:
        return self._inner.remaining()

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        self._inner.check(doing, done, total)
        job = self._job
        job.doing = doing
        if job.claim.decoding and total:
            job.claim.fraction = done / total
        # a library may ask from a thread of its own; only the one that has the turn can give it back
        if job.claim.asked_to_yield and threading.get_ident() == job.thread:
            job.pause()


class Job(RequestHooks):
    """One request in a pool.

    Args:
        crew: that does it.
        source: what the request is about.
        make: makes the request. Called in the thread of the job: it may import a backend, which takes seconds.
        backend: its name, as the caller gave it: anything.
        timeout: seconds, or the caller's own deadline.
        caller: in whose name.
    """

    def __init__(
        self,
        crew: Crew,
        source: Any,
        make: Callable[[], Request],
        backend: object,
        timeout: float | Deadline | None,
        caller: Hashable,
    ) -> None:
        self._crew = crew
        self._source = source
        self._make = make
        self._asked = backend
        self.backend = label_of(backend, outside=False)
        self.deadline = _JobDeadline(Deadline.of(timeout), self)
        self.size = _size_hint(source)
        """Bytes of the source; a guess until it is open."""
        self.claim = Claim(caller, crew.expected_seconds(self.size), self._on_turn)
        self.tracing = Tracing({"telecine.backend": self.backend})
        self.fetches = _may_block(source)
        """Whether opening the source may take long; that is done without a turn, but needs a thread."""
        self.submitted = time.monotonic()
        self.thread: int | None = None
        self.doing = "waiting in the queue"
        self.overdue: float | None = None
        """When it was first seen to work on although it was withdrawn or late."""
        self.written_off = False
        self.waited = {"queue": 0.0}
        """Seconds without a turn, by the stage that they fell into."""
        self.cached = False
        self._version = version_of(source)
        self._stage = "queue"
        self._leases: list[Lease] = []

    def begin(self) -> None:
        """Note that this thread works on it from now on."""
        self.thread = threading.get_ident()
        self.waited["queue"] = time.monotonic() - self.submitted
        self.doing = "beginning"

    def withdraw(self) -> None:
        """Stop the request at its next step, or take it out of the queue."""
        self.deadline.cancel()
        self._crew.withdrawn(self)

    def _on_turn(self) -> None:
        self._crew.turn_came(self)

    def pause(self) -> None:
        """Give the turn back, and wait for the next one."""
        with self._waiting():
            self._crew.pause(self)

    def forget(self) -> None:
        """Let go of the source: it has ended."""
        del self._source, self._make

    def write_off(self) -> None:
        """Count what it holds as lost until its thread comes back."""
        self.written_off = True
        for lease in list(self._leases):
            lease.write_off()

    def do(self) -> Frames:
        """Do the request in this thread. The report says what the pool did, too."""
        METRICS.export()
        self.tracing.begun()
        self.backend = label_of(self._asked, outside=True)
        request = self._make()
        self.backend = label_of(request.backend, outside=True)
        frames = run_request(request, self.deadline, self)
        report = frames.report
        seconds = {stage: max(0.0, value - self.waited.get(stage, 0.0)) for stage, value in report.seconds.items()}
        report = replace(report, seconds=seconds | {"queue": sum(self.waited.values())}, index_cached=self.cached)
        return replace(frames, report=report)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.waited[self._stage] = self.waited.get(self._stage, 0.0) + time.monotonic() - started

    @contextmanager
    def hold_cpu_slot(self, source: Source) -> Iterator[None]:
        """See :class:`telecine.pipeline.RequestHooks`."""
        self.size = source.size
        with self._waiting():
            self._crew.await_turn(self)
        self._stage = "index"
        yield
        # the turn ends with the job, when its thread can take the next one

    def get_index(self, source: Source, limits: Limits, read: Callable[[], IndexAndInfo]) -> IndexAndInfo:
        """See :class:`telecine.pipeline.RequestHooks`."""
        cache = self._crew.cache
        if not cache.capacity:
            return read()
        key = key_of(source, limits, self.deadline)
        known = cache.get(key)
        self.cached = known is not None
        METRICS.count("telecine_index_cache", 1, "hit" if self.cached else "miss")
        if known is None:
            known = read()
            if self._version is not None and version_of(self._source) == self._version:
                cache.put(key, *known)
        return known

    @contextmanager
    def reserve_memory(self, decode: DecodeRequest, backend: Backend) -> Iterator[DecodeRequest]:
        """See :class:`telecine.pipeline.RequestHooks`."""
        crew, asked = self._crew, decode.options.get("threads")
        if (gauges := getattr(backend, "gauges", None)) is not None:
            METRICS.watch(gauges)
        cores = crew.begin_decode(self, asked if isinstance(asked, int) and asked > 0 else None)
        cost = cost_of(decode, backend, cores, self._copied(decode.source))
        with ExitStack() as held:
            with self._waiting():
                if decode.device != "cpu" or cost.device:
                    crew.end_turn(self)  # the GPU works, and the cores are free for others
                    cores = 1  # for one that falls back to the CPU
                    self._lease(held, crew.memory, cost.host)
                    if crew.vram is not None:
                        self._lease(held, crew.vram, cost.device)
                    if crew.means.lease_vram is not None:
                        held.enter_context(crew.means.lease_vram(cost.device, decode.device))
                elif not self._lease_at_once(held, crew.memory, cost.host):
                    crew.end_turn(self)
                    self._lease(held, crew.memory, cost.host)
                    crew.await_turn(self)
                    cores = crew.begin_decode(self, cores)
            self._stage, self.doing = "decode", "decoding"
            yield replace(decode, cores=cores)

    def _lease_at_once(self, held: ExitStack, memory: Memory, need: int) -> bool:
        lease = memory.try_lease(need)
        if lease is not None:
            self._hold(held, lease)
        return lease is not None

    def _lease(self, held: ExitStack, memory: Memory, need: int) -> None:
        self._hold(held, memory.lease(need, lambda: self.deadline.check(f"waiting for {memory.name}")))

    def _hold(self, held: ExitStack, lease: Lease) -> None:
        self._leases.append(lease)
        held.callback(self._leases.remove, lease)
        held.enter_context(lease)

    def _copied(self, source: Source) -> int:
        if isinstance(self._source, str) and self._source.startswith("data:"):
            return source.size
        return min(source.size, _COPY_BYTES) if self.fetches else 0


def label_of(backend: object, outside: bool) -> str:
    """What a backend is called in metrics, spans and messages. Only names there are: a caller may send anything.

    Args:
        backend: as asked for.
        outside: whether those of other packages are known as well. Finding them reads files of every package that is
            installed, for which an event loop has no time.
    """
    if backend is None:
        return "auto"
    if isinstance(backend, str) and (backend == "auto" or backend in TABLE or (outside and backend in names())):
        return backend
    return "unknown"


def _may_block(source: Any) -> bool:
    if isinstance(source, str):
        return source[:8].lower().startswith(("http://", "https://"))
    return callable(getattr(source, "read", None)) and not isinstance(source, io.BytesIO)


def _size_hint(source: Any) -> int:
    """Bytes of a source, as far as that can be said without opening it; else a usual size."""
    if isinstance(source, str) and (_may_block(source) or source.startswith("data:")):
        return len(source) if source.startswith("data:") else _USUAL_BYTES
    try:
        if isinstance(source, (str, os.PathLike)):
            return os.stat(source).st_size
        return memoryview(source).nbytes
    except (OSError, ValueError, TypeError, BufferError):
        return _USUAL_BYTES  # whoever opens it says what is wrong
