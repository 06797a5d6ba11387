"""One request in a pool: its deadline, and the cores, memory and index that it gets."""

from __future__ import annotations

import io
import os
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from telecine.backends.base import Backend, DecodeRequest
from telecine.backends.registry import BUILT_IN, backend_names, get_backend
from telecine.deadline import Deadline, ForwardingDeadline, Timeout
from telecine.errors import Cancelled, DeadlineError, OptionsError, OverloadedError, TelecineError
from telecine.frames import Frames
from telecine.limits import Limits
from telecine.metrics import METRICS, RequestSpan
from telecine.pipeline import IndexAndInfo, RequestHooks, StageTimer, run_request
from telecine.pool.config import PoolConfig
from telecine.pool.index_cache import IndexCache, SourceIdentity
from telecine.pool.memory_budget import Lease, MemoryBudget, estimate_memory, wait_until
from telecine.pool.scheduler import Scheduler, Task
from telecine.request import Request
from telecine.source.source import Source, video_of_row

__all__ = ["Job", "SharedResources", "backend_label", "convert_error"]

_MAX_COPY_BYTES = 4 << 20
"""Bytes of a fetched source that are held in memory; a larger source is a mapped file."""
_UNKNOWN_SIZE = 4 << 20
"""Assumed bytes of a source whose size is not known before it is read."""


class SharedResources:
    """Cores, memory and cached indexes that the requests of one pool share."""

    def __init__(self, config: PoolConfig, can_start: Callable[[], bool]) -> None:
        self.config = config
        self.lock = threading.RLock()
        """Lock of the scheduler and of the pool."""
        self.cores_granted = threading.Condition(self.lock)
        self.scheduler = Scheduler(config.cores, can_start)
        self.memory = MemoryBudget(config.memory)
        self.vram = None if config.vram is None else MemoryBudget(config.vram, "GPU memory")
        self.cache = IndexCache(config.cache)


class _YieldingDeadline(ForwardingDeadline):
    """The caller's deadline. Its checks also yield the cores of the job if the scheduler asks for them."""

    def __init__(self, current: Deadline, job: Job) -> None:
        super().__init__(current)
        self._job = job

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        super().check(doing, done, total)
        job = self._job
        job.doing = doing
        if job.task.is_decoding and total:
            job.task.fraction_done = done / total
        # a library may call this from a thread of its own, but only the thread of the job can wait for cores
        if job.task.must_yield and threading.get_ident() == job.thread_id:
            job.wait_for_cores()


class Job(RequestHooks):
    """One request in a pool.

    ``make_request`` is called in the thread of the job, as importing a backend takes seconds. ``backend`` is the
    caller's value of the option; it may be anything.
    """

    def __init__(
        self,
        resources: SharedResources,
        source: Any,
        make_request: Callable[[], Request],
        backend: object,
        *,
        timeout: Timeout = None,
        caller: Hashable = None,
        cache_key: Hashable = None,
    ) -> None:
        for name, value in (("caller", caller), ("cache_key", cache_key)):
            try:
                hash(value)
            except TypeError:
                kind = type(value).__name__
                raise OptionsError(f"{name} is a {kind}; it must be hashable: a string, a number") from None
        self._resources = resources
        self._make_request = make_request
        self._backend_option = backend
        self.backend = backend_label(backend, search_plugins=False)
        """Name of the backend in messages and metrics."""
        self.deadline = _YieldingDeadline(Deadline.of(timeout), self)
        if isinstance(source, Mapping):
            with suppress(OptionsError):  # opening the source reports it
                source = video_of_row(source)
        self._source = source
        self._identity = SourceIdentity(source, cache_key, resources.config.hash_content)
        self.size = _estimate_size(source)
        """Bytes of the source; estimated until it is open."""
        self.task = Task(caller)
        self.span = RequestSpan(self.backend)
        self.must_fetch = _must_fetch(source)
        """True if opening the source may take long. That needs a thread, but no core."""
        self.submitted = time.monotonic()
        self.thread_id: int | None = None
        self.doing = "waiting in the queue"
        """Current step, for messages."""
        self.overdue_since: float | None = None
        """Time at which the pool first saw that the job was cancelled or late and still running."""
        self.is_abandoned = False
        self.wait_timer = StageTimer()
        """Seconds without cores, by the stage in which the job waited."""
        self._index_cached = False
        self._stage = "queue"
        self._leases: list[Lease] = []

    def start(self) -> None:
        """Note that the calling thread works on the job from now on."""
        self.thread_id = threading.get_ident()
        self.wait_timer.seconds["queue"] = time.monotonic() - self.submitted
        self.doing = "starting"

    def run(self) -> tuple[Frames | None, BaseException | None]:
        """Run the request in this thread. Returns the frames or the error; never raises."""
        try:
            return self._decode(), None
        except TelecineError as error:
            failure: TelecineError = error
        except BaseException as error:
            # a backend that raises a foreign exception must not end its thread, and the caller must get an error
            failure = convert_error(error, self.backend)
            failure.__cause__ = error
        _clear_tracebacks(failure)
        return None, failure

    def _decode(self) -> Frames:
        self.backend = backend_label(self._backend_option, search_plugins=True)
        request = self._make_request()
        self.backend = backend_label(request.backend, search_plugins=True)
        frames = run_request(request, self.deadline, self)
        report, waited = frames.report, self.wait_timer.seconds
        METRICS.add_gauges(get_backend(report.backend))
        seconds = {stage: max(0.0, value - waited.get(stage, 0.0)) for stage, value in report.seconds.items()}
        seconds["queue"] = sum(waited.values())
        return replace(frames, report=replace(report, seconds=seconds, index_cached=self._index_cached))

    def release_source(self) -> None:
        """Drop the references to the source, after the job has ended."""
        del self._source, self._make_request, self._identity

    def abandon(self) -> None:
        """Give the job up: count the memory that it holds as lost until its thread comes back."""
        self.is_abandoned = True
        for lease in self._leases:
            lease.abandon()

    def external_error(self) -> TelecineError:
        """Build the error for a job that the pool ends because its deadline passed or it was cancelled."""
        if self.deadline.cancelled:
            return Cancelled(f"the request was cancelled while {self.doing}")
        stuck = f", and {self.backend} did not return" if self.is_abandoned else ""
        return DeadlineError(f"the timeout of {self.deadline.current.seconds:g} s passed while {self.doing}{stuck}")

    # cores

    def wait_for_cores(self) -> None:
        """Queue for cores, or give them to other requests if the scheduler asks for them; wait to get them (back)."""
        scheduler, task = self._resources.scheduler, self.task
        with self.wait_timer.measure(self._stage):
            with self._resources.lock:
                if task.must_yield:
                    scheduler.yield_cores(task)
                elif task not in scheduler:
                    task.cores_wanted, task.started = 1, True
                    scheduler.add(task)
            check = partial(self.deadline.check, "waiting for a core")
            wait_until(self._resources.cores_granted, lambda: task.cores, check)

    # hooks of the pipeline

    @contextmanager
    def hold_cpu_slot(self, source: Source) -> Iterator[None]:
        """See :class:`telecine.pipeline.RequestHooks`."""
        self.size = source.size
        self.wait_for_cores()
        self._stage = "index"
        yield
        # the pool releases the cores when the thread of this job can take the next one

    def get_index(self, source: Source, limits: Limits, read: Callable[[], IndexAndInfo]) -> IndexAndInfo:
        """See :class:`telecine.pipeline.RequestHooks`."""
        cache = self._resources.cache
        key = self._identity.key(source, limits, self.deadline) if cache.capacity else None
        if key is None:
            return read()
        found = cache.get(key)
        self._index_cached = found is not None
        METRICS.count("telecine_index_cache", 1, "hit" if self._index_cached else "miss")
        if found is None:
            found = read()
            if self._identity.is_unchanged():
                cache.put(key, *found)
        return found

    @contextmanager
    def reserve_memory(self, decode: DecodeRequest, backend: Backend) -> Iterator[DecodeRequest]:
        """See :class:`telecine.pipeline.RequestHooks`."""
        shared, threads = self._resources, decode.options.get("threads")
        max_cores = threads if isinstance(threads, int) and threads > 0 else None
        with shared.lock:
            cores = shared.scheduler.start_decode(self.task, max_cores)
        copied = min(decode.source.size, _MAX_COPY_BYTES) if self.must_fetch else 0
        if isinstance(self._source, str) and self._source.startswith("data:"):
            copied = decode.source.size
        cost = estimate_memory(decode, backend, cores, copied)
        on_gpu = not backend.decodes_on_cpu(decode.device)
        with ExitStack() as leases:
            lease = None if on_gpu or cost.device else shared.memory.try_lease(cost.host)
            if lease is not None:
                self._leases.append(leases.enter_context(lease))
            else:
                with shared.lock:
                    shared.scheduler.remove(self.task)
                with self.wait_timer.measure(self._stage):
                    self._lease(leases, shared.memory, cost.host)
                    if shared.vram is not None and cost.device:
                        self._lease(leases, shared.vram, cost.device)
                    if shared.config.lease_vram is not None and cost.device:
                        leases.enter_context(shared.config.lease_vram(cost.device, decode.device))
                if on_gpu:
                    cores = 1  # for a decode that falls back to the CPU
                else:
                    self.wait_for_cores()
                    with shared.lock:
                        cores = shared.scheduler.start_decode(self.task, cores)
            self._stage, self.doing = "decode", "decoding"
            yield replace(decode, cores=cores)

    def _lease(self, leases: ExitStack, budget: MemoryBudget, nbytes: int) -> None:
        lease = budget.lease(nbytes, lambda: self.deadline.check(f"waiting for {budget.name}"))
        self._leases.append(leases.enter_context(lease))


def convert_error(error: BaseException, backend: str) -> TelecineError:
    """Convert an exception that is not of this package. Its text is not quoted: it may contain parts of the input."""
    if isinstance(error, MemoryError):
        return OverloadedError("there was not enough memory for the request; ask for fewer frames or a smaller size")
    return TelecineError(f"the request failed in {backend} with {type(error).__name__}")


def _clear_tracebacks(failure: BaseException) -> None:
    """Clear the local variables of the tracebacks: a caller that keeps the error would keep the frames as well."""
    seen: set[int] = set()
    link: BaseException | None = failure
    while link is not None and id(link) not in seen:  # an error may be its own cause
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def backend_label(backend: object, search_plugins: bool) -> str:
    """Return the name of a backend for metrics, spans and messages; "unknown" for a value that is no such name.

    ``search_plugins`` includes the backends of other packages. To find them, files of every installed package are read,
    for which an event loop has no time.
    """
    if backend is None:
        return "auto"
    if not isinstance(backend, str):
        return "unknown"
    is_known = backend == "auto" or backend in BUILT_IN or (search_plugins and backend in backend_names())
    return backend if is_known else "unknown"


def _must_fetch(source: Any) -> bool:
    if isinstance(source, str):
        return source.lstrip()[:8].lower().startswith(("http://", "https://"))
    if isinstance(source, os.PathLike | io.BytesIO):
        return False
    return callable(getattr(source, "read", None)) or callable(getattr(source, "open", None))


def _estimate_size(source: Any) -> int:
    """Return the bytes of a source as far as they are known without opening it."""
    try:
        if isinstance(source, str) and source.startswith("data:"):
            return len(source)
        return os.stat(source).st_size if isinstance(source, str | os.PathLike) else memoryview(source).nbytes
    except (OSError, ValueError, TypeError, BufferError):
        return _UNKNOWN_SIZE  # opening the source reports what is wrong with it
