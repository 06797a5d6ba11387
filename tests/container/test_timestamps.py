"""Presentation times: usable ones are kept, others are rebuilt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telecine.container.timestamps import NO_TIME, are_usable_timestamps, has_variable_rate, rebuild_timestamps


def ticks(*values: int | None) -> np.ndarray:
    return np.array([NO_TIME if value is None else value for value in values], np.int64)


@pytest.mark.parametrize(
    ("pts", "expected"),
    [
        (ticks(0, 3, 1, 2), True),
        (ticks(-5, 0, 7), True),
        (ticks(), True),
        (ticks(9), True),
        (ticks(0, None, 2), False),
        (ticks(0, 1, 1), False),
        # a gap is a gap
        (ticks(0, 1, 2, 1_000_000), True),
        # a decoder holds back sixteen pictures at most; a joined recording starts again
        (ticks(*range(20, 36), 19, *range(36, 60)), True),
        (ticks(*range(100, 200), *range(50)), False),
    ],
)
def test_timestamps_are_usable_if_complete_distinct_and_in_a_decodable_order(pts: np.ndarray, expected: bool) -> None:
    """None missing, none twice, and none so early that too many pictures would wait for it."""
    assert are_usable_timestamps(pts) is expected


def test_missing_timestamps_follow_their_neighbours_at_the_spacing_of_dts() -> None:
    """Also ahead of the first known one."""
    dts = ticks(0, 10, 20, 30, 40, 50)
    assert rebuild_timestamps(ticks(None, 120, None, None, 150, None), dts, None, 3).tolist() == [
        110,
        120,
        130,
        140,
        150,
        160,
    ]


def test_frames_without_timestamps_are_a_step_apart_in_output_order() -> None:
    """I P B B in decoding order is I B B P to the viewer."""
    assert rebuild_timestamps(ticks(*[None] * 4), ticks(*[None] * 4), ticks(0, 3, 1, 2), 40).tolist() == [
        0,
        120,
        40,
        80,
    ]


def test_output_order_overrules_contradicting_timestamps() -> None:
    """No two come out the same, and a frame later in order is later in time."""
    times = rebuild_timestamps(ticks(0, 10, 10, 5), ticks(*[None] * 4), ticks(0, 1, 2, 3), 10)
    assert (np.diff(times) > 0).all()


def test_equal_timestamps_become_one_tick_apart() -> None:
    """The order is kept, and no time is far from the container's."""
    assert rebuild_timestamps(ticks(0, 0, 20, 20, 40), ticks(*[None] * 5), np.arange(5), 10).tolist() == [
        0,
        1,
        20,
        21,
        40,
    ]


def test_timestamps_continue_after_a_backward_jump() -> None:
    """Two recordings in one file: the second follows the first at one step, and keeps its own spacing."""
    first, second = ticks(100, 110, 120), ticks(0, 10, 25)
    times = rebuild_timestamps(np.concatenate([first, second]), ticks(*[None] * 6), np.arange(6), 10)
    assert times.tolist() == [100, 110, 120, 130, 140, 155]


def test_outlier_timestamp_is_replaced_and_moves_no_other() -> None:
    """Far too late, or far too early."""
    for wrong in (10**12, -(10**12)):
        times = rebuild_timestamps(ticks(0, 10, wrong, 30, 40, 40), ticks(*[None] * 6), np.arange(6), 10)
        assert times.tolist() == [0, 10, 20, 30, 40, 41]


_TICK = st.one_of(st.just(NO_TIME), st.integers(-(1 << 40), 1 << 40))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), count=st.integers(1, 30), step=st.integers(1, 4000))
def test_rebuilt_timestamps_increase_in_output_order(data: st.DataObject, count: int, step: int) -> None:
    """For any times of the container; right ones are kept."""
    pts = np.array(data.draw(st.lists(_TICK, min_size=count, max_size=count)), np.int64)
    dts = np.array(data.draw(st.lists(_TICK, min_size=count, max_size=count)), np.int64)
    places = np.array(data.draw(st.permutations(range(count))), np.int64)
    times = rebuild_timestamps(pts, dts, places, step)
    assert (np.diff(times[np.argsort(places)]) > 0).all()
    regular = 7 + places * step
    assert np.array_equal(rebuild_timestamps(regular, dts, places, step), regular)
    known = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    even = np.where(known, regular, NO_TIME)
    if any(known):
        assert np.array_equal(rebuild_timestamps(even, np.full(count, NO_TIME), places, step), regular)


@pytest.mark.parametrize("rate", [24, 25, 30, 50, 60, 30000 / 1001, 24000 / 1001])
@pytest.mark.parametrize("base", [600, 1000, 15360, 90000])
@pytest.mark.parametrize("rounding", [np.rint, np.floor])
def test_constant_rate_is_not_variable_for_any_time_base(rate: float, base: int, rounding: np.ufunc) -> None:
    """NTSC rates in milliseconds are the usual case."""
    assert not has_variable_rate(rounding(np.arange(2000) * base / rate + 1e-9).astype(np.int64))


@pytest.mark.parametrize("interval", [1, 33, 512, 3003])
def test_missing_frame_makes_the_rate_variable(interval: int) -> None:
    """Also if a tick is a frame, as in AVI files."""
    assert has_variable_rate(np.delete(np.arange(101), 50) * interval)
    assert not has_variable_rate(np.arange(100) * interval)


def test_jitter_below_a_twentieth_of_the_spacing_is_not_variable() -> None:
    """A tenth of the spacing is variable."""
    even = np.arange(100) * 1000
    assert not has_variable_rate(even + np.arange(100) % 2 * 40)
    assert has_variable_rate(even + np.arange(100) % 2 * 100)


def test_one_or_two_frames_have_no_variable_rate() -> None:
    """There is nothing to compare."""
    assert not has_variable_rate(ticks(0))
    assert not has_variable_rate(ticks(0, 17))
