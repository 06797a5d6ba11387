"""The queue and the threads of a pool, and the watchdog over both."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from telecine.errors import Cancelled, OptionsError, OverloadedError, TelecineError
from telecine.frames import Frames
from telecine.metrics import METRICS
from telecine.pool.config import PoolConfig
from telecine.pool.job import Job, SharedResources

__all__ = ["PoolFuture", "PoolStatus", "QueueFullError", "Workers"]

_CHECK_SECONDS = 0.05
"""Seconds between two checks of deadlines and of the scheduler."""
_GRACE_SECONDS = 0.5
"""Seconds that a request may take to notice its deadline or its cancellation before its thread is abandoned."""
_IDLE_SECONDS = 10.0
"""Seconds after which a thread without work ends."""
_MAX_CALLBACK_SECONDS = 0.5
"""Seconds that closing waits for the callbacks of futures whose requests have ended."""
_LEARNING_RATE = 0.1
"""Weight of the last request in the estimated run time per byte."""

_log = logging.getLogger("telecine.pool")


class PoolFuture(Future[Frames]):
    """The frames of a request in a pool, as a :class:`concurrent.futures.Future`.

    ``result(timeout)`` waits for the frames and raises the error of the request, the same as :func:`telecine.load`
    raises. Its timeout only ends the wait, with :class:`TimeoutError`; the request continues. To bound the request
    itself, pass ``timeout`` to :meth:`telecine.Pool.submit`: then ``result()`` raises :class:`telecine.DeadlineError`.

    ``cancel()`` works until the result is there, also while the request is being decoded, unlike the futures of the
    standard library. The decode stops before the next packet. Afterwards ``result()`` raises
    :class:`concurrent.futures.CancelledError`.

    ``add_done_callback(function)`` calls ``function(future)`` in the thread that decoded. It may take its time: another
    thread takes over the next request.
    """

    def finish(self, frames: Frames | None, error: BaseException | None) -> None:
        """Set the result or the error, unless the future was cancelled. Called by the pool."""
        if self.set_running_or_notify_cancel():
            if error is None:
                self.set_result(frames)  # type: ignore[arg-type]  # there are frames if there is no error
            else:
                self.set_exception(error)

    def finish_in_child(self) -> None:
        """End the future in a forked child, where no thread works on it and another thread may have held its lock."""
        self._condition = threading.Condition()
        self._done_callbacks: list[Any] = []
        if not self.done():
            self.set_exception(Cancelled("the request belongs to the process that forked this one; ask again here"))


@dataclass(frozen=True)
class PoolStatus:
    """The state of a pool."""

    queued: int
    """Requests that have not started."""
    running: int
    """Requests that have started."""
    threads: int
    """Threads that can work, busy or idle."""
    abandoned: int
    """Threads given up so far because a library did not return."""
    stuck: int
    """Abandoned threads that have not come back."""
    memory_leased: int
    """Bytes of host memory that requests hold, stuck ones included."""
    vram_leased: int
    """Bytes of GPU memory that requests hold, stuck ones included."""
    indexes_cached: int
    """Videos whose packet index is cached."""


class QueueFullError(OverloadedError):
    """The queue of the pool is full; the same request may succeed later."""


class Workers:
    """Queue, threads and watchdog of a pool: everything that does not survive a fork. Thread-safe.

    A job is queued first. It starts when the scheduler grants it a core or, if its source must be fetched, when a
    thread is free. It ends once: by its thread, by the watchdog, or by the caller who cancels it.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.resources = SharedResources(config, can_start=lambda: self._can_start(must_fetch=False))
        self.closed = False
        self.abandoned = 0
        """Threads given up so far."""
        self.stuck = 0
        """Abandoned threads that have not come back."""
        self.jobs: dict[Job, PoolFuture] = {}
        """All jobs that have not ended."""
        self.queued: dict[Job, None] = {}
        """The jobs that have not started."""
        self.threads: dict[threading.Thread, Job | None] = {}
        """Threads that can work, each with its job; None if it has none, or has just finished it."""
        self.lock = self.resources.lock
        self._scheduler = self.resources.scheduler
        self._work_ready, self._job_ended = (threading.Condition(self.lock) for _ in range(2))
        self._ready: deque[Job] = deque()
        """Started jobs that no thread has taken yet."""
        self._first_ready: Job | None = None
        self._running: Counter[bool] = Counter()
        """Number of started jobs, by ``must_fetch``."""
        self._watchdog: threading.Thread | None = None
        self._seconds_per_byte: float | None = None

    def submit(self, job: Job, future: PoolFuture) -> None:
        """Queue a job, and start it if that is possible.

        Raises:
            OptionsError: the pool is closed.
            QueueFullError: the queue is full.
            OverloadedError: the system cannot start a thread.
        """
        with self.lock:
            if self.closed:
                raise OptionsError("the pool is closed; make another one")
            if len(self.queued) >= self.config.queue:
                METRICS.count("telecine_refusals")
                raise QueueFullError(f"the pool's queue is full: {self.config.queue} requests wait; try again later")
            if self._watchdog is None:
                self._watchdog = self._start_thread(self._run_watchdog)
                if self._watchdog is None:
                    raise OverloadedError("the system has no thread left for the pool; try again later")
            self.jobs[job] = future
            self.queued[job] = None
            if self._seconds_per_byte is not None:
                job.task.expected_seconds = job.size * self._seconds_per_byte
            job.task.on_grant = lambda: self._on_cores_granted(job)
            if not job.must_fetch:
                self._scheduler.add(job.task)
            self._start_fetches()

    def cancel(self, job: Job) -> None:
        """Cancel a job: end it now if it is queued, else at its next step."""
        job.deadline.cancel()
        if job in self.queued:
            self._end(job, None, job.external_error())

    def wait_for_queue(self) -> None:
        """Block until the queue is not full."""
        with self.lock:
            while len(self.queued) >= self.config.queue and not self.closed:
                self._job_ended.wait(_CHECK_SECONDS)

    def close(self, cancel: bool) -> None:
        """Accept no more jobs, and wait until all have ended and the threads that ran them as well."""
        with self.lock:
            self.closed = True
            jobs = dict(self.jobs)
        if cancel:
            # the jobs, not their futures: a cancelled future would end the task that awaits it as cancelled
            for job in jobs:
                self.cancel(job)
        with self.lock:
            while self.jobs:
                self._job_ended.wait(_CHECK_SECONDS)
            threads = {*self.threads, *filter(None, [self._watchdog])} - {threading.current_thread()}
            self._work_ready.notify_all()
        for thread in threads:
            thread.join(_GRACE_SECONDS)
        wait(jobs.values(), _MAX_CALLBACK_SECONDS)

    def status(self) -> PoolStatus:
        """Return the state of the pool."""
        memory, vram = self.resources.memory, self.resources.vram
        with self.lock:
            return PoolStatus(
                queued=len(self.queued),
                running=len(self.jobs) - len(self.queued),
                threads=len(self.threads),
                abandoned=self.abandoned,
                stuck=self.stuck,
                memory_leased=memory.leased + memory.lost,
                vram_leased=0 if vram is None else vram.leased + vram.lost,
                indexes_cached=len(self.resources.cache),
            )

    # start and end of a job

    def _can_start(self, must_fetch: bool) -> bool:
        return self._running[must_fetch] < self.config.workers and not self.resources.memory.waiting

    def _start_fetches(self) -> None:
        """Start queued jobs that must fetch their source, those of the caller with the fewest fetches first."""
        while self._can_start(must_fetch=True):
            fetching = [job.task.caller for job in self.jobs if job.must_fetch and job not in self.queued]
            waiting = [job for job in self.queued if job.must_fetch]
            if not waiting:
                return
            self._start(min(waiting, key=lambda job: fetching.count(job.task.caller)))

    def _on_cores_granted(self, job: Job) -> None:
        """Start a queued job, or wake the thread of a started one. The lock is held."""
        if job in self.queued:
            self._start(job)
        else:
            self.resources.cores_granted.notify_all()

    def _start(self, job: Job) -> None:
        del self.queued[job]
        self._running[job.must_fetch] += 1
        self._ready.append(job)
        self._job_ended.notify_all()
        self._provide_threads()

    def _end(self, job: Job, frames: Frames | None, error: BaseException | None) -> None:
        """End a job and give its cores to others, unless it has ended already."""
        future: PoolFuture | None = None
        try:
            with self.lock:
                future = self.jobs.pop(job, None)
                if future is None:
                    return
                if error is None:
                    self._learn_from(job)
                if job in self.queued:
                    del self.queued[job]
                else:
                    self._running[job.must_fetch] -= 1
                if job in self._ready:
                    self._ready.remove(job)
                self._scheduler.remove(job.task)
                self._scheduler.schedule()
                self._start_fetches()
                self._job_ended.notify_all()
            outcome, waited = "ok" if error is None else type(error).__name__, sum(job.wait_timer.seconds.values())
            METRICS.record_request(outcome, job.backend, time.monotonic() - job.submitted, waited, frames)
            job.span.end(outcome, waited, frames)
        finally:
            if future is not None:  # the caller waits for it, even if the lines above failed
                job.release_source()
                future.finish(frames, error)

    def _learn_from(self, job: Job) -> None:
        """Update the estimated run times from a job that succeeded."""
        pace = job.task.run_seconds / max(1, job.size)
        before = pace if self._seconds_per_byte is None else self._seconds_per_byte
        self._seconds_per_byte = before + _LEARNING_RATE * (pace - before)
        for other in self.jobs:
            other.task.expected_seconds = other.size * self._seconds_per_byte

    # threads

    def _provide_threads(self) -> None:
        """Wake an idle thread for a job that is ready, or start a new one."""
        if sum(job is None for job in self.threads.values()) >= len(self._ready):
            self._work_ready.notify()
        else:
            self._add_thread()

    def _add_thread(self) -> None:
        if (thread := self._start_thread(self._run_jobs)) is not None:
            self.threads[thread] = None

    def _start_thread(self, target: Callable[[], None]) -> threading.Thread | None:
        thread = threading.Thread(target=target, name="telecine-pool", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # the system has no more threads; the existing ones go on, and the watchdog tries again
            _log.warning("no thread could be started")
            return None
        return thread

    def _run_jobs(self) -> None:
        thread = threading.current_thread()
        job: Job | None = None
        try:
            while (job := self._next_job(thread)) is not None:
                frames, error = job.run()
                if not self._finish(thread, job):
                    return
                self._end(job, frames, error)
                frames = error = job = None
        except BaseException as failure:  # of the pool's own code, or raised in the thread from outside
            _log.exception("a thread of the pool ended")
            for lost in filter(None, (job, self.threads.get(thread))):
                reason = type(failure).__name__
                self._end(lost, None, TelecineError(f"the thread of the request was ended by {reason}"))
        finally:
            with self.lock:
                if thread in self.threads:
                    del self.threads[thread]
                else:
                    self.stuck -= 1
                self._provide_threads()

    def _next_job(self, thread: threading.Thread) -> Job | None:
        """Wait for a job that is ready; None if there was none for a while, or the pool is closed."""
        with self.lock:
            self._work_ready.wait_for(lambda: self._ready or (self.closed and not self.jobs), _IDLE_SECONDS)
            if not self._ready:
                return None
            job = self.threads[thread] = self._ready[0]
            self._ready.popleft()
            job.start()
            return job

    def _finish(self, thread: threading.Thread, job: Job) -> bool:
        """Mark a thread as idle again. Returns False if it was abandoned meanwhile."""
        with self.lock:
            if thread not in self.threads:
                self._scheduler.remove(job.task)  # the job ended long ago, but may have asked for cores since
                return False
            # before the job ends: its cores then go to another job, which this thread can run
            self.threads[thread] = None
            return True

    # watchdog

    def _run_watchdog(self) -> None:
        try:
            idle_since = time.monotonic()
            while True:
                with self.lock:
                    now = time.monotonic()
                    if self.jobs:
                        idle_since = now
                    elif self.closed or now - idle_since > _IDLE_SECONDS:
                        self._watchdog = None  # before the lock is released, or the next job would count on this thread
                        return
                    late = self._check(now)
                for job in late:
                    end = partial(self._end, job, None, job.external_error())
                    # in a thread of its own: a callback of the future must not block the watchdog
                    if self._start_thread(end) is None:
                        end()
                time.sleep(_CHECK_SECONDS)
        except BaseException:
            _log.exception("the watchdog of a pool ended; another one starts")
            time.sleep(_CHECK_SECONDS)
            with self.lock:
                self._watchdog = self._start_thread(self._run_watchdog)

    def _check(self, now: float) -> list[Job]:
        """Run the scheduler, and return the jobs that must be ended from outside."""
        self._scheduler.schedule()
        self._start_fetches()
        first = self._ready[0] if self._ready else None
        if first is not None and first is self._first_ready:
            # a callback of the last job may keep the thread, or the system had no thread left
            self._add_thread()
        self._first_ready = first
        late = [job for job in self.jobs if self._must_end(job, now)]
        for job in late:
            if job not in self.queued:
                self._abandon(job)
        return late

    def _must_end(self, job: Job, now: float) -> bool:
        """Return True if a job is late or cancelled, and does not end by itself."""
        if not job.deadline.cancelled and job.deadline.remaining() != 0:
            return False
        if job in self.queued:
            return True
        job.overdue_since = now if job.overdue_since is None else job.overdue_since
        return now - job.overdue_since > _GRACE_SECONDS

    def _abandon(self, job: Job) -> None:
        """Give up the thread of a job that does not return."""
        thread = next((thread for thread, current in self.threads.items() if current is job), None)
        if thread is None:
            return  # no thread has taken it yet, or it has just finished
        _log.warning("%s does not return while %s; its thread is abandoned", job.backend, job.doing)
        job.abandon()
        del self.threads[thread]
        self.abandoned += 1
        self.stuck += 1
        METRICS.count("telecine_threads_abandoned")
