"""Deadlines: timeout, cancellation and the progress callback."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

from telecine.deadline import Deadline
from telecine.errors import Cancelled, DeadlineError, OptionsError


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e10, 10**400, True, "5", np.True_, [5]], ids=repr)
def test_timeout_must_be_a_positive_finite_number(seconds: Any) -> None:
    """Zero, negative, infinite and NaN are refused."""
    with pytest.raises(OptionsError, match="timeout is"):
        Deadline(seconds)


def test_deadline_without_timeout_never_passes() -> None:
    """Its remaining time is None."""
    deadline = Deadline()
    deadline.check("waiting")
    assert deadline.remaining() is None and deadline.seconds is None


def test_check_raises_when_the_timeout_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the stage and the timeout."""
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


def test_deadline_can_be_cancelled_from_another_thread() -> None:
    """All later checks raise."""
    deadline = Deadline(60)
    assert not deadline.cancelled
    thread = threading.Thread(target=deadline.cancel)
    thread.start()
    thread.join()
    assert deadline.cancelled
    for _ in range(2):
        with pytest.raises(Cancelled, match="cancelled while decoding"):
            deadline.check("decoding")


def test_progress_callback_gets_every_step_that_did_not_fail() -> None:
    seen: list[tuple[str, int, int]] = []
    deadline = Deadline(on_progress=lambda *step: seen.append(step))
    deadline.check("reading", 3, 10)
    deadline.check("decoding")
    deadline.cancel()
    with pytest.raises(Cancelled):
        deadline.check("decoding", 1, 2)
    assert seen == [("reading", 3, 10), ("decoding", 0, 0)]


def test_deadline_of_returns_a_deadline_unchanged() -> None:
    """So several calls can share one. A number starts a new one."""
    deadline = Deadline(5)
    assert Deadline.of(deadline) is deadline
    assert Deadline.of(3).seconds == 3
    assert [Deadline(seconds).seconds for seconds in (np.float32(5), np.int64(5))] == [5.0, 5.0]  # type: ignore[arg-type]
    assert Deadline.of(None).seconds is None
