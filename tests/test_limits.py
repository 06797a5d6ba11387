"""Limits and deadlines."""

from __future__ import annotations

import threading
import time

import pytest

from telecine.errors import Cancelled, DeadlineError, OptionsError
from telecine.limits import Deadline, Limits


def test_no_limit_may_be_negative() -> None:
    """The message names it."""
    with pytest.raises(OptionsError, match="max_frames is -1"):
        Limits(max_frames=-1)
    assert Limits(max_frames=0).max_frames == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(seconds: float) -> None:
    """Nothing can be done in no time."""
    with pytest.raises(OptionsError, match="timeout is"):
        Deadline(seconds)


def test_a_deadline_without_bound_never_passes() -> None:
    """And has nothing to count down."""
    deadline = Deadline()
    deadline.check("waiting")
    assert deadline.remaining() is None and deadline.seconds is None


def test_a_deadline_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what was going on and how long it had."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadline = Deadline(2.5)
    now = 102.4
    deadline.check("decoding")
    assert deadline.remaining() == pytest.approx(0.1)
    now = 102.5
    with pytest.raises(DeadlineError, match=r"2\.5 s passed while decoding"):
        deadline.check("decoding")
    assert deadline.remaining() == 0.0


def test_a_request_can_be_cancelled_from_another_thread() -> None:
    """The next check raises, and so does every later one."""
    deadline = Deadline(60)
    assert not deadline.cancelled
    thread = threading.Thread(target=deadline.cancel)
    thread.start()
    thread.join()
    assert deadline.cancelled
    for _ in range(2):
        with pytest.raises(Cancelled, match="cancelled while decoding"):
            deadline.check("decoding")


def test_whoever_watches_is_told_of_every_step() -> None:
    """But not of one that failed."""
    seen: list[tuple[str, int, int]] = []
    deadline = Deadline(watch=lambda *step: seen.append(step))
    deadline.check("reading", 3, 10)
    deadline.check("decoding")
    deadline.cancel()
    with pytest.raises(Cancelled):
        deadline.check("decoding", 1, 2)
    assert seen == [("reading", 3, 10), ("decoding", 0, 0)]


def test_a_deadline_is_handed_on_as_it_is() -> None:
    """So that several calls can share one; anything else starts a new one."""
    deadline = Deadline(5)
    assert Deadline.of(deadline) is deadline
    assert Deadline.of(3).seconds == 3
    assert Deadline.of(None).seconds is None
