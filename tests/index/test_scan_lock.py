"""Whoever holds the baton works alone, and nobody waits behind one that is stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from telecine import Cancelled, DeadlineError
from telecine.deadline import Deadline
from telecine.index import scan_lock as baton
from telecine.index.scan_lock import Baton

FOREVER = 3600.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is stuck, and nothing is long, however slow this machine is."""
    monkeypatch.setattr(baton, "_LONG", FOREVER)
    monkeypatch.setattr(baton, "_STUCK", FOREVER)


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end
        time.sleep(0.001)


class Others:
    """Threads that stand in line, one behind the other, and what they did when the baton came."""

    def __init__(self, passed: Baton) -> None:
        self.baton = passed
        self.came: list[int] = []
        self.pool = ThreadPoolExecutor(16)

    def stand_in_line(self, count: int) -> None:
        for number in range(count):
            before = len(self.baton.line)
            self.pool.submit(self._work, number)
            until(lambda before=before: len(self.baton.line) == before + 1)  # type: ignore[misc]

    def _work(self, number: int) -> None:
        with self.baton.held(Deadline(), "waiting"):
            self.came.append(number)

    def end(self) -> None:
        self.pool.shutdown()


@pytest.mark.usefixtures("patient")
def test_one_at_a_time() -> None:
    passed = Baton()
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with passed.held(Deadline(), "waiting") as hold:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                hold.step()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert passed.holder is None


@pytest.mark.usefixtures("patient")
def test_first_come_first_served() -> None:
    others = Others(Baton())
    with others.baton.held(Deadline(), "waiting"):
        others.stand_in_line(10)
    others.end()
    assert others.came == list(range(10))


def test_who_holds_it_for_long_goes_to_the_end_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton, "_STUCK", FOREVER)
    monkeypatch.setattr(baton, "_LONG", FOREVER)
    others = Others(Baton())
    with others.baton.held(Deadline(), "waiting") as hold:
        others.stand_in_line(3)
        hold.step()
        assert others.came == []
        monkeypatch.setattr(baton, "_LONG", 0.0)
        hold.step()
        assert others.came == [0, 1, 2]
        hold.step()  # nobody waits
        assert others.baton.holder is hold
    others.end()


def test_one_that_is_stuck_loses_it_and_works_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton, "_STUCK", 0.02)
    monkeypatch.setattr(baton, "_LONG", 0.0)
    others = Others(Baton())
    leave = threading.Event()

    def other() -> None:
        with others.baton.held(Deadline(), "waiting"):
            others.came.append(0)
            leave.wait(30)

    with others.baton.held(Deadline(), "waiting") as hold:
        others.pool.submit(other)
        until(lambda: others.came == [0])
        hold.step()  # and does not wait for the other one
        assert others.baton.holder not in (hold, None)
        leave.set()
        until(lambda: others.baton.holder is None)
    others.end()


@pytest.mark.usefixtures("patient")
def test_what_was_taken_is_not_given_back() -> None:
    """The one that it was taken from ends while another holds it."""
    passed = Baton()
    stuck = passed.held(Deadline(), "waiting")
    stuck.__enter__()
    assert passed.holder is not None
    passed.holder._pass_on()
    with passed.held(Deadline(), "waiting") as hold:
        stuck.__exit__(None, None, None)
        assert passed.holder is hold


def test_a_deadline_holds_in_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton, "_STUCK", 0.01)
    passed = Baton()
    with passed.held(Deadline(), "waiting") as hold:
        monkeypatch.setattr(baton.time, "monotonic", lambda: hold._stepped)  # not stuck
        withdrawn = Deadline()
        withdrawn.cancel()
        with pytest.raises(Cancelled, match="while waiting to read"), passed.held(withdrawn, "waiting to read"):
            pytest.fail("it is held by another one")
        assert (passed.holder, len(passed.line)) == (hold, 0)
    assert passed.holder is None


def test_a_timeout_names_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton, "_STUCK", 0.01)
    passed = Baton()
    with passed.held(Deadline(), "waiting") as hold:
        late = Deadline(0.02)
        time.sleep(0.03)
        hold.step()
        with pytest.raises(DeadlineError, match="while waiting to read"), passed.held(late, "waiting to read"):
            pytest.fail("it is held by another one")
    assert (passed.holder, len(passed.line)) == (None, 0)


@pytest.mark.parametrize("lost", ["popleft", "release"])
def test_an_interrupt_while_it_is_passed_on_makes_nobody_wait_for_ever(lost: str) -> None:
    """It may come between two lines: behind taking somebody out of the line, and ahead of telling him."""
    passed = Baton()
    came = threading.Event()

    def other() -> None:
        with passed.held(Deadline(), "waiting"):
            came.set()

    waiting = threading.Thread(target=other)
    with passed.held(Deadline(), "waiting"):
        waiting.start()
        until(lambda: len(passed.line) == 1)
        first = passed.line.popleft()
        if lost == "release":
            passed.holder = first
    assert came.wait(30)
    waiting.join(30)


def test_a_signal_handler_may_load_a_video_itself() -> None:
    passed = Baton()
    with passed.lock, passed.held(Deadline(), "waiting") as hold:
        assert passed.holder is hold
