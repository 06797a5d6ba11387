"""Many requests at once: bounded threads, cores, memory and queue; deadlines that hold; one video walked only once.

A request is a :class:`telecine.pool.job.Job`. :func:`telecine.pipeline.run_request` does it in a thread of
:class:`telecine.pool.workers.Crew`, when :class:`telecine.pool.scheduler.Turns` says so.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from telecine.deadline import Deadline
from telecine.errors import LimitError, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.metrics import METRICS
from telecine.pool.config import LeaseVram, Means, positive
from telecine.pool.job import Job, PoolFuture, label_of
from telecine.pool.outcome import foreign
from telecine.pool.workers import Crew, QueueFull
from telecine.request import Request

__all__ = ["Pool", "PoolFuture", "PoolStatus"]

_SETTLING = 0.5
"""Seconds at most between the end of a request and that of its future."""


@dataclass(frozen=True)
class PoolStatus:
    """What a pool is doing."""

    queued: int
    """Requests that have not begun."""
    running: int
    """Requests that have."""
    threads: int
    """Threads that can work, busy or idle."""
    written_off: int
    """Threads given up so far because a library did not return."""
    stuck: int
    """Of these, those that have not come back."""
    memory_leased: int
    """Bytes of host memory that requests hold, stuck ones included."""
    vram_leased: int
    """The same of GPU memory."""
    indexes_cached: int
    """Videos whose packet index is remembered."""


class Pool:
    """Runs requests on the cores and the memory there are. Thread-safe, and a context manager.

    Nothing is started before the first request. A forked child gets an empty pool; requests under way are its parent's.

    Args:
        threads: cores that all requests together may keep busy; ``TELECINE_POOL_SIZE``, or those that this process may
            use and the memory has room for, when omitted.
        memory: bytes that requests may take together; half of what is available, but enough for one core, when
            omitted.
        vram: bytes of GPU memory that requests may take together; not counted when omitted.
        lease_vram: ``lease_vram(nbytes, device)`` gives a context manager that is entered before and left after every
            decode on a GPU, in the thread that decodes: for an engine that shares its own GPU memory out.
        workers: requests that may wait for data or a GPU at once; 16, or two for each core, when omitted.
        queue: requests that may wait to begin; one more is refused.
        cache: bytes for packet indexes of videos seen before; 0 for none.

    Raises:
        OptionsError: a number is out of range, or the memory is too little for so many threads.
    """

    _default: Pool | None = None

    def __init__(
        self,
        *,
        threads: int | None = None,
        memory: int | None = None,
        vram: int | None = None,
        lease_vram: LeaseVram | None = None,
        workers: int | None = None,
        queue: int = 256,
        cache: int = 64 << 20,
    ) -> None:
        self._crew = Crew(
            Means.of(
                threads=threads,
                memory=memory,
                vram=vram,
                lease_vram=lease_vram,
                workers=workers,
                queue=queue,
                cache=cache,
            )
        )
        _know(self)

    @classmethod
    def default(cls) -> Pool:
        """The pool of this process, made when first asked for."""
        with _making:
            if cls._default is None or cls._default._crew.closed:
                cls._default = cls()
            return cls._default

    def submit(
        self, source: Any, *, caller: Hashable = None, timeout: float | Deadline | None = None, **options: Any
    ) -> PoolFuture:
        """Ask for frames, and do not wait for them. The first use of a backend imports it here; :meth:`aload` does not.

        Args:
            source: as for :func:`telecine.load`.
            caller: in whose name. Callers get equal shares, whatever they ask for.
            timeout: seconds from now on, waiting in the queue included; or a :class:`telecine.deadline.Deadline`.
            **options: of :func:`telecine.load`.

        Raises:
            OptionsError: an option is wrong, or the pool is closed.
            BackendUnavailable: the backend does not work on this machine.
            LimitError: the queue is full.
        """
        request = _request(source, options)
        return self._accept(source, lambda: request, request.backend, timeout, caller)

    def _accept(
        self,
        source: Any,
        make: Callable[[], Request],
        backend: object,
        timeout: float | Deadline | None,
        caller: Hashable,
    ) -> PoolFuture:
        try:
            hash(caller)
        except TypeError:
            raise OptionsError(f"caller is a {type(caller).__name__}; it must be hashable: a name, a number") from None
        job = Job(self._crew, source, make, backend, timeout, caller)
        future = PoolFuture(job.withdraw)
        self._crew.accept(job, future)
        return future

    def load(
        self, source: Any, *, caller: Hashable = None, timeout: float | Deadline | None = None, **options: Any
    ) -> Frames:
        """Ask for frames, and wait. Options as for :meth:`submit`, errors as for :func:`telecine.load`."""
        future = self._accept(source, lambda: Request.of(source, **options), options.get("backend"), timeout, caller)
        try:
            return future.result()
        finally:
            future.cancel()  # where the wait was interrupted

    def perform(self, request: Request, *, caller: Hashable = None, timeout: float | Deadline | None = None) -> Frames:
        """Do a request that is made already, and wait: an engine's own kind. Errors as for :func:`telecine.load`."""
        future = self._accept(request.source, lambda: request, request.backend, timeout, caller)
        try:
            return future.result()
        finally:
            future.cancel()  # where the wait was interrupted

    async def aload(
        self, source: Any, *, caller: Hashable = None, timeout: float | Deadline | None = None, **options: Any
    ) -> Frames:
        """Ask for frames, and wait without blocking the event loop. Cancelling the task stops the decode."""
        import asyncio

        return await asyncio.wrap_future(
            self._accept(source, lambda: Request.of(source, **options), options.get("backend"), timeout, caller)
        )

    def map(
        self,
        sources: Iterable[Any],
        *,
        ahead: int | None = None,
        return_errors: bool = False,
        caller: Hashable = None,
        **options: Any,
    ) -> Iterator[Frames | TelecineError]:
        """Yield the frames of many sources, in order.

        Args:
            sources: taken from as they are needed.
            ahead: sources asked for before their frames are taken; each holds its frames in memory. Two for each core
                and two more when omitted.
            return_errors: yield the error of a source in its place instead of raising it there.
            caller: as for :meth:`submit`; every call of this method is a caller of its own when omitted.
            **options: of :func:`telecine.load`, for all sources.

        Raises:
            OptionsError: at once, where an argument is wrong, or ``sources`` is a single one.
            BackendUnavailable: at once, where the backend does not work on this machine.
            TelecineError: in the place of its source, unless errors are returned. It ends the iteration.
        """
        if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
            raise OptionsError(f"sources is a {type(sources).__name__}; a single source goes into a list")
        most = positive("ahead", 2 * self._crew.means.cores + 2 if ahead is None else ahead)
        with suppress(LimitError):  # there may be memory again when a source's turn comes
            _request(None, {name: value for name, value in options.items() if name != "timeout"})
        options["caller"] = object() if caller is None else caller
        return self._in_order(sources, most, return_errors, options)

    def _in_order(
        self, sources: Iterable[Any], most: int, return_errors: bool, options: dict[str, Any]
    ) -> Iterator[Frames | TelecineError]:
        pending: deque[PoolFuture] = deque()
        try:
            for source in sources:
                while len(pending) >= most:
                    yield _result(pending.popleft(), return_errors)
                pending.append(self._submit_patiently(source, options))
            while pending:
                yield _result(pending.popleft(), return_errors)
        finally:
            for future in pending:
                future.cancel()

    def _submit_patiently(self, source: Any, options: dict[str, Any]) -> PoolFuture:
        while True:
            self._crew.wait_for_room()
            try:
                return self.submit(source, **options)
            except QueueFull:
                continue  # somebody else was faster
            except TelecineError as error:
                return PoolFuture.failed(error)  # it is told in the place of its source

    def status(self) -> PoolStatus:
        """What the pool is doing now."""
        crew = self._crew
        with crew.lock:
            return PoolStatus(
                queued=len(crew.queued),
                running=len(crew.jobs) - len(crew.queued),
                threads=len(crew.threads),
                written_off=crew.written_off,
                stuck=crew.stuck,
                memory_leased=crew.memory.leased + crew.memory.lost,
                vram_leased=0 if crew.vram is None else crew.vram.leased + crew.vram.lost,
                indexes_cached=len(crew.cache),
            )

    def close(self, *, cancel: bool = False) -> None:
        """Take no more requests, and wait until those under way have ended. May be called twice.

        Args:
            cancel: do not let them finish: withdraw them all. Whoever waits for one gets
                :class:`telecine.errors.Cancelled`.
        """
        crew = self._crew
        with crew.lock:
            crew.closed = True
            jobs = dict(crew.jobs)
        if cancel:
            # the jobs, not their futures: a cancelled future says that its owner cancelled it, and ends his task
            for job in jobs:
                job.withdraw()
        crew.wait_for_end()
        wait(jobs.values(), _SETTLING)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(cancel=kind is not None)

    def _forked(self) -> None:
        """In a child: begin anew. Threads were not copied, and their locks may be held for ever."""
        before = self._crew
        for future in list(before.jobs.values()):
            future.orphan()
        self._crew = Crew(before.means)
        self._crew.closed = before.closed
        METRICS.watch(self._gauges)

    def _gauges(self) -> Mapping[str, float]:
        status = self.status()
        return {
            "telecine_threads_stuck": status.stuck,
            "telecine_requests_queued": status.queued,
            "telecine_requests_running": status.running,
            "telecine_memory_leased_bytes": status.memory_leased,
            "telecine_vram_leased_bytes": status.vram_leased,
            "telecine_index_cache_bytes": self._crew.cache.nbytes,
        }


def _request(source: Any, options: dict[str, Any]) -> Request:
    try:
        return Request.of(source, **options)
    except TelecineError:
        raise
    except Exception as error:
        raise foreign(error, label_of(options.get("backend"), outside=True)) from error


def _result(future: PoolFuture, return_errors: bool) -> Frames | TelecineError:
    try:
        return future.result()
    except TelecineError as error:
        if return_errors:
            return error
        raise
    finally:
        future.cancel()  # where the wait was interrupted


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_making = threading.RLock()
_hooked = False


def _know(pool: Pool) -> None:
    """Have a pool told of forks and of the interpreter's end."""
    global _hooked
    with _making:
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=_after_fork)
            atexit.register(_at_exit)
        _pools.add(pool)
    METRICS.watch(pool._gauges)


def _after_fork() -> None:
    global _making
    _making = threading.RLock()
    METRICS.reset()
    for pool in list(_pools):
        pool._forked()


def _at_exit() -> None:
    # threads that decode while the interpreter is torn down crash it; nobody can take a result any more
    for pool in list(_pools):
        pool.close(cancel=True)
