"""The scan lock has one owner at a time, and no thread waits behind an owner that stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from telecine import Cancelled, DeadlineError
from telecine.deadline import Deadline
from telecine.index import scan_lock
from telecine.index.scan_lock import ScanLock

FOREVER = 3600.0


@pytest.fixture
def no_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No owner stalls or holds the lock for long, however slow this machine is."""
    monkeypatch.setattr(scan_lock, "_MAX_HOLD_SECONDS", FOREVER)
    monkeypatch.setattr(scan_lock, "_STALL_SECONDS", FOREVER)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class OtherThreads:
    """Threads that wait for the lock one behind the other, and the order in which they got it."""

    def __init__(self, lock: ScanLock) -> None:
        self.lock = lock
        self.order: list[int] = []
        self.pool = ThreadPoolExecutor(16)

    def start_waiting(self, count: int) -> None:
        for number in range(count):
            before = len(self.lock.waiting)
            self.pool.submit(self._work, number)
            wait_until(lambda before=before: len(self.lock.waiting) == before + 1)  # type: ignore[misc]

    def _work(self, number: int) -> None:
        with self.lock.acquire(Deadline(), "waiting"):
            self.order.append(number)

    def join(self) -> None:
        self.pool.shutdown()


@pytest.mark.usefixtures("no_time_limits")
def test_lock_has_one_owner_at_a_time() -> None:
    lock = ScanLock()
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock.acquire(Deadline(), "waiting") as ticket:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                ticket.report_progress()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert lock.owner is None


@pytest.mark.usefixtures("no_time_limits")
def test_lock_is_granted_first_come_first_served() -> None:
    others = OtherThreads(ScanLock())
    with others.lock.acquire(Deadline(), "waiting"):
        others.start_waiting(10)
    others.join()
    assert others.order == list(range(10))


def test_owner_that_holds_the_lock_for_long_goes_to_the_end_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_lock, "_STALL_SECONDS", FOREVER)
    monkeypatch.setattr(scan_lock, "_MAX_HOLD_SECONDS", FOREVER)
    others = OtherThreads(ScanLock())
    with others.lock.acquire(Deadline(), "waiting") as ticket:
        others.start_waiting(3)
        ticket.report_progress()
        assert others.order == []
        monkeypatch.setattr(scan_lock, "_MAX_HOLD_SECONDS", 0.0)
        ticket.report_progress()
        assert others.order == [0, 1, 2]
        ticket.report_progress()  # no thread waits
        assert others.lock.owner is ticket
    others.join()


def test_owner_that_stalls_loses_the_lock_and_works_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_lock, "_STALL_SECONDS", 0.02)
    monkeypatch.setattr(scan_lock, "_MAX_HOLD_SECONDS", 0.0)
    others = OtherThreads(ScanLock())
    leave = threading.Event()

    def other() -> None:
        with others.lock.acquire(Deadline(), "waiting"):
            others.order.append(0)
            leave.wait(30)

    with others.lock.acquire(Deadline(), "waiting") as ticket:
        others.pool.submit(other)
        wait_until(lambda: others.order == [0])
        ticket.report_progress()  # and does not wait for the other thread
        assert others.lock.owner not in (ticket, None)
        leave.set()
        wait_until(lambda: others.lock.owner is None)
    others.join()


@pytest.mark.usefixtures("no_time_limits")
def test_release_by_a_former_owner_does_not_touch_the_present_one() -> None:
    """The former owner ends while another thread owns the lock."""
    lock = ScanLock()
    stalled = lock.acquire(Deadline(), "waiting")
    stalled.__enter__()
    assert lock.owner is not None
    lock.hand_over()
    with lock.acquire(Deadline(), "waiting") as ticket:
        stalled.__exit__(None, None, None)
        assert lock.owner is ticket


def test_cancelled_request_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_lock, "_STALL_SECONDS", 0.01)
    lock = ScanLock()
    with lock.acquire(Deadline(), "waiting") as ticket:
        monkeypatch.setattr(scan_lock.time, "monotonic", lambda: ticket.last_progress)  # it does not stall
        cancelled = Deadline()
        cancelled.cancel()
        with pytest.raises(Cancelled, match="while waiting to read"), lock.acquire(cancelled, "waiting to read"):
            pytest.fail("another thread owns it")
        assert (lock.owner, len(lock.waiting)) == (ticket, 0)
    assert lock.owner is None


def test_timeout_while_waiting_names_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_lock, "_STALL_SECONDS", 0.01)
    lock = ScanLock()
    with lock.acquire(Deadline(), "waiting") as ticket:
        late = Deadline(0.02)
        time.sleep(0.03)
        ticket.report_progress()
        with pytest.raises(DeadlineError, match="while waiting to read"), lock.acquire(late, "waiting to read"):
            pytest.fail("another thread owns it")
    assert (lock.owner, len(lock.waiting)) == (None, 0)


@pytest.mark.parametrize("interrupted_after", ["popleft", "owner"])
def test_interrupted_hand_over_makes_no_thread_wait_forever(interrupted_after: str) -> None:
    """An interrupt may come after a thread was taken out of the queue and before it is woken."""
    lock = ScanLock()
    owned = threading.Event()

    def other() -> None:
        with lock.acquire(Deadline(), "waiting"):
            owned.set()

    waiting = threading.Thread(target=other)
    with lock.acquire(Deadline(), "waiting"):
        waiting.start()
        wait_until(lambda: len(lock.waiting) == 1)
        first = lock.waiting.popleft()
        if interrupted_after == "owner":
            lock.owner = first
    assert owned.wait(30)
    waiting.join(30)


def test_signal_handler_can_acquire_the_lock_while_its_thread_holds_the_mutex() -> None:
    lock = ScanLock()
    with lock.mutex, lock.acquire(Deadline(), "waiting") as ticket:
        assert lock.owner is ticket
