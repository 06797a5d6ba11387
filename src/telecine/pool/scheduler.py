"""Whose turn it is: the cores of the machine, shared among the requests of a pool.

A request asks for a turn once its source is there, gets one core for the packet index, and when it begins to decode
what is free beside that. A running request can be asked to give its turn back; it does so between two packets and goes
on later, with its decoder as it was. Who goes first:

1. Between callers, those within half a second of the one that had the least of the machine. Who was idle saves up no
   more than a second of it.
2. Among these, the request with the least left to do. A running one gives way only to one that is clearly shorter, so
   that equals are done one after the other.
3. A caller's oldest request that was passed over for three quarters of a second goes first for a quarter, once in each
   second: a long one always gets on.

docs/pool.md says what this does to a long clip among short ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

__all__ = ["Claim", "Turns"]

_QUANTUM = 0.25
"""Seconds that a turn out of order lasts."""
_PATIENCE = 3 * _QUANTUM
_CREDIT = 1.0
"""Seconds of the whole machine that a caller who comes back is put ahead of the others at most."""
_SLACK = 0.5
"""Seconds of the whole machine by which callers may differ before that decides who is next, and the least turn that a
long request gets for it. With less, every short request of a caller who never stops would wait for a bit of a long
one."""
_NEARLY_DONE = 2.0
"""Seconds: what has less left than this, and less than another caller's request, is finished first; and so is what has
less left than a quantum."""
_TELLING = 0.1
"""Share of a decode that must be done before its pace says how long the rest takes: decoders fill up first."""
_MOST_CORES = 16
"""Of one decode: no decoder here gains from more."""
_KNOWN_CALLERS = 1024
"""Idle callers that are remembered; a server may be given any number of names."""


@dataclass(eq=False)
class Claim:
    """One request, as seen by the cores."""

    caller: Hashable
    expected: float
    """Seconds it will take, guessed before it has begun."""
    on_turn: Callable[[], None]
    """Called, with the lock held, when it gets its turn."""
    begun: bool = False
    """Whether a thread works on it already."""
    cores: int = 0
    """That it holds; 0 while it waits."""
    fraction: float = 0.0
    """Share of the decode that is done."""
    asked_to_yield: bool = False
    wants: int = 1
    """Cores without which it cannot go on: its decoder has as many threads."""
    decoding: bool = False
    held: float = 0.0
    """Seconds that it had a turn."""
    held_before_decode: float = 0.0
    arrival: int = field(default=-1, init=False)
    since: float = field(default=0.0, init=False)
    """When it began to wait, or to run, or was last accounted for."""
    safe_until: float = field(default=0.0, init=False)

    def remaining(self) -> float:
        """Seconds left to do, as far as one can tell."""
        if self.fraction >= _TELLING:
            return (self.held - self.held_before_decode) * (1 - self.fraction) / self.fraction
        # what has lasted longer than was guessed will last as long again
        return max(self.expected - self.held, self.held)


def _is_clearly_shorter(claim: Claim, other: Claim) -> bool:
    return 4 * claim.remaining() + _QUANTUM < other.remaining()


class Turns:
    """Hands out cores. Every method is called with the pool's lock held.

    Args:
        cores: that all requests together may keep busy.
        may_begin: whether a request without a thread can be begun now.
        clock: seconds.
    """

    def __init__(
        self, cores: int, may_begin: Callable[[], bool] = lambda: True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cores = cores
        self._may_begin = may_begin
        self._clock = clock
        self._waiting: list[Claim] = []
        self._running: list[Claim] = []
        self._served: dict[Hashable, float] = {}
        self._arrivals = 0
        self._next_out_of_order = 0.0
        self._least_served = 0.0

    @property
    def free(self) -> int:
        """Cores that nobody holds; less than 0 for the moment in which somebody steps aside."""
        return self.cores - sum(claim.cores for claim in self._running)

    @property
    def running(self) -> int:
        """Requests that have a turn."""
        return len(self._running)

    def __contains__(self, claim: Claim) -> bool:
        return claim in self._running or claim in self._waiting

    def ask(self, claim: Claim) -> None:
        """Wait for a turn; ``claim.cores`` says when it has come, and ``on_turn`` is called."""
        now = self._clock()
        self._account(now)
        if claim.arrival < 0:
            claim.arrival = self._arrivals
            self._arrivals += 1
        self._welcome(claim.caller)
        claim.since = now
        claim.cores = 0
        self._waiting.append(claim)
        self.review()

    def leave(self, claim: Claim) -> None:
        """Give the turn back, or stop waiting for one. May be called twice."""
        self._account(self._clock())
        if claim in self._running:
            self._running.remove(claim)
        elif claim in self._waiting:
            self._waiting.remove(claim)
        else:
            return
        claim.cores, claim.asked_to_yield = 0, False
        self.review()

    def pause(self, claim: Claim) -> None:
        """Give the turn back for now and wait for the next one."""
        claim.wants = claim.cores
        self._account(self._clock())
        self._running.remove(claim)
        claim.asked_to_yield = False
        self.ask(claim)

    def begin_decode(self, claim: Claim, most: int | None = None) -> int:
        """Give a request that has its turn what is free beside it; its cores from now on.

        Args:
            claim: whose decode begins.
            most: cores that it can use.
        """
        now = self._clock()
        self._account(now)
        if not claim.decoding:
            claim.decoding, claim.held_before_decode = True, claim.held
        most = min(self.cores, _MOST_CORES if most is None else most)
        reading = [other for other in self._running if not other.decoding]
        asked = [other for other in reading if claim.cores < most and self._steps_aside(other, claim, now)]
        # those that still read packets will ask for their share in a moment
        share = (self.free + len(asked)) // (1 + len(reading) - len(asked))
        claim.cores = max(1, min(claim.cores + max(0, share), most))
        self.review()
        return claim.cores

    def _steps_aside(self, other: Claim, claim: Claim, now: float) -> bool:
        """Ask one that reads packets for its core, where it should not have it. It never holds more than one, and reads
        so little at a time that it can count as gone."""
        if other.asked_to_yield or not self._displaces(claim, other, False, now):
            return False
        other.asked_to_yield = True
        return True

    def account(self) -> None:
        """Bring up to date how long each request had its turn."""
        self._account(self._clock())

    def review(self) -> None:
        """Hand out what is free, and ask those for their turn who should not have it. Called now and then as well."""
        now = self._clock()
        self._account(now)
        active = {claim.caller for claim in (*self._waiting, *self._running)}
        self._least_served = min((self._served[caller] for caller in active), default=0.0)
        while True:
            claim, out_of_order = self._next(now)
            if claim is None:
                return
            if claim.wants > self.free:
                self._make_room(claim, out_of_order, now)
                # whoever is next waits for it, or a request with many threads never got on; but not while a core idles
                if self.free < 1 or now - claim.since < _PATIENCE:
                    return
            if out_of_order:
                claim.safe_until = now + _QUANTUM
                self._next_out_of_order = now + _QUANTUM + _PATIENCE
            elif any(_is_clearly_shorter(other, claim) for other in self._waiting):
                claim.safe_until = now + _SLACK
            self._waiting.remove(claim)
            claim.cores, claim.since, claim.begun = min(claim.wants, self.free), now, True
            self._running.append(claim)
            claim.on_turn()

    def _next(self, now: float) -> tuple[Claim | None, bool]:
        """Who is to have the next turn, and whether that is out of order."""
        able = self._able()
        if not able:
            return None, False
        best = min(able, key=self._rank)
        if now >= self._next_out_of_order:
            oldest = min((claim for claim in able if claim.caller == best.caller), key=lambda claim: claim.arrival)
            if oldest is not best and now - oldest.since >= _PATIENCE:
                return oldest, True
        return best, False

    def _able(self) -> list[Claim]:
        """Those who wait and could go on at once."""
        if all(claim.begun for claim in self._waiting) or self._may_begin():
            return self._waiting
        return [claim for claim in self._waiting if claim.begun]

    def _rank(self, claim: Claim) -> tuple[int, float, int]:
        return self._lead(claim.caller), claim.remaining(), claim.arrival

    def _lead(self, caller: Hashable) -> int:
        """By how many times the slack a caller had more of the machine than the one that had least."""
        return int((self._served[caller] - self._least_served) / _SLACK)

    def _make_room(self, claim: Claim, out_of_order: bool, now: float) -> None:
        room = self.free + sum(other.cores for other in self._running if other.asked_to_yield)
        for other in sorted(self._running, key=Claim.remaining, reverse=True):
            if room >= claim.wants:
                return
            if now >= other.safe_until and self._is_owed(other, claim):
                other.safe_until = now + _SLACK
            if not other.asked_to_yield and self._displaces(claim, other, out_of_order, now):
                other.asked_to_yield = True
                room += other.cores

    def _displaces(self, claim: Claim, other: Claim, out_of_order: bool, now: float) -> bool:
        if now < other.safe_until:
            return False
        if out_of_order and claim.caller == other.caller:
            return claim.arrival < other.arrival
        leads = self._lead(claim.caller) - self._lead(other.caller)
        if leads < 0:
            return other.remaining() > max(_QUANTUM, min(claim.remaining(), _NEARLY_DONE))
        return leads == 0 and _is_clearly_shorter(claim, other)

    def _is_owed(self, running: Claim, shorter: Claim) -> bool:
        """Whether a long request runs because its caller had less; without some peace it would soon be interrupted at
        every packet."""
        behind = self._lead(running.caller) < self._lead(shorter.caller)
        return behind and _is_clearly_shorter(shorter, running)

    def _account(self, now: float) -> None:
        for claim in self._running:
            elapsed = now - claim.since
            claim.held += elapsed
            self._served[claim.caller] += elapsed * claim.cores / self.cores
            claim.since = now

    def _welcome(self, caller: Hashable) -> None:
        """Note a caller, with no more credit than who was idle may have."""
        active = {claim.caller for claim in (*self._waiting, *self._running)}
        if caller in active:
            return
        if not active or len(self._served) > _KNOWN_CALLERS:
            self._served = {name: self._served[name] for name in active}
        least = min((self._served[name] for name in active), default=0.0)
        self._served[caller] = max(self._served.get(caller, 0.0), least - _CREDIT)
