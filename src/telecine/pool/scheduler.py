"""Shares the processor cores among the requests of a pool.

A request is queued once its source is open. It gets one core to read the packet index and, when it starts to decode,
the cores that are free then. A running request can be asked to yield: it gives its cores back between two packets and
continues later with the same decoder. The order:

1. The caller that has used the least of the machine goes first. Differences below half a second do not count.
2. Among these, the request with the least work left goes first. It preempts a running request only if that one has
   clearly more work left, so equal requests run one after the other.
3. The oldest request of a caller runs out of order for a quarter of a second after each three quarters of a second of
   waiting, so a long request always progresses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["Scheduler", "Task"]

_TIME_SLICE = 0.25
"""Seconds that a task runs out of order."""
_MAX_WAIT = 3 * _TIME_SLICE
"""Seconds after which a waiting task may run out of order."""
_FAIRNESS_SECONDS = 2 * _TIME_SLICE
"""Seconds of the whole machine that callers may differ by. With less, every short request of a busy caller would wait
for a moment of another caller's long one."""
_FINISH_SECONDS = 2.0
"""A running task with less work left than this, and less than another caller's task, is finished first."""
_SHORTER_FACTOR = 4
"""A task preempts another one that has more than this many times its work left."""
_MIN_FRACTION = 0.1
"""Fraction of a decode after which its pace predicts the rest; decoders fill their buffers first."""
_MAX_DECODE_CORES = 16
"""Cores for one decode. No decoder here gains from more."""
_MAX_IDLE_CALLERS = 1024
"""Callers without requests whose usage is remembered; a server may be given any number of names."""


@dataclass(eq=False)
class Task:
    """One request as the scheduler sees it."""

    caller: Hashable
    expected_seconds: float = 2.0
    """Estimated run time, used until the pace of the decode is known; the default, until a request has ended."""
    on_grant: Callable[[], None] = lambda: None
    """Called with the lock held when the task gets its cores."""
    started: bool = False
    """True if a thread works on the request already."""
    cores: int = 0
    """Cores that the task holds; 0 while it waits."""
    cores_wanted: int = 1
    """Cores without which the task cannot continue: its decoder has as many threads."""
    fraction_done: float = 0.0
    """Decoded fraction of the request, from 0 to 1."""
    must_yield: bool = False
    """True if the task is asked to give its cores back."""
    is_decoding: bool = False
    """True if the packet index is complete and the decode has begun."""
    run_seconds: float = 0.0
    """Seconds during which the task held cores."""
    _index_seconds: float = 0.0
    _arrival: int = -1
    _since: float = 0.0
    _protected_until: float = 0.0

    def remaining_seconds(self) -> float:
        """Estimate the seconds of work left."""
        if self.fraction_done >= _MIN_FRACTION:
            return (self.run_seconds - self._index_seconds) * (1 - self.fraction_done) / self.fraction_done
        # a task that ran longer than estimated is assumed to be half done
        return max(self.expected_seconds - self.run_seconds, self.run_seconds)


def _is_clearly_shorter(task: Task, other: Task) -> bool:
    return _SHORTER_FACTOR * task.remaining_seconds() + _TIME_SLICE < other.remaining_seconds()


class Scheduler:
    """Grants cores to tasks. The pool holds its lock around every call.

    ``can_start`` returns True if a request without a thread may start now. ``clock`` returns the time in seconds.
    """

    def __init__(
        self, cores: int, can_start: Callable[[], bool] = lambda: True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cores = cores
        self._can_start = can_start
        self._clock = clock
        self.waiting: list[Task] = []
        """Tasks that wait for cores."""
        self.running: list[Task] = []
        """Tasks that hold cores."""
        self._used: dict[Hashable, float] = {}  # seconds of the whole machine, by caller
        self._least_used = 0.0
        self._arrivals = 0
        self._next_out_of_order = 0.0

    @property
    def free_cores(self) -> int:
        """Cores that no task holds; negative for a moment while a task is about to yield."""
        return self.cores - sum(task.cores for task in self.running)

    def __contains__(self, task: Task) -> bool:
        return task in self.running or task in self.waiting

    def add(self, task: Task) -> None:
        """Queue a task. ``task.cores`` is set and ``on_grant`` called when it gets cores, perhaps at once."""
        now = self._update_usage()
        if task._arrival < 0:
            task._arrival = self._arrivals
            self._arrivals += 1
        active = {other.caller for other in (*self.waiting, *self.running)}
        if task.caller not in active:
            if not active or len(self._used) > _MAX_IDLE_CALLERS:
                self._used = {name: self._used[name] for name in active}
            # a caller that was idle is put ahead by two steps of fairness at most
            least = min((self._used[name] for name in active), default=0.0)
            self._used[task.caller] = max(self._used.get(task.caller, 0.0), least - 2 * _FAIRNESS_SECONDS)
        task._since = now
        task.cores = 0
        self.waiting.append(task)
        self.schedule()

    def remove(self, task: Task) -> None:
        """Take a task's cores back, or take it out of the queue. A second call does nothing."""
        self._update_usage()
        if task in self:
            (self.running if task in self.running else self.waiting).remove(task)
            task.cores, task.must_yield = 0, False
            self.schedule()

    def yield_cores(self, task: Task) -> None:
        """Take a running task's cores back and queue it again."""
        task.cores_wanted = task.cores
        self._update_usage()
        self.running.remove(task)
        task.must_yield = False
        self.add(task)

    def start_decode(self, task: Task, max_cores: int | None = None) -> int:
        """Give a running task its share of the free cores, at most ``max_cores``; return the number that it has now."""
        now = self._update_usage()
        if not task.is_decoding:
            task.is_decoding, task._index_seconds = True, task.run_seconds
        max_cores = min(self.cores, _MAX_DECODE_CORES if max_cores is None else max_cores)
        # tasks that still read packets hold one core each and ask for their share soon, or yield within milliseconds
        indexing = [other for other in self.running if not other.is_decoding]
        yielding = 0
        for other in indexing:
            if task.cores < max_cores and not other.must_yield and self._can_preempt(task, other, False, now):
                other.must_yield = True
                yielding += 1
        share = (self.free_cores + yielding) // (1 + len(indexing) - yielding)
        task.cores = max(1, min(task.cores + max(0, share), max_cores))
        self.schedule()
        return task.cores

    def schedule(self) -> None:
        """Grant free cores, and ask tasks to yield that others should preempt. Also called periodically."""
        now = self._update_usage()
        self._least_used = min((self._used[task.caller] for task in (*self.waiting, *self.running)), default=0.0)
        while True:
            task, out_of_order = self._next_task(now)
            if task is None:
                return
            if task.cores_wanted > self.free_cores:
                self._preempt_for(task, out_of_order, now)
                # the next task waits for all its cores, but a core must not idle for long meanwhile
                if self.free_cores < 1 or now - task._since < _MAX_WAIT:
                    return
            if out_of_order:
                task._protected_until = now + _TIME_SLICE
                self._next_out_of_order = now + _TIME_SLICE + _MAX_WAIT
            self.waiting.remove(task)
            task.cores, task._since, task.started = min(task.cores_wanted, self.free_cores), now, True
            self.running.append(task)
            task.on_grant()

    def _next_task(self, now: float) -> tuple[Task | None, bool]:
        """Return the task to run next, and True if it runs out of order."""
        ready = self.waiting
        if not all(task.started for task in ready) and not self._can_start():
            ready = [task for task in ready if task.started]
        if not ready:
            return None, False
        best = min(ready, key=lambda task: (self._excess_usage(task.caller), task.remaining_seconds(), task._arrival))
        if now >= self._next_out_of_order:
            oldest = min((task for task in ready if task.caller == best.caller), key=lambda task: task._arrival)
            if oldest is not best and now - oldest._since >= _MAX_WAIT:
                return oldest, True
        return best, False

    def _excess_usage(self, caller: Hashable) -> int:
        """Return how much more than the least served caller one has used, in steps of ``_FAIRNESS_SECONDS``."""
        return int((self._used[caller] - self._least_used) / _FAIRNESS_SECONDS)

    def _preempt_for(self, task: Task, out_of_order: bool, now: float) -> None:
        """Ask running tasks to yield until the cores that a task wants will be free."""
        expected = self.free_cores + sum(other.cores for other in self.running if other.must_yield)
        for other in sorted(self.running, key=Task.remaining_seconds, reverse=True):
            if expected >= task.cores_wanted:
                return
            has_used_less = self._excess_usage(other.caller) < self._excess_usage(task.caller)
            if now >= other._protected_until and has_used_less and _is_clearly_shorter(task, other):
                # else the shorter task would preempt it as soon as both callers are even again
                other._protected_until = now + _FAIRNESS_SECONDS
            if not other.must_yield and self._can_preempt(task, other, out_of_order, now):
                other.must_yield = True
                expected += other.cores

    def _can_preempt(self, task: Task, running: Task, out_of_order: bool, now: float) -> bool:
        if now < running._protected_until:
            return False
        if out_of_order and task.caller == running.caller:
            return task._arrival < running._arrival
        difference = self._excess_usage(task.caller) - self._excess_usage(running.caller)
        if difference == 0:
            return _is_clearly_shorter(task, running)
        finish_first = max(_TIME_SLICE, min(task.remaining_seconds(), _FINISH_SECONDS))
        return difference < 0 and running.remaining_seconds() > finish_first

    def _update_usage(self) -> float:
        """Account for the time since the last call, and return the current time."""
        now = self._clock()
        for task in self.running:
            elapsed = now - task._since
            task.run_seconds += elapsed
            self._used[task.caller] += elapsed * task.cores / self.cores
            task._since = now
        return now
