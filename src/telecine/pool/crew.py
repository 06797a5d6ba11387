"""The threads of a pool, its queue, and the watch over both."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from telecine.budget import Memory
from telecine.cache import IndexCache
from telecine.errors import Cancelled, DeadlineError, LimitError, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.metrics import METRICS
from telecine.pool.job import Job, PoolFuture
from telecine.pool.turns import Turns

__all__ = ["Crew", "Means"]

_TICK = 0.05
"""Seconds between two looks at deadlines and turns."""
_GRACE = 0.5
"""Seconds that a request may take to notice that its time is up before its thread is written off."""
_GRACE_WITHDRAWN = 2.0
"""The same where it was withdrawn: nobody waits for it any more."""
_LINGER = 10.0
"""Seconds that a thread without work stays."""
_SECONDS_PER_BYTE = 100e-9
"""How long a source takes, as a first guess; then by experience."""
_WEIGHT_OF_LAST = 0.1

_log = logging.getLogger("telecine.pool")


@dataclass(frozen=True)
class Means:
    """What a pool may use."""

    cores: int
    workers: int
    """Requests of a kind that may have begun at once. The kinds: those that wait for data first, and the others."""
    queue: int
    """Requests that may wait to begin."""
    memory: int
    """Bytes that decodes may take together."""
    vram: int | None
    lease_vram: Callable[[int, str], AbstractContextManager[object]] | None
    cache: int


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
        self.threads: set[threading.Thread] = set()
        self.lock = threading.RLock()
        self._work, self._turned, self._fewer = (threading.Condition(self.lock) for _ in range(3))
        self._turns = Turns(means.cores, may_begin=lambda: self._may_begin(fetches=False))
        self._ready: deque[Job] = deque()
        self._busy = {True: 0, False: 0}
        self._resting = 0
        self._watch: threading.Thread | None = None
        self._seconds_per_byte = _SECONDS_PER_BYTE
        self._finished = 0

    def accept(self, job: Job, future: PoolFuture) -> None:
        """Queue a job, and begin it if that is possible.

        Raises:
            OptionsError: the pool is closed.
            LimitError: the queue is full, or the system's threads are used up.
        """
        with self.lock:
            if self.closed:
                raise OptionsError("the pool is closed; make another one")
            if len(self.queued) >= self.means.queue:
                METRICS.count("telecine_refusals")
                refusal = LimitError(f"the pool's queue is full: {self.means.queue} requests wait; try again later")
                refusal.http_status = 503  # not the request is too large, the moment is wrong
                raise refusal
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
        self._ready.append(job)
        self._fewer.notify_all()
        if self._resting >= len(self._ready):
            self._work.notify()
        elif (thread := self._start(self._run_jobs)) is not None:
            self.threads.add(thread)

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
        with self.lock:
            future = self.jobs.pop(job, None)
            if future is None:
                return
            if job in self.queued:
                del self.queued[job]
            else:
                self._busy[job.fetches] -= 1
            if error is None:
                self._finished += 1
                weight = max(_WEIGHT_OF_LAST, 1 / self._finished)
                self._seconds_per_byte += weight * (job.claim.held / max(1, job.size) - self._seconds_per_byte)
            self._turns.leave(job.claim)
            self._turns.review()
            self._begin_fetches()
            self._fewer.notify_all()
        outcome, waited = "ok" if error is None else type(error).__name__, sum(job.waited.values())
        METRICS.ended(outcome, job.backend, time.monotonic() - job.submitted, waited, frames)
        job.tracing.ended(outcome, waited, frames, error)
        job.forget()
        future.settle(frames, error)

    # threads

    def _run_jobs(self) -> None:
        thread, job = threading.current_thread(), None
        try:
            while (job := self._next_job()) is not None:
                frames, error = _outcome(job)
                if job.written_off:
                    return
                self._end(job, frames, error)
                frames = error = job = None
        except BaseException as error:  # of the pool's own code, or thrown into the thread from outside
            _log.exception("a thread of the pool ended")
            if job is not None:
                self._end(job, None, TelecineError(f"the thread of the request was ended by {type(error).__name__}"))
        finally:
            with self.lock:
                self.threads.discard(thread)
                if job is not None and job.written_off:
                    self.stuck -= 1
                elif self._ready and not self._resting and (successor := self._start(self._run_jobs)):
                    self.threads.add(successor)

    def _next_job(self) -> Job | None:
        until = time.monotonic() + _LINGER
        with self.lock:
            while not self._ready:
                if (self.closed and not self.jobs) or time.monotonic() >= until:
                    return None
                self._resting += 1
                try:
                    self._work.wait(max(0.0, until - time.monotonic()))
                finally:
                    self._resting -= 1
            job = self._ready.popleft()
            job.begin()
            return job

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
                    self._end(job, None, _verdict(job))
                time.sleep(_TICK)
        except BaseException:
            with self.lock:
                self._watch = None
            raise

    def _look_around(self, now: float) -> list[Job]:
        """Hand out turns that became due, and find the jobs that must be ended from outside."""
        self._turns.review()
        self._begin_fetches()
        if self._ready and not self.threads and (thread := self._start(self._run_jobs)):
            self.threads.add(thread)
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
        thread = next((t for t in self.threads if t.ident == job.thread), None)
        if thread is None:
            return  # it has not been picked up; it will end at its first step
        _log.warning("%s does not return while %s; its thread is written off", job.backend, job.doing)
        job.write_off()
        self.threads.discard(thread)
        self.written_off += 1
        self.stuck += 1
        METRICS.count("telecine_threads_written_off")


def _outcome(job: Job) -> tuple[Frames | None, BaseException | None]:
    """Do a job, whatever comes of it."""
    try:
        return job.do(), None
    except TelecineError as error:
        failure: TelecineError = error
    except MemoryError as error:
        failure = LimitError("there was not enough memory for the request; ask for fewer frames or a smaller size")
        failure.__cause__ = error
    except BaseException as error:
        # a backend may raise only our errors; one that does not must not take its thread along, nor whoever waits
        failure = TelecineError(f"the request failed in {job.backend} with {type(error).__name__}")
        failure.__cause__ = error
    link: BaseException | None = failure
    while link is not None:
        # a caller who keeps the error would keep the frames of the decode as well
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return None, failure


def _verdict(job: Job) -> TelecineError:
    if job.deadline.cancelled:
        return Cancelled(f"the request was cancelled while {job.doing}")
    stuck = f", and {job.backend} did not return" if job.written_off else ""
    return DeadlineError(f"the timeout of {job.deadline.seconds:g} s passed while {job.doing}{stuck}")
