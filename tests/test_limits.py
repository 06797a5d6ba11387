"""Limits and deadlines."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from telecine.deadline import Deadline
from telecine.errors import Cancelled, DeadlineError, OptionsError
from telecine.limits import Limits


def test_no_limit_may_be_negative() -> None:
    """The message names it."""
    with pytest.raises(OptionsError, match="max_frames is -1"):
        Limits(max_frames=-1)
    assert Limits(max_frames=0).max_frames == 0


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [math.nan, "x", None, np.array([1]), b"1", 1j, -math.inf, -(10**400)], ids=repr)
def test_a_limit_is_a_number_that_bounds(name: str, value: Any) -> None:
    """Nothing is ever more than a NaN: as a limit it would allow everything."""
    with pytest.raises(OptionsError, match=rf"limits: {name} is .*; it must be "):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["max_bytes", "max_pixels", "max_packets", "max_frames", "max_redirects"])
@pytest.mark.parametrize("value", [2.5, 2.0, True, math.inf])
def test_what_is_counted_is_limited_by_a_whole_number(name: str, value: Any) -> None:
    """``range`` and slices take no other."""
    with pytest.raises(OptionsError, match="a whole number that is not negative"):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout"])
@pytest.mark.parametrize("value", [math.inf, 1e7, 10**400])
def test_a_wait_is_one_that_a_socket_can_be_told(name: str, value: Any) -> None:
    """It counts milliseconds in 31 bits."""
    with pytest.raises(OptionsError, match="from 0 to 1000000"):
        Limits(**{name: value})


def test_permissions_are_given_in_so_many_words() -> None:
    """1 and "no" are true to Python, too."""
    for value in (1, "no", 0):
        with pytest.raises(OptionsError, match=r"allow_private_hosts is .*True or False"):
            Limits(allow_private_hosts=value)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_kept_as_those_of_python() -> None:
    """A product of NumPy's would overflow."""
    limits = Limits(max_pixels=np.int64(2**40), max_seconds=np.float32(2), max_frames=np.uint8(7))  # type: ignore[arg-type]
    assert limits == Limits(max_pixels=2**40, max_seconds=2.0, max_frames=7)
    assert [type(value) for value in (limits.max_pixels, limits.max_seconds, limits.max_frames)] == [int, float, int]
    assert Limits(max_seconds=math.inf).max_seconds == math.inf


def test_limits_are_handed_on_as_they_are() -> None:
    """None stands for the defaults, and nothing else does."""
    limits = Limits(max_frames=3)
    assert Limits.of(limits) is limits
    assert Limits.of(None) == Limits()
    for other in ({}, {"max_frames": 3}, 3, Limits):
        with pytest.raises(OptionsError, match=r"it must be a telecine\.Limits"):
            Limits.of(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e10, 10**400, True, "5", np.True_, [5]], ids=repr)
def test_a_timeout_must_be_positive(seconds: Any) -> None:
    """Nothing can be done in no time, and nothing waits for ever."""
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
    deadline = Deadline(on_progress=lambda *step: seen.append(step))
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
    assert [Deadline(seconds).seconds for seconds in (np.float32(5), np.int64(5))] == [5.0, 5.0]  # type: ignore[arg-type]
    assert Deadline.of(None).seconds is None
