"""The public interface of a pool.

A request becomes a :class:`telecine.pool.job.Job`. A thread of :class:`telecine.pool.workers.Workers` runs it with
:func:`telecine.pipeline.run_request` when :class:`telecine.pool.scheduler.Scheduler` grants it a core.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, SupportsIndex, Unpack, overload

from telecine.deadline import Timeout
from telecine.errors import LimitError, OptionsError, OverloadedError, TelecineError
from telecine.frames import Frames
from telecine.metrics import METRICS
from telecine.pool.config import LeaseVram, PoolConfig, check_count, choose_cores_and_memory
from telecine.pool.job import Job, backend_label, convert_error
from telecine.pool.workers import PoolFuture, PoolStatus, QueueFullError, Workers
from telecine.request import LoadOptions, Request, SourceLike, show_options

__all__ = ["Pool"]


class SubmitOptions(LoadOptions, total=False):
    """The options of a request to a pool; :meth:`Pool.submit` explains them."""

    caller: Hashable
    timeout: Timeout
    cache_key: Hashable


class MapOptions(LoadOptions, total=False):
    """The options of :meth:`Pool.map`."""

    caller: Hashable
    timeout: Timeout
    ahead: SupportsIndex | None


class Pool:
    """Decodes many videos at once, within the cores and the memory of the machine. Thread-safe; a context manager.

    Nothing is started before the first request. A forked child gets an empty pool; running requests stay with its
    parent.

    Args:
        threads: cores that all requests together may keep busy. Default: ``TELECINE_POOL_SIZE``, else the cores that
            this process may use, as far as the memory suffices.
        memory: bytes of host memory that requests may take together. Default: half of what is available, but enough
            for one core.
        vram: bytes of GPU memory that requests may take together. Default: no limit.
        lease_vram: ``lease_vram(nbytes, device)`` returns a context manager that is held around every decode on a GPU,
            in the thread that decodes: for an engine that manages its own GPU memory.
        workers: requests that may fetch data or use a GPU at once. Default: 16, or two for each core.
        queue: requests that may wait to start; one more is refused.
        cache: bytes for packet indexes of videos seen before; 0 for no cache.
        hash_content: True to recognise ``bytes`` and ``data:`` URLs by the SHA-256 of their content. Local files are
            recognised by their inode, size and times of change.

    Raises:
        OptionsError: a number is out of range, or the memory is too small for the number of threads.
    """

    _default: Pool | None = None

    def __init__(
        self,
        *,
        threads: SupportsIndex | None = None,
        memory: SupportsIndex | None = None,
        vram: SupportsIndex | None = None,
        lease_vram: LeaseVram | None = None,
        workers: SupportsIndex | None = None,
        queue: SupportsIndex = 256,
        cache: SupportsIndex = 64 << 20,
        hash_content: bool = False,
    ) -> None:
        cores, bytes_to_decode = choose_cores_and_memory(threads, memory)
        config = PoolConfig(
            cores=cores,
            workers=max(16, 2 * cores) if workers is None else check_count("workers", workers),
            queue=check_count("queue", queue),
            memory=bytes_to_decode,
            vram=None if vram is None else check_count("vram", vram),
            lease_vram=lease_vram,
            cache=check_count("cache", cache, low=0),
            hash_content=bool(hash_content),
        )
        self._workers = Workers(config)
        _pools.add(self)
        METRICS.add_gauges(self)

    @classmethod
    def default(cls) -> Pool:
        """Return the default pool of this process. It is made on first use."""
        with _default_lock:
            if cls._default is None or cls._default._workers.closed:
                cls._default = cls()
            return cls._default

    @show_options(SubmitOptions)
    def submit(self, source: SourceLike, **options: Unpack[SubmitOptions]) -> PoolFuture:
        """Submit a request without waiting for its frames.

        The first use of a backend imports it in the calling thread; :meth:`aload` does not.

        Args:
            source: as for :func:`telecine.load`.
            caller: name on whose account the request runs. All callers get equal shares of the machine.
            timeout: seconds from now on, time in the queue included; or a :class:`telecine.Deadline`.
            cache_key: your own key for the content of the source, such as an ETag or a hash, to find its packet index
                in the cache. Equal keys must mean equal bytes. Local files need none.
            **options: options of :func:`telecine.load`.

        Raises:
            OptionsError: an option is wrong, or the pool is closed.
            BackendUnavailable: the backend does not work on this machine.
            OverloadedError: the queue is full, or the system cannot start a thread.
        """
        own, given = _split(options)
        request = _make_request(source, given)
        return self._submit(source, lambda: request, request.backend, **own)

    @show_options(SubmitOptions)
    def load(self, source: SourceLike, **options: Unpack[SubmitOptions]) -> Frames:
        """Decode the frames of one source. Arguments as for :meth:`submit`, errors as for :func:`telecine.load`."""
        return _wait(self._submit_unchecked(source, options))

    def run_request(self, request: Request, *, caller: Hashable = None, timeout: Timeout = None) -> Frames:
        """Run a request that the caller has made. Errors as for :func:`telecine.load`."""
        return _wait(self._submit(request.source, lambda: request, request.backend, caller=caller, timeout=timeout))

    @show_options(SubmitOptions)
    async def aload(self, source: SourceLike, **options: Unpack[SubmitOptions]) -> Frames:
        """Decode the frames of one source without blocking the event loop. Cancelling the task stops the decode.

        Arguments as for :meth:`submit`, errors as for :func:`telecine.load`.
        """
        import asyncio

        return await asyncio.wrap_future(self._submit_unchecked(source, options))

    def _submit_unchecked(self, source: SourceLike, options: SubmitOptions) -> PoolFuture:
        """Submit a request whose options are checked in the thread that decodes, which may import a backend."""
        own, given = _split(options)
        return self._submit(source, partial(Request.of, source, **given), given.get("backend"), **own)

    def _submit(
        self, source: SourceLike, make_request: Callable[[], Request], backend: object, **own: Any
    ) -> PoolFuture:
        workers = self._workers
        job = Job(workers.resources, source, make_request, backend, **own)
        future = PoolFuture()
        workers.submit(job, future)
        future.add_done_callback(lambda done: workers.cancel(job) if done.cancelled() else None)
        return future

    @overload
    def map(
        self, sources: Iterable[SourceLike], *, return_errors: Literal[False] = False, **options: Unpack[MapOptions]
    ) -> Iterator[Frames]: ...

    @overload
    def map(
        self, sources: Iterable[SourceLike], *, return_errors: bool, **options: Unpack[MapOptions]
    ) -> Iterator[Frames | TelecineError]: ...

    @show_options(MapOptions)
    def map(
        self, sources: Iterable[SourceLike], *, return_errors: bool = False, **options: Unpack[MapOptions]
    ) -> Iterator[Frames | TelecineError]:
        """Yield the frames of many sources, in order.

        Args:
            sources: taken from as they are needed.
            return_errors: True to yield the error of a source instead of raising it.
            ahead: requests submitted before their frames are taken; each holds its frames in memory. Default: two for
                each core, and two more.
            caller: as for :meth:`submit`. By default every call of this method is a caller of its own.
            timeout: seconds for each request from its submission on; or a :class:`telecine.Deadline` for all.
            **options: options of :func:`telecine.load`, for all sources.

        Raises:
            OptionsError: at once if an argument is wrong, or ``sources`` is a single one.
            BackendUnavailable: at once if the backend does not work on this machine.
            TelecineError: when the turn of its source comes, unless errors are returned. It ends the iteration.
        """
        if isinstance(sources, str | bytes | bytearray | memoryview | os.PathLike):
            raise OptionsError(f"sources is a {type(sources).__name__}; a single source goes into a list")
        given: dict[str, Any] = {**options}
        caller, timeout, ahead = (given.pop(name, None) for name in ("caller", "timeout", "ahead"))
        max_pending = check_count("ahead", 2 * self._workers.config.cores + 2 if ahead is None else ahead)
        with suppress(LimitError, OverloadedError):  # there may be memory again later
            _make_request(b"", given)
        submit = partial(self.submit, caller=object() if caller is None else caller, timeout=timeout, **given)
        return self._map_in_order(sources, max_pending, return_errors, submit)

    def _map_in_order(
        self, sources: Iterable[SourceLike], max_pending: int, return_errors: bool, submit: Callable[..., PoolFuture]
    ) -> Iterator[Frames | TelecineError]:
        pending: deque[PoolFuture] = deque()
        try:
            for source in sources:
                while len(pending) >= max_pending:
                    yield _wait_or_error(pending.popleft(), return_errors)
                pending.append(self._submit_when_possible(partial(submit, source)))
            while pending:
                yield _wait_or_error(pending.popleft(), return_errors)
        finally:
            for future in pending:
                future.cancel()

    def _submit_when_possible(self, submit: Callable[[], PoolFuture]) -> PoolFuture:
        while True:
            self._workers.wait_for_queue()
            try:
                return submit()
            except QueueFullError:
                continue  # another thread was faster
            except TelecineError as error:
                future = PoolFuture()  # the error is raised when the turn of its source comes
                future.finish(None, error)
                return future

    def status(self) -> PoolStatus:
        """Return the state of the pool."""
        return self._workers.status()

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more requests, and wait until the running ones have ended. May be called twice.

        Args:
            cancel: True to cancel all requests. Their callers get :class:`telecine.Cancelled`.
        """
        self._workers.close(cancel)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)

    def gauges(self) -> Mapping[str, float]:
        """Return the current values of the metrics that describe this pool."""
        status = self.status()
        return {
            "telecine_threads_stuck": status.stuck,
            "telecine_requests_queued": status.queued,
            "telecine_requests_running": status.running,
            "telecine_memory_leased_bytes": status.memory_leased,
            "telecine_vram_leased_bytes": status.vram_leased,
            "telecine_index_cache_bytes": self._workers.resources.cache.nbytes,
        }

    def _reset_in_child(self) -> None:
        """Start anew in a forked child: its parent's threads are not there, and may have held the locks."""
        before = self._workers
        for future in list(before.jobs.values()):
            future.finish_in_child()
        self._workers = Workers(before.config)
        self._workers.closed = before.closed
        METRICS.add_gauges(self)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that the pool itself takes, and those of :func:`telecine.load`."""
    own = {name: options[name] for name in ("caller", "timeout", "cache_key") if name in options}
    return own, {name: value for name, value in options.items() if name not in own}


def _make_request(source: SourceLike, options: dict[str, Any]) -> Request:
    try:
        return Request.of(source, **options)
    except TelecineError:
        raise
    except Exception as error:
        raise convert_error(error, backend_label(options.get("backend"), search_plugins=True)) from error


def _wait(future: PoolFuture) -> Frames:
    try:
        return future.result()
    finally:
        future.cancel()  # has an effect only if the wait was interrupted


def _wait_or_error(future: PoolFuture, return_errors: bool) -> Frames | TelecineError:
    try:
        return _wait(future)
    except TelecineError as error:
        if return_errors:
            return error
        raise


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_default_lock = threading.Lock()


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    METRICS.reset()
    for pool in list(_pools):
        pool._reset_in_child()


@atexit.register
def _at_exit() -> None:
    # threads that decode while the interpreter shuts down crash it
    for pool in list(_pools):
        pool.close(cancel=True)


os.register_at_fork(after_in_child=_after_fork)
