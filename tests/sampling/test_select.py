"""Choosing frame indices: every option, their combinations, and properties against brute force."""

from __future__ import annotations

import doctest
import math
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telecine.errors import NoVideoError, OptionsError
from telecine.sampling.policies import KEY_FRAMES, POLICIES, ClipFacts, apply_policy, policy_defaults
from telecine.sampling.select import Sampling, select
from telecine.timeline import Timeline

MILLISECOND = Fraction(1, 1000)


def timeline(ticks: Any, time_base: Fraction = MILLISECOND, end_tick: int | None = None, keys: Any = (0,)) -> Timeline:
    times = np.asarray(ticks, np.int64)
    key = np.zeros(len(times), np.bool_)
    key[list(keys)] = True
    return Timeline(times, time_base, int(times[-1]) + 40 if end_tick is None else end_tick, key)


def constant_rate(
    num_frames: int, fps: Fraction | int, time_base: Fraction = Fraction(1, 15360), **more: Any
) -> Timeline:
    """A clip as a muxer writes it: every time rounded to a tick."""
    ticks = [math.floor(number / Fraction(fps) / time_base + Fraction(1, 2)) for number in range(num_frames + 1)]
    return timeline(ticks[:-1], time_base, ticks[-1], **more)


def chosen(clip: Timeline, **options: Any) -> list[int]:
    indices = select(Sampling(**options), clip)
    assert indices.dtype == np.int64 and indices.ndim == 1
    return indices.tolist()


TEN_SECONDS = constant_rate(300, 30, keys=range(0, 300, 30))
# a slide that stays for nine seconds, then 30 fps: what screen recordings look like
SLIDE_THEN_MOTION = timeline([0, *(9000 + round(n * 100 / 3) for n in range(31))])

any_timeline = st.builds(
    lambda steps, base, last: timeline(np.cumsum([0, *steps]), base, sum(steps) + last),
    st.lists(st.integers(1, 5000) | st.integers(1, 3) | st.integers(10**9, 10**13), max_size=60),
    st.sampled_from(
        [MILLISECOND, Fraction(1, 90_000), Fraction(1001, 30_000), Fraction(7, 12_345_679), Fraction(1, 3)]
    ),
    st.integers(1, 5000),
)
bounded = settings(max_examples=100, deadline=None)


def check_against_every_multiple(clip: Timeline, rate: Fraction, begin: int) -> None:
    """Looks at each multiple of 1/rate after the begin of one frame. Rounded ticks: half a tick early will do."""
    first = min(begin, clip.num_frames - 1)
    origin, step = int(clip.ticks[first]), 1 / rate / clip.time_base
    # plain integers: numpy's would overflow within a Fraction
    last = int(clip.ticks[-1])
    rounded = int(0 < 4 * (clip.num_frames - 1) <= last)
    count = math.ceil((clip.end_tick - origin) / step)
    if count > 20_000:
        return
    seen = {first}
    for moment in (origin + multiple * step for multiple in range(1, count)):
        # with rounded ticks the clip may be a tick shorter than it says
        if moment < clip.end_tick - rounded or moment <= last:
            moment += Fraction(rounded, 2)
            seen.add(int(np.searchsorted(clip.ticks, math.floor(moment), side="right")) - 1)
    indices = chosen(clip, fps=rate, start=origin * clip.time_base)
    if indices != sorted(seen):  # every frame is shown for a step, or the rate is that of the video
        assert indices == list(range(first, clip.num_frames))
        gaps = np.diff(clip.ticks[first:])
        usual = [gap for gap in gaps.tolist() if abs(gap - float(np.median(gaps))) <= float(np.median(gaps)) / 2]
        assert step <= int(gaps.min()) or (
            len(usual) >= 0.9 * len(gaps) and step <= sum(usual) / len(usual) * (1 + 1 / 3999)
        )


class TestCount:
    def test_without_options_every_frame_is_chosen(self) -> None:
        assert chosen(TEN_SECONDS) == list(range(300))

    @pytest.mark.parametrize(
        ("count", "expected"),
        [
            (1, [0]),
            (2, [0, 299]),
            (3, [0, 150, 299]),  # 149.5 rounds up
            (4, [0, 100, 199, 299]),
            (8, [0, 43, 85, 128, 171, 214, 256, 299]),
        ],
    )
    def test_frames_are_spread_from_the_first_to_the_last(self, count: int, expected: list[int]) -> None:
        assert chosen(TEN_SECONDS, num_frames=count) == expected

    def test_num_frames_above_the_clip_length_gives_every_frame(self) -> None:
        assert chosen(TEN_SECONDS, num_frames=1000) == list(range(300))

    @given(available=st.integers(1, 500), count=st.integers(1, 600))
    @bounded
    def test_the_count_is_exact_and_positions_are_rounded_half_up(self, available: int, count: int) -> None:
        indices = chosen(constant_rate(available, 25), num_frames=count)
        count = min(count, available)
        exact = [Fraction(i * (available - 1), count - 1) if count > 1 else Fraction(0) for i in range(count)]
        assert indices == [math.floor(position + Fraction(1, 2)) for position in exact]
        assert len(set(indices)) == count

    def test_num_frames_spreads_by_count_and_max_frames_in_time(self) -> None:
        assert chosen(SLIDE_THEN_MOTION, num_frames=3) == [0, 16, 31]
        assert chosen(SLIDE_THEN_MOTION, max_frames=3) == [0, 1, 31]
        assert chosen(SLIDE_THEN_MOTION, num_frames=3, max_frames=3) == [0, 16, 31]

    def test_max_frames_caps_num_frames(self) -> None:
        assert chosen(TEN_SECONDS, num_frames=100, max_frames=4) == [0, 100, 199, 299]


class TestRate:
    def test_a_constant_rate_gives_every_nth_frame(self) -> None:
        assert chosen(constant_rate(61, 30), fps=2) == [0, 15, 30, 45, 60]
        assert chosen(constant_rate(60, 30), fps=2) == [0, 15, 30, 45]

    @pytest.mark.parametrize(
        "time_base", [MILLISECOND, Fraction(1, 90_000), Fraction(1, 15360), Fraction(1, 3_000_000)]
    )
    @pytest.mark.parametrize(
        ("fps", "rate"), [(30, 2), (30, 3), (24, 2), (24, 8), (25, 5), (60, 7.5), (120, 1), (30, 0.1)]
    )
    def test_rounded_ticks_do_not_move_the_choice(self, time_base: Fraction, fps: int, rate: float) -> None:
        stride = int(fps / rate)
        for num_frames in (1, stride, stride + 1, 1000):
            assert chosen(constant_rate(num_frames, fps, time_base), fps=rate) == list(range(0, num_frames, stride))

    def test_decimal_fps_means_the_exact_decimal(self) -> None:
        """The double next to 0.1 is a little more: ten seconds would end a little before frame 300."""
        assert chosen(constant_rate(601, 30, Fraction(1, 30)), fps=0.1) == [0, 300, 600]

    def test_a_last_frame_of_one_tick_is_not_missed(self) -> None:
        assert chosen(timeline([0, 500, 1000], end_tick=1001), fps=1) == [0, 2]

    @pytest.mark.parametrize("time_base", [Fraction(1001, 30_000), MILLISECOND, Fraction(1, 90_000)])
    def test_float_fps_means_the_fraction_it_rounds(self, time_base: Fraction) -> None:
        clip = constant_rate(3000, Fraction(30_000, 1001), time_base)
        assert chosen(clip, fps=30_000 / 1001 / 2) == list(range(0, 3000, 2))
        assert chosen(clip, fps=Fraction(15_000, 1001)) == list(range(0, 3000, 2))

    @pytest.mark.parametrize("time_base", [MILLISECOND, Fraction(1, 90_000), Fraction(1001, 30_000)])
    @pytest.mark.parametrize("rate", [30_000 / 1001, 30, 31, 60, 1e9])
    def test_a_rate_at_or_above_the_source_gives_every_frame_once(self, time_base: Fraction, rate: float) -> None:
        assert chosen(constant_rate(300, Fraction(30_000, 1001), time_base), fps=rate) == list(range(300))

    @pytest.mark.parametrize("num_frames", [1, 2, 14])
    def test_clip_shorter_than_one_step_gives_a_frame(self, num_frames: int) -> None:
        assert chosen(constant_rate(num_frames, 30), fps=2) == [0]
        assert chosen(constant_rate(num_frames, 30), fps=1e-9) == [0]

    def test_long_frame_is_chosen_once_for_all_times_within_it(self) -> None:
        assert chosen(SLIDE_THEN_MOTION, fps=1) == [0, 1, 31]
        assert chosen(SLIDE_THEN_MOTION, fps=0.125) == [0]  # at 8 s the slide still stands; frame 1 is nearer

    def test_num_frames_below_the_rate_spreads_frames_again(self) -> None:
        assert chosen(TEN_SECONDS, fps=1, num_frames=4) == [0, 100, 199, 299]
        assert chosen(TEN_SECONDS, fps=0.3, num_frames=4) == [0, 100, 200]
        assert chosen(TEN_SECONDS, fps=0.3, num_frames=1) == [0]

    def test_bounds_change_the_number_evenly_in_time(self) -> None:
        assert chosen(TEN_SECONDS, fps=0.1, min_frames=4) == [0, 100, 199, 299]
        assert chosen(TEN_SECONDS, fps=2, max_frames=4) == [0, 100, 199, 299]
        assert chosen(TEN_SECONDS, fps=2, min_frames=4, max_frames=30) == list(range(0, 300, 15))
        assert chosen(constant_rate(3, 30), fps=2, min_frames=4) == [0, 1, 2]
        # 0, 2.5, 5, 7.5 and 10 s: the slide can be shown only once, so two times take the next frames
        assert chosen(SLIDE_THEN_MOTION, fps=1, min_frames=5) == [0, 1, 2, 3, 31]

    @given(clip=any_timeline, rate=st.fractions(Fraction(1, 50), 100, max_denominator=1001), begin=st.integers(0, 3))
    @bounded
    def test_fps_chooses_the_frames_on_screen(self, clip: Timeline, rate: Fraction, begin: int) -> None:
        check_against_every_multiple(clip, rate, begin)

    @given(clip=any_timeline, multiples=st.integers(1, 300), nudge=st.integers(1, 10**6), begin=st.integers(0, 3))
    @bounded
    def test_fps_is_exact_beyond_64_bits(self, clip: Timeline, multiples: int, nudge: int, begin: int) -> None:
        rate = multiples / (clip.end_tick * clip.time_base) * Fraction(10**18 + nudge, 10**18 + 9)
        check_against_every_multiple(clip, rate, begin)

    @pytest.mark.parametrize("time_base", [Fraction(1, 1000), Fraction(1, 90_000)])
    @pytest.mark.parametrize("jitter", [0, 0.004])
    @pytest.mark.parametrize("fps", [Fraction(24_000, 1001), 24, 23.976, 30, 60])
    def test_a_rate_at_or_above_that_of_the_video_gives_every_frame(
        self, time_base: Fraction, jitter: float, fps: float
    ) -> None:
        """24000/1001 fps of which a recorder missed one frame in 235: 23.874 on average."""
        numbers = np.flatnonzero(np.arange(2400) % 235 != 100)
        times = numbers * 1001 / 24_000 + np.random.default_rng(1).uniform(-jitter, jitter, len(numbers))
        ticks = np.round((times - times[0]) / float(time_base)).astype(np.int64)
        clip = Timeline(ticks, time_base, int(ticks[-1]) + round(1 / 24 / time_base), np.zeros(len(ticks), np.bool_))
        assert chosen(clip, fps=fps) == list(range(len(ticks)))
        assert len(chosen(clip, fps=20)) < 2100

    @given(clip=any_timeline, rate=st.floats(1e-6, 1e6), least=st.integers(1, 9), more=st.integers(0, 60))
    @bounded
    def test_bounds_hold_and_frames_are_different(self, clip: Timeline, rate: float, least: int, more: int) -> None:
        indices = chosen(clip, fps=rate, min_frames=least, max_frames=least + more)
        assert min(least, clip.num_frames) <= len(indices) <= least + more
        assert indices[0] == 0 and indices[-1] < clip.num_frames
        assert (np.diff(indices) > 0).all()

    @given(
        available=st.integers(1, 400),
        count=st.integers(1, 400),
        fps=st.sampled_from([24, 25, 30, Fraction(30_000, 1001)]),
    )
    @bounded
    def test_at_a_constant_rate_spreading_in_time_is_spreading_by_count(
        self, available: int, count: int, fps: Fraction
    ) -> None:
        clip = constant_rate(available, fps, 1 / Fraction(fps) / 512)
        assert chosen(clip, max_frames=count) == chosen(clip, num_frames=count)

    @given(clip=any_timeline, count=st.integers(2, 70))
    @bounded
    def test_spreading_in_time_takes_the_nearest_unused_frames(self, clip: Timeline, count: int) -> None:
        indices = chosen(clip, max_frames=count)
        count = min(count, clip.num_frames)
        assert len(indices) == count and (np.diff(indices) > 0).all()
        if count < 2 or count == clip.num_frames:
            return
        assert (indices[0], indices[-1]) == (0, clip.num_frames - 1)
        times = [Fraction(int(clip.ticks[-1]) * i, count - 1) for i in range(count)]
        nearest = [min(range(clip.num_frames), key=lambda n: (abs(int(clip.ticks[n]) - t), -n)) for t in times]
        if len(set(nearest)) == count:
            assert indices == nearest


class TestExplicit:
    def test_order_and_repeats_are_kept(self) -> None:
        assert chosen(TEN_SECONDS, indices=[5, 299, 5, 0]) == [5, 299, 5, 0]

    @pytest.mark.parametrize(
        "indices",
        [np.array([3, 1], np.int32), np.array([3, 1], np.uint64), (np.int64(3), 1), [3, np.uint8(1)], range(3, 0, -2)],
    )
    def test_numpy_and_sequences_are_accepted(self, indices: Any) -> None:
        assert chosen(TEN_SECONDS, indices=indices) == [3, 1]

    @pytest.mark.parametrize("bad", [-1, 300, 2**70])
    def test_index_out_of_range_error_names_range_and_count(self, bad: int) -> None:
        with pytest.raises(OptionsError, match=rf"indices contains {bad}; this clip has 300 frames.* from 0 to 299"):
            chosen(TEN_SECONDS, indices=[0, bad, 2])


class TestTimestamps:
    def test_the_nearest_frame_is_taken_in_the_order_given(self) -> None:
        assert chosen(timeline([0, 100, 200]), timestamps=[0.16, 0, 0.14, 0.14]) == [2, 0, 1, 1]

    def test_a_tie_goes_to_the_earlier_frame(self) -> None:
        assert chosen(timeline([0, 100, 200]), timestamps=[0.05, 0.0500001, 0.15, 0.1 + 0.05]) == [0, 1, 1, 1]
        assert chosen(timeline([0, 1, 2]), timestamps=[0.0005, 0.0015]) == [0, 1]
        assert chosen(constant_rate(9, 3, Fraction(1, 3)), timestamps=[0.5, Fraction(1, 2), 1 / 6, 1 / 3]) == [
            1,
            1,
            0,
            1,
        ]

    def test_times_outside_are_clamped(self) -> None:
        assert chosen(TEN_SECONDS, timestamps=[-5, 1e300, -1e300, 9.99]) == [0, 299, 0, 299]

    def test_within_a_window_only_its_frames_are_taken(self) -> None:
        assert chosen(TEN_SECONDS, timestamps=[0, 1.5, 9], start=1, end=2) == [30, 45, 59]

    @given(clip=any_timeline)
    @bounded
    def test_the_times_of_frames_find_those_frames(self, clip: Timeline) -> None:
        if clip.ticks[-1] * clip.time_base > 10**6:
            return  # a double no longer tells ticks apart
        assert chosen(clip, timestamps=clip.seconds()) == list(range(clip.num_frames))

    @given(clip=any_timeline, times=st.lists(st.fractions(-5, 10**9, max_denominator=10**6), min_size=1, max_size=20))
    @bounded
    def test_timestamps_equal_brute_force_on_fractions(self, clip: Timeline, times: list[Fraction]) -> None:
        frame_times = [int(tick) * clip.time_base for tick in clip.ticks]
        expected = [min(range(clip.num_frames), key=lambda n: (abs(frame_times[n] - t), n)) for t in times]
        assert chosen(clip, timestamps=times) == expected


class TestWindow:
    def test_window_includes_start_and_excludes_end(self) -> None:
        assert chosen(TEN_SECONDS, start=1, end=1.1) == [30, 31, 32]
        assert chosen(TEN_SECONDS, start=9.9) == [297, 298, 299]
        assert chosen(TEN_SECONDS, end=0.1) == [0, 1, 2]
        assert chosen(TEN_SECONDS, start=0, end=1e300) == list(range(300))

    def test_other_options_choose_within_the_window(self) -> None:
        assert chosen(TEN_SECONDS, start=1, end=2, num_frames=3) == [30, 45, 59]
        assert chosen(TEN_SECONDS, start=1, end=3, fps=2) == [30, 45, 60, 75]
        assert chosen(TEN_SECONDS, start=1, end=3, max_frames=2) == [30, 89]

    def test_a_rate_counts_from_the_start_of_the_window(self) -> None:
        assert chosen(TEN_SECONDS, start=0.52, end=2, fps=2) == [16, 31, 46]
        assert chosen(TEN_SECONDS, start=0.51, end=2, fps=2) == [15, 30, 45]  # frame 15 starts at 0.5 s

    @pytest.mark.parametrize("fps", [10, 24, 25, Fraction(30_000, 1001), 30, Fraction(24_000, 1001), 60, 120, 240])
    @pytest.mark.parametrize("time_base", [Fraction(1, 1000), Fraction(1, 12800), Fraction(1, 90_000)])
    @pytest.mark.parametrize(
        "write",
        [np.float32, np.float64, lambda time: round(float(time), 3), lambda time: round(float(time), 6), Fraction],
        ids=["float32", "float64", "3 decimals", "6 decimals", "fraction"],
    )
    def test_a_window_of_rounded_times_has_its_frames(
        self, fps: Fraction, time_base: Fraction, write: Callable[[Fraction], float]
    ) -> None:
        """Datasets store k/fps with a few decimals; the container rounds the times of frames to its own ticks."""
        clip = constant_rate(9000, fps, time_base)
        for first, count in ((0, 1), (1, 1), (7, 3), (100, 25), (101, 1), (4321, 100), (8999, 1)):
            start, end = write(Fraction(first) / fps), write(Fraction(first + count) / fps)
            assert chosen(clip, start=start, end=end) == list(range(first, first + count))

    def test_a_bound_means_the_start_of_a_frame_less_than_half_a_frame_away(self) -> None:
        clip = timeline([0, 100, 200, 300, 400])
        assert chosen(clip, start=0.149) == [1, 2, 3, 4] and chosen(clip, start=0.151) == [2, 3, 4]
        assert chosen(clip, end=0.249) == [0, 1] and chosen(clip, end=0.251) == [0, 1, 2]
        assert chosen(clip, start=0.06, end=0.14) == [1]  # both bounds mean 0.1 s, so it is taken as it is

    def test_a_time_in_the_middle_of_a_long_frame_is_not_the_start_of_the_next_one(self) -> None:
        clip = timeline([0, 9000, *range(9033, 10_000, 33)])
        assert chosen(clip, start=4)[0] == 1 and chosen(clip, start=8.99)[0] == 1
        assert chosen(clip, start=0.01)[0] == 0

    def test_float_rounding_of_the_window_does_not_lose_a_frame(self) -> None:
        assert chosen(timeline([0, 100, 200, 300, 400]), start=0.1 + 0.2) == [3, 4]
        assert chosen(timeline([0, 100, 200, 300, 400]), end=0.1 + 0.2) == [0, 1, 2]

    @given(clip=any_timeline, which=st.integers(0, 60))
    @bounded
    def test_a_returned_time_is_the_start_of_its_frame(self, clip: Timeline, which: int) -> None:
        frame = min(which, clip.num_frames - 1)
        if clip.ticks[-1] * clip.time_base > 10**6:
            return  # a double no longer tells ticks apart
        assert chosen(clip, start=clip.seconds()[frame], num_frames=1) == [frame]

    @pytest.mark.parametrize(
        "window", [{"start": 10}, {"start": 9.99}, {"start": 0.018, "end": 0.03}, {"start": 1e300}]
    )
    def test_window_without_frames_error_names_the_duration(self, window: dict[str, float]) -> None:
        with pytest.raises(
            OptionsError, match=r"no frame begins between start = .* lasts 10 s .* begins at 9\.96667 s"
        ):
            chosen(TEN_SECONDS, **window)


class TestPolicies:
    def test_key_frames_are_all_or_evenly_reduced(self) -> None:
        assert chosen(TEN_SECONDS, policy="key_frames") == list(range(0, 300, 30))
        assert chosen(TEN_SECONDS, policy="key_frames", num_frames=3) == [0, 150, 270]
        assert chosen(TEN_SECONDS, policy="key_frames", max_frames=3) == [0, 150, 270]
        assert chosen(TEN_SECONDS, policy="key_frames", start=1.5, end=3.5) == [60, 90]

    def test_a_window_without_key_frames_is_an_error(self) -> None:
        with pytest.raises(OptionsError, match="none of the 3 frames of the window is a key frame"):
            chosen(TEN_SECONDS, policy="key_frames", start=1.1, end=1.2)

    def test_policy_uses_the_measured_clip(self) -> None:
        expected = apply_policy("qwen3_vl", ClipFacts(300, 30.0, 10.0), fps=1.0).tolist()
        assert chosen(TEN_SECONDS, policy="qwen3_vl", fps=1) == expected

    def test_policy_is_applied_to_the_window_as_to_a_whole_clip(self) -> None:
        alone = chosen(constant_rate(60, 30), policy="glm46v")
        assert chosen(TEN_SECONDS, policy="glm46v", start=2, end=4) == [60 + index for index in alone]

    def test_a_window_of_one_frame_has_the_rate_of_that_frame(self) -> None:
        assert chosen(TEN_SECONDS, policy="glmga", start=1, end=1.01) == [30, 30]


class TestChecks:
    @pytest.mark.parametrize("name", ["num_frames", "min_frames", "max_frames"])
    @pytest.mark.parametrize("value", [0, -1, True, np.True_, 8.0, "8", math.nan, [8], np.array([8])])
    def test_counts_are_positive_whole_numbers(self, name: str, value: Any) -> None:
        with pytest.raises(OptionsError, match=name):
            Sampling(**{name: value})

    @pytest.mark.parametrize(
        "value",
        [0, -1, math.nan, math.inf, True, np.False_, "2", 2e9, 10**400, np.array([2.0]), 1j, 1e-310,
         Fraction(1, 10**400), Fraction(10**400), Fraction(1, 10**5000)],
        ids=lambda value: type(value).__name__,
    )  # fmt: skip
    def test_a_rate_is_a_positive_number(self, value: Any) -> None:
        with pytest.raises(OptionsError, match="fps"):
            Sampling(fps=value)

    @pytest.mark.parametrize("name", ["start", "end"])
    @pytest.mark.parametrize(
        "value",
        [-0.1, math.nan, math.inf, True, "0:10", 10**400, Fraction(10**400), Fraction(-(10**5000), 7)],
        ids=lambda value: type(value).__name__,
    )
    def test_times_are_finite_and_not_negative(self, name: str, value: Any) -> None:
        with pytest.raises(OptionsError, match=name):
            Sampling(**{name: value})

    @pytest.mark.parametrize("policy", [None, KEY_FRAMES, *POLICIES])
    @pytest.mark.parametrize("fps", [1e-30, Fraction(1, 10**30), 1e9, Fraction(10**9)])
    @pytest.mark.parametrize("count", [1, 10**400])
    def test_every_accepted_value_can_be_computed_with(
        self, policy: str | None, fps: float | Fraction, count: int
    ) -> None:
        """Or is refused; nothing overflows."""
        takes = {KEY_FRAMES: ["num_frames", "max_frames"], None: ["num_frames", "fps", "max_frames"]}
        options = takes[policy] if policy in takes else list(policy_defaults(str(policy)))
        for name in options:
            given = {name: fps if name == "fps" else count}
            for more in ({}, {"fps": fps} if "fps" in options else {}):
                try:
                    indices = chosen(TEN_SECONDS, policy=policy, **(given | more))
                except OptionsError:
                    continue
                assert 0 <= min(indices) and max(indices) < 300

    @pytest.mark.parametrize("options", [{"num_frames": -(10**5000)}, {"min_frames": 10**5000, "max_frames": 1}])
    def test_a_number_too_long_to_print_is_refused_like_any_other(self, options: dict[str, int]) -> None:
        with pytest.raises(OptionsError, match="_frames is"):
            Sampling(**options)
        with pytest.raises(OptionsError, match="this clip has 300 frames"):
            chosen(TEN_SECONDS, indices=[10**5000])

    @pytest.mark.parametrize("window", [{"start": 2, "end": 2}, {"start": 2, "end": 1}, {"end": 0}])
    def test_end_must_be_after_start(self, window: dict[str, float]) -> None:
        with pytest.raises(OptionsError, match=r"end is .* must be greater than start"):
            Sampling(**window)

    @pytest.mark.parametrize(
        "value",
        [
            [],
            (),
            np.array([]),
            5,
            np.int64(5),
            "12",
            b"12",
            {1: 2},
            {1},
            [True],
            np.array([True]),
            [1.0],
            [None],
            [[1]],
        ],
    )
    def test_indices_are_a_list_of_whole_numbers(self, value: Any) -> None:
        with pytest.raises(OptionsError, match="indices"):
            Sampling(indices=value)

    @pytest.mark.parametrize(
        "value",
        [[], 1.5, "1.5", [True], [None], ["1"], [math.nan], np.array([0, np.inf]), np.zeros((2, 2)), np.array(1.0)],
    )
    def test_timestamps_are_a_list_of_finite_numbers(self, value: Any) -> None:
        with pytest.raises(OptionsError, match="timestamps"):
            Sampling(timestamps=value)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"indices": [1], "timestamps": [1.0]}, "indices and timestamps"),
            ({"indices": [1], "policy": "glm46v"}, "indices and policy"),
            ({"timestamps": [1.0], "policy": "key_frames"}, "timestamps and policy"),
            *[
                ({"indices": [1], name: 2}, f"{name} does not go with indices, which takes no other option")
                for name in ("num_frames", "min_frames", "max_frames", "fps", "start", "end")
            ],
            *[
                ({"timestamps": [1.0], name: 2}, f"{name} does not go with timestamps, which takes only start, end")
                for name in ("num_frames", "min_frames", "max_frames", "fps")
            ],
            (
                {"policy": "key_frames", "fps": 2},
                "fps does not go with policy 'key_frames', which takes only num_frames, max",
            ),
            ({"policy": "key_frames", "min_frames": 2}, "min_frames does not go with policy 'key_frames'"),
            (
                {"policy": "qwen3_vl", "num_frames": 8},
                "num_frames does not go with policy 'qwen3_vl', which takes only fps,",
            ),
            ({"policy": "glm46v", "fps": 2}, "fps does not go with policy 'glm46v', which takes only start, end"),
            ({"min_frames": 5, "max_frames": 4}, "min_frames is 5 and max_frames is 4"),
            ({"min_frames": 5, "num_frames": 4}, "min_frames is 5 and num_frames is 4"),
            ({"policy": "qwen4"}, "policy is 'qwen4'; it must be one of: clef_omni"),
            ({"policy": 4}, "policy is 4"),
            ({"policy": ["glm46v"]}, "policy is "),
        ],
    )
    def test_contradicting_options_are_refused_by_name(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionsError) as caught:
            Sampling(**options)
        assert message in str(caught.value)

    def test_numpy_numbers_become_python_numbers(self) -> None:
        sampling = Sampling(num_frames=np.int32(8), fps=np.float32(0.5), start=np.float64(1), end=np.int64(3))
        assert sampling == Sampling(num_frames=8, fps=0.5, start=1, end=3)
        assert type(sampling.num_frames) is int and type(sampling.fps) is float and type(sampling.end) is float

    def test_equal_options_are_equal_and_hash_alike(self) -> None:
        assert hash(Sampling(indices=np.array([1, 2]))) == hash(Sampling(indices=[1, 2]))
        assert Sampling(timestamps=np.array([0.5])) == Sampling(timestamps=(0.5,))

    def test_a_clip_without_frames_is_no_video(self) -> None:
        with pytest.raises(NoVideoError, match="no presentable frames"):
            select(Sampling(), Timeline(np.empty(0, np.int64), MILLISECOND, 0, np.empty(0, np.bool_)))


@pytest.mark.timing
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_frames": 32},
        {"fps": 2},
        {"fps": 14.99924934308522},  # no short fraction: integers of more than 64 bits
        {"fps": 2, "max_frames": 768},
        {"fps": 1e-3, "min_frames": 200_000},
        {"policy": "key_frames", "num_frames": 100},
        {"policy": "qwen2_vl"},
        {"timestamps": [float(second) for second in range(7000)]},
    ],
)
def test_sampling_two_hours_is_fast(options: dict[str, Any]) -> None:
    ticks: npt.NDArray[np.int64] = np.arange(216_000) * 100 // 3
    clip = timeline(ticks, end_tick=7_200_000, keys=range(0, 216_000, 250))
    began = time.perf_counter()
    select(Sampling(**options), clip)
    assert time.perf_counter() - began < 2  # under 0.1 s each on one idle core


def test_sampling_docs_examples_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "sampling.md"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert failed == 0 and attempted > 25


def test_sampling_docs_name_every_policy_with_its_options() -> None:
    rows = [line.split("|") for line in (Path(__file__).parents[2] / "docs" / "sampling.md").read_text().splitlines()]
    table = {name: row[3] for row in rows if len(row) == 5 for name in re.findall(r"`(\w+)`", row[1])}
    for policy in POLICIES:
        documented = dict(re.findall(r"`(\w+)` (\d+|none)", table[policy]))
        defaults = {name: "none" if value is None else f"{value:g}" for name, value in policy_defaults(policy).items()}
        assert documented == defaults, policy
