"""The timeline: ticks, seconds, rate and duration."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telecine.timeline import Timeline


def timeline(*ticks: int, end: int | None = None, base: Fraction = Fraction(1, 30)) -> Timeline:
    last = (ticks[-1] + 1) if end is None else end
    return Timeline(np.array(ticks, np.int64), base, last, np.zeros(len(ticks), np.bool_))


def test_rate_is_measured_between_the_first_and_the_last_frame() -> None:
    """The duration is one frame longer."""
    times = timeline(0, 1, 2, 5, end=6)
    assert times.num_frames == 4
    assert times.average_fps == 3 / (5 / 30)
    assert times.duration == 6 / 30


def test_rate_of_a_single_frame_is_one_over_its_duration() -> None:
    """It is 0 if the duration is unknown."""
    assert timeline(0, end=3).average_fps == 10.0
    assert timeline(0, end=0).average_fps == 0.0


def test_seconds_of_some_frames_are_those_of_all() -> None:
    times = timeline(0, 2, 7)
    assert times.seconds(np.array([2, 0, 2])).tolist() == [7 / 30, 0.0, 7 / 30]
    assert times.seconds().tolist() == [0.0, 2 / 30, 7 / 30]


@given(
    tick=st.integers(1, 1 << 40), base=st.sampled_from([Fraction(1, 90000), Fraction(1001, 30000), Fraction(1, 1000)])
)
def test_seconds_are_the_nearest_double_to_the_exact_time(tick: int, base: Fraction) -> None:
    """They are rounded once, so that equal times in two files give equal seconds."""
    assert timeline(0, tick, base=base).seconds()[1] == float(tick * base)
