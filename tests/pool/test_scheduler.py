"""Whose turn it is, by a clock that the test turns."""

from __future__ import annotations

import random

import pytest

from telecine.pool.scheduler import Claim, Turns


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Desk:
    """Some cores, and requests that work when they have a turn."""

    def __init__(self, cores, may_begin=lambda: True):
        self.clock = Clock()
        self.turns = Turns(cores, may_begin, self.clock)
        self.begun = []

    def ask(self, expected, caller=None):
        claim = Claim(caller, expected, lambda: self.begun.append(claim))
        self.turns.ask(claim)
        return claim

    def decode(self, claim):
        return self.turns.begin_decode(claim)

    def wait(self, seconds):
        """Let time pass, as the watch sees it; who is asked to yield does so at once."""
        for _ in range(round(seconds / 0.05)):
            self.clock.now += 0.05
            self.turns.review()
            for claim in [claim for claim in self.turns._running if claim.asked_to_yield]:
                self.turns.pause(claim)


def test_one_alone_gets_all_cores_when_it_decodes():
    desk = Desk(8)
    claim = desk.ask(1)
    assert claim.cores == 1
    assert desk.decode(claim) == 8
    desk.turns.leave(claim)
    assert desk.turns.free == 8


def test_those_who_begin_together_share():
    desk = Desk(8)
    first, second = desk.ask(1), desk.ask(1)
    assert desk.decode(first) == 4
    assert desk.decode(second) == 4


def test_with_more_requests_than_cores_each_has_one():
    desk = Desk(2)
    claims = [desk.ask(1) for _ in range(6)]
    assert [claim.cores for claim in claims] == [1, 1, 0, 0, 0, 0]
    assert desk.decode(claims[0]) == 1


def test_equals_go_in_the_order_they_came_and_never_interrupt_each_other():
    desk = Desk(1)
    claims = [desk.ask(2.0) for _ in range(4)]
    for i, claim in enumerate(claims):
        assert claim.cores == 1 and desk.begun == claims[: i + 1]
        desk.decode(claim)
        desk.wait(2.0)
        assert claim.cores == 1
        desk.turns.leave(claim)


def test_the_shortest_that_waits_goes_first():
    desk = Desk(1)
    running = desk.ask(0.1)
    longer, shorter = desk.ask(5.0), desk.ask(0.5)
    desk.turns.leave(running)
    assert (longer.cores, shorter.cores) == (0, 1)


def test_a_long_request_is_asked_to_yield_to_a_short_one_and_goes_on_with_its_cores():
    desk = Desk(2)
    long = desk.ask(600.0)
    assert desk.decode(long) == 2
    desk.wait(1)
    short = desk.ask(0.1)
    assert long.asked_to_yield and short.cores == 0
    desk.wait(0.05)
    assert (long.cores, short.cores) == (0, 1)
    assert desk.decode(short) == 2
    desk.turns.leave(short)
    assert long.cores == 2


def test_a_long_request_that_still_reads_packets_steps_aside_so_that_a_short_one_has_all_cores():
    desk = Desk(2)
    long = desk.ask(600.0)
    desk.wait(1)
    short = desk.ask(0.1)
    assert (long.cores, short.cores) == (1, 1)
    assert desk.decode(short) == 2 and long.asked_to_yield
    desk.wait(0.05)
    assert (long.cores, short.cores) == (0, 2)
    desk.turns.leave(short)
    assert long.cores == 1


def test_equals_that_read_packets_keep_their_cores():
    desk = Desk(2)
    first, second = desk.ask(1), desk.ask(1)
    assert desk.decode(first) == 1 and not second.asked_to_yield


def test_pace_says_how_much_is_left():
    desk = Desk(1)
    claim = desk.ask(0.5)
    desk.wait(1.0)
    desk.decode(claim)
    desk.wait(2.0)
    claim.fraction = 0.25
    assert claim.remaining() == pytest.approx(6.0)


def test_a_long_request_gets_a_quarter_while_short_ones_never_stop():
    desk = Desk(1)
    long = desk.ask(600.0)
    desk.decode(long)
    desk.wait(1)
    held = long.held
    short = desk.ask(0.1)
    for _ in range(400):  # twenty seconds in which a short one always waits or runs
        desk.wait(0.05)
        if short.cores and short.held >= 0.1:
            desk.turns.leave(short)
            short = desk.ask(0.1)
    assert 0.2 < (long.held - held) / 20 < 0.35


def test_of_several_long_ones_the_oldest_gets_on():
    desk = Desk(1)
    longs = [desk.ask(600.0) for _ in range(3)]
    short = desk.ask(0.1)
    for _ in range(400):
        desk.wait(0.05)
        if short.cores and short.held >= 0.1:
            desk.turns.leave(short)
            short = desk.ask(0.1)
    assert longs[0].held > 3
    assert longs[0].held > 2 * (longs[1].held + longs[2].held)


def test_a_caller_with_a_thousand_requests_does_not_keep_another_waiting():
    desk = Desk(1)
    crowd = [desk.ask(0.2, "crowd") for _ in range(1000)]
    for claim in crowd[:5]:
        desk.wait(0.2)
        desk.turns.leave(claim)
    single = desk.ask(1.0, "single")
    desk.wait(0.1)
    assert (crowd[5].cores, single.cores) == (1, 0)  # what is begun and short is finished
    desk.turns.leave(crowd[5])
    assert single.cores == 1


def test_a_caller_who_never_stops_mostly_does_not_notice_the_long_request_of_another():
    desk = Desk(1)
    long = desk.ask(600.0, "long")
    desk.decode(long)
    desk.wait(5)
    waits, short, asked = [], desk.ask(0.2, "short"), desk.clock.now
    while len(waits) < 100:
        desk.wait(0.05)
        if short.held >= 0.2:
            waits.append(desk.clock.now - asked)
            desk.turns.leave(short)
            short, asked = desk.ask(0.2, "short"), desk.clock.now
    assert sorted(waits)[50] < 0.3
    assert max(waits) < 1.0


def test_two_callers_share_equally_however_long_their_requests_are():
    desk = Desk(1)
    long = desk.ask(600.0, "long")
    desk.decode(long)
    desk.wait(5)
    before, served = long.held, 0.0
    short = desk.ask(0.2, "short")
    for _ in range(800):
        desk.wait(0.05)
        if short.held >= 0.2:
            served += short.held
            desk.turns.leave(short)
            short = desk.ask(0.2, "short")
    assert served / 40 == pytest.approx(0.5, abs=0.08)
    assert (long.held - before) / 40 == pytest.approx(0.5, abs=0.08)


def test_nobody_begins_while_that_is_not_possible_but_who_has_begun_goes_on():
    able = [False]
    desk = Desk(1, lambda: able[0])
    waiting = desk.ask(0.1)
    claim = Claim(None, 5.0, lambda: None, begun=True)
    desk.turns.ask(claim)
    assert (waiting.cores, claim.cores) == (0, 1)
    desk.turns.leave(claim)
    assert waiting.cores == 0
    able[0] = True
    desk.turns.review()
    assert waiting.cores == 1


def test_no_core_idles_for_long_beside_a_request_that_wants_more():
    desk = Desk(2)
    long = desk.ask(600.0)
    assert desk.decode(long) == 2
    desk.wait(1)
    other = desk.ask(1.0)
    desk.wait(0.5)
    assert (long.cores, other.cores) == (0, 1)
    desk.wait(1)  # and it never begins to decode: a second core lies idle
    assert (long.cores, other.cores) == (1, 1)


def test_leaving_twice_or_while_waiting():
    desk = Desk(1)
    running, waiting = desk.ask(1), desk.ask(1)
    desk.turns.leave(waiting)
    desk.turns.leave(waiting)
    desk.turns.leave(running)
    desk.turns.leave(running)
    assert desk.turns.free == 1 and desk.turns.running == 0


def test_callers_that_went_away_are_forgotten():
    desk = Desk(1)
    keeper = desk.ask(1e6, "keeper")
    for i in range(3000):
        desk.turns.leave(desk.ask(0.1, i))
    assert keeper.cores == 1
    assert len(desk.turns._served) < 1100


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_no_core_is_given_twice_and_everybody_ends(seed):
    draw = random.Random(seed)
    desk = Desk(draw.choice([1, 2, 4]))
    work, left = {}, {}

    def step():
        for claim in list(desk.turns._running):
            if not claim.decoding and draw.random() < 0.5:
                desk.decode(claim)
        busy = {claim: claim.cores for claim in desk.turns._running}
        leaving = sum(claim.cores for claim in busy if claim.asked_to_yield)
        assert desk.turns.free >= -leaving and all(cores >= 1 for cores in busy.values())
        desk.wait(0.05)
        for claim, cores in busy.items():
            left[claim] -= 0.05 * cores
            claim.fraction = max(0.0, 1 - left[claim] / work[claim])
            if left[claim] <= 0:
                desk.turns.leave(claim)
                del left[claim]

    for _ in range(600):
        if draw.random() < 0.15:
            seconds = draw.choice([0.05, 0.2, 1.0, 8.0])
            claim = desk.ask(seconds * draw.uniform(0.2, 4), draw.choice("abc"))
            work[claim] = left[claim] = seconds
        step()
    steps = 0
    most = sum(left.values()) / 0.05 + 40 * len(left)  # at least one core is busy, but for some moments
    while left:
        step()
        steps += 1
        assert steps <= most
    assert desk.turns.free == desk.turns.cores
