"""The threads of a pool, its queue, and the watch over both."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from telecine.errors import Cancelled, LimitError, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.metrics import METRICS
from telecine.pool.config import Means
from telecine.pool.index_cache import IndexCache
from telecine.pool.job import Job, PoolFuture
from telecine.pool.memory_budget import Memory
from telecine.pool.outcome import outcome, verdict
from telecine.pool.scheduler import Turns

__all__ = ["Crew", "QueueFull"]

_TICK = 0.05
"""Seconds between two looks at deadlines and turns."""
_GRACE = 0.5
"""Seconds that a request may take to notice that its time is up before its thread is written off."""
_GRACE_WITHDRAWN = 2.0
"""The same where it was withdrawn: nobody waits for it any more."""
_LINGER = 10.0
"""Seconds that a thread without work stays."""
_UNATTENDED = 0.25
"""Seconds that jobs which may begin wait for a thread before one more is started."""
_SECONDS_PER_BYTE = 100e-9
"""How long a source takes, as a first guess; then by experience."""
_MOST_GUESSED = 2.0
"""Seconds that a source may be thought to take because another one does: it may want far less of it."""
_WEIGHT_OF_LAST = 0.1

_log = logging.getLogger("telecine.pool")


class QueueFull(LimitError):
    """Not the request is too large, the moment is wrong. Inside the pool it is told from other limits by its class."""

    http_status = 503


class Crew:
    """Everything of a pool that does not survive a fork. Thread-safe.

    A job is first queued. It begins when its turn has come or, where its source must be fetched, when there is a
    thread for it. It ends once, by whoever is first: its thread, the watch, or the caller who withdraws it.
    """

    def __init__(self, means: Means) -> None:
        self.means = means
        self.memory = Memory(means.memory)
        self.vram = None if means.vram is None else Memory(means.vram, "GPU memory")
        self.cache = IndexCache(means.cache)
        self.closed = False
        self.written_off = 0
        """Threads given up so far."""
        self.stuck = 0
        """Of these, those that have not come back."""
        self.jobs: dict[Job, PoolFuture] = {}
        self.queued: dict[Job, None] = {}
        self.threads: dict[threading.Thread, Job | None] = {}
        """Those that can work, each with its job; None where it has none, or has done with it."""
        self.lock = threading.RLock()
        self._work, self._turned, self._fewer = (threading.Condition(self.lock) for _ in range(3))
        self._turns = Turns(means.cores, may_begin=lambda: self._may_begin(fetches=False))
        self._ready: deque[Job] = deque()
        self._busy = {True: 0, False: 0}
        self._attended = 0.0  # when a thread last took a job out of `_ready`, or was started to do so
        self._watch: threading.Thread | None = None
        self._seconds_per_byte = _SECONDS_PER_BYTE
        self._finished = 0

    def accept(self, job: Job, future: PoolFuture) -> None:
        """Queue a job, and begin it if that is possible.

        Raises:
            OptionsError: the pool is closed.
            QueueFull: as many requests wait as may.
            LimitError: the system's threads are used up.
        """
        with self.lock:
            if self.closed:
                raise OptionsError("the pool is closed; make another one")
            if len(self.queued) >= self.means.queue:
                METRICS.count("telecine_refusals")
                raise QueueFull(f"the pool's queue is full: {self.means.queue} requests wait; try again later")
            if self._watch is None:
                self._watch = self._start(self._keep_watch)
                if self._watch is None:
                    raise LimitError("the system has no thread left for the pool; try again later")
            self.jobs[job] = future
            self.queued[job] = None
            if not job.fetches:
                self._turns.ask(job.claim)
            self._begin_fetches()

    def wait_for_room(self) -> None:
        """Block until the queue is not full."""
        with self.lock:
            while len(self.queued) >= self.means.queue and not self.closed:
                self._fewer.wait(_TICK)

    def wait_for_end(self) -> None:
        """Block until no job is left, and the threads that did them have gone."""
        with self.lock:
            while self.jobs:
                self._fewer.wait(_TICK)
            threads = {*self.threads, *filter(None, [self._watch])} - {threading.current_thread()}
            self._work.notify_all()
        for thread in threads:
            thread.join(_GRACE)

    # what a job asks for

    def expected_seconds(self, size: int) -> float:
        """How long a request for a source of so many bytes takes, by the experience of this pool."""
        return size * self._seconds_per_byte

    def await_turn(self, job: Job) -> None:
        """Block until a job has its turn."""
        with self.lock:
            if job.claim not in self._turns:
                job.claim.wants, job.claim.begun = 1, True
                self._turns.ask(job.claim)
        self._until_turn(job)

    def pause(self, job: Job) -> None:
        """Give a job's turn to others if that is still wanted, and block until it has its next."""
        with self.lock:
            if job.claim.asked_to_yield:
                self._turns.pause(job.claim)
        self._until_turn(job)

    def _until_turn(self, job: Job) -> None:
        while True:
            with self.lock:
                if not job.claim.cores:
                    self._turned.wait(_TICK)
                if job.claim.cores:
                    return
            job.deadline.check("waiting for its turn")  # it may call the caller's code, which must not hold the lock

    def begin_decode(self, job: Job, most: int | None) -> int:
        """The cores that a job's decode may keep busy."""
        with self.lock:
            return self._turns.begin_decode(job.claim, most)

    def end_turn(self, job: Job) -> None:
        """Give a job's turn back, or its place among those who wait for one."""
        with self.lock:
            self._turns.leave(job.claim)

    def turn_came(self, job: Job) -> None:
        """Begin a job whose turn it is, or wake its thread. The lock is held."""
        if job in self.queued:
            self._begin(job)
        else:
            self._turned.notify_all()

    def withdrawn(self, job: Job) -> None:
        """End a job that was withdrawn before it began; a running one ends by itself."""
        with self.lock:
            waits = job in self.queued
        if waits:
            self._end(job, None, Cancelled(f"the request was cancelled while {job.doing}"))

    # beginning and ending

    def _may_begin(self, fetches: bool) -> bool:
        return self._busy[fetches] < self.means.workers and not self.memory.waiting

    def _begin_fetches(self) -> None:
        while self._may_begin(fetches=True):
            fetching = [job.claim.caller for job in self.jobs if job.fetches and job not in self.queued]
            waiting = [job for job in self.queued if job.fetches]
            if not waiting:
                return
            self._begin(min(waiting, key=lambda job: fetching.count(job.claim.caller)))

    def _begin(self, job: Job) -> None:
        del self.queued[job]
        self._busy[job.fetches] += 1
        if not self._ready:
            self._attended = time.monotonic()
        self._ready.append(job)
        self._fewer.notify_all()
        self._see_to_ready()

    def _see_to_ready(self) -> None:
        """Have a thread for every job that may begin: one that rests, or a new one."""
        if sum(job is None for job in self.threads.values()) >= len(self._ready):
            self._work.notify()
        else:
            self._hire()

    def _hire(self) -> None:
        self._attended = time.monotonic()
        thread = self._start(self._run_jobs)
        if thread is not None:
            self.threads[thread] = None

    def _start(self, target: Callable[[], None]) -> threading.Thread | None:
        thread = threading.Thread(target=target, name="telecine-pool", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # the system has no more threads. Those there are will do; the watch tries again if there are none
            _log.warning("no thread could be started")
            return None
        return thread

    def _end(self, job: Job, frames: Frames | None, error: BaseException | None) -> None:
        """End a job, unless somebody did already."""
        future: PoolFuture | None = None
        try:
            with self.lock:
                future = self.jobs.pop(job, None)
                if future is None:
                    return
                self._let_go(job)
                if error is None:
                    self._learn_from(job)
            name, waited = "ok" if error is None else type(error).__name__, sum(job.waited.values())
            METRICS.ended(name, job.backend, time.monotonic() - job.submitted, waited, frames)
            job.tracing.ended(name, waited, frames, error)
        finally:
            if future is not None:  # somebody waits for it, whatever became of the rest
                job.forget()
                future.settle(frames, error)

    def _let_go(self, job: Job) -> None:
        """Give what a job had to others. The lock is held."""
        if job in self.queued:
            del self.queued[job]
        else:
            self._busy[job.fetches] -= 1
        if job in self._ready:
            self._ready.remove(job)
        self._turns.leave(job.claim)
        self._turns.review()
        self._begin_fetches()
        self._fewer.notify_all()

    def _learn_from(self, job: Job) -> None:
        self._finished += 1
        weight = max(_WEIGHT_OF_LAST, 1 / self._finished)
        self._seconds_per_byte += weight * (job.claim.held / max(1, job.size) - self._seconds_per_byte)
        for other in self.queued:
            other.claim.expected = self.expected_seconds(other.size)

    def _guess_by_the_first(self) -> None:
        """Before any job has ended: where one takes longer than was guessed, those that wait will, too. Otherwise each
        of them would seem to be short, and interrupt the one before."""
        self._turns.account()
        pace = max(((job.claim.held + job.claim.remaining()) / max(1, job.size) for job in self.jobs), default=0.0)
        for job in self.queued:
            job.claim.expected = max(self.expected_seconds(job.size), min(pace * job.size, _MOST_GUESSED))

    # threads

    def _run_jobs(self) -> None:
        thread = threading.current_thread()
        job: Job | None = None
        try:
            while (job := self._next_job(thread)) is not None:
                frames, error = outcome(job)
                if not self._rest(thread, job):
                    return
                self._end(job, frames, error)
                frames = error = job = None
        except BaseException as failure:  # of the pool's own code, or thrown into the thread from outside
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
                self._see_to_ready()

    def _next_job(self, thread: threading.Thread) -> Job | None:
        until = time.monotonic() + _LINGER
        with self.lock:
            while not self._ready:
                if (self.closed and not self.jobs) or time.monotonic() >= until:
                    return None
                self._work.wait(max(0.0, until - time.monotonic()))
            job = self.threads[thread] = self._ready[0]
            self._ready.popleft()
            self._attended = time.monotonic()
            job.begin()
            return job

    def _rest(self, thread: threading.Thread, job: Job) -> bool:
        """Note that a thread has done with its job; whether it was not written off meanwhile."""
        with self.lock:
            if thread not in self.threads:
                self._turns.leave(job.claim)  # it ended long ago, but its thread may have asked for a turn since
                return False
            # before the job ends, and its turn goes to another one: that one is for this thread
            self.threads[thread] = None
            return True

    def _keep_watch(self) -> None:
        try:
            idle_since = time.monotonic()
            while True:
                with self.lock:
                    now = time.monotonic()
                    if self.jobs:
                        idle_since = now
                    elif self.closed or now - idle_since > _LINGER:
                        self._watch = None  # before the lock is let go, or the next job would count on this watch
                        return
                    late = self._look_around(now)
                for job in late:
                    self._end_late(job)
                time.sleep(_TICK)
        except BaseException:
            _log.exception("the watch over a pool ended; another one begins")
            time.sleep(_TICK)
            with self.lock:
                self._watch = self._start(self._keep_watch)

    def _end_late(self, job: Job) -> None:
        late = verdict(job)
        # apart, for the watch must not wait for what the caller does when his future ends
        if self._start(lambda: self._end(job, None, late)) is None:
            self._end(job, None, late)

    def _look_around(self, now: float) -> list[Job]:
        """Hand out turns that became due, and find the jobs that must be ended from outside."""
        if not self._finished:
            self._guess_by_the_first()
        self._turns.review()
        self._begin_fetches()
        if self._ready and now - self._attended > _UNATTENDED:
            # a thread may be kept by what was called when its last job ended, or the system had none left
            self._hire()
        late = [job for job in self.jobs if self._is_over(job, now)]
        for job in late:
            if job not in self.queued:
                self._write_off(job)
        return late

    def _is_over(self, job: Job, now: float) -> bool:
        """Whether the time of a job is up, and it does not end by itself."""
        withdrawn = job.deadline.cancelled
        if not withdrawn and job.deadline.remaining() != 0:
            return False
        if job in self.queued:
            return True
        job.overdue = now if job.overdue is None else job.overdue
        return now - job.overdue > (_GRACE_WITHDRAWN if withdrawn else _GRACE)

    def _write_off(self, job: Job) -> None:
        """Give up the thread of a job that does not come back."""
        thread = next((thread for thread, its in self.threads.items() if its is job), None)
        if thread is None:
            return  # none has taken it yet, or it has just done with it
        _log.warning("%s does not return while %s; its thread is written off", job.backend, job.doing)
        job.write_off()
        del self.threads[thread]
        self.written_off += 1
        self.stuck += 1
        METRICS.count("telecine_threads_written_off")
