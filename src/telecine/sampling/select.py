"""Frame sampling: choose frame indices from the options of a request and the timeline of its video.

Pure functions, no decoding. Times are compared as integers and fractions of ticks, so that no frame is missed because
seconds were rounded. Floats of the options are converted once, by :func:`_to_ticks` and :func:`_exact_rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from telecine.errors import NoVideoError, OptionsError
from telecine.sampling.policies import KEY_FRAMES, ClipFacts, apply_policy, may_be_rounded, policy_defaults
from telecine.timeline import Timeline
from telecine.validation import Checked, Option, format_value, to_float, to_int

__all__ = ["Sampling", "select"]

IntArray = npt.NDArray[np.int64]
Seconds = float | Fraction

_COUNTS = ("num_frames", "min_frames", "max_frames")
_MAX_COUNT = 1 << 62
"""Larger counts are reduced to this: no video has more frames, and it is exact as a float."""
_POSITIVE_COUNT = Option(int, low=1)
_FPS = Option(float, low=1e-30, high=10**9)
_TIME = Option(float, low=0, high=1e308)
_RATE_TOLERANCE = 1 / 4000
"""Relative difference of rates that are the same: a quarter of that between 30 and 30000/1001."""
_NANOSECOND = Fraction(1, 10**9)


def _count(name: str, value: object) -> int:
    count: int = _POSITIVE_COUNT.check(name, value)
    return min(count, _MAX_COUNT)


def _number(name: str, value: object) -> Seconds | None:
    (_FPS if name == "fps" else _TIME).check(name, value)
    return _finite(value)


def _finite(value: object) -> Seconds | None:
    number = to_float(value)
    if number is None or not math.isfinite(number):
        return None
    return value if isinstance(value, Fraction) else number


def _items(parse: Callable[[object], object], allowed: str, name: str, values: Any) -> tuple[Any, ...]:
    # arrays of any library become lists of Python numbers, nested if they have more than one dimension
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise OptionsError(f"{name} is of type {type(values).__name__}; it must be a list or an array of one dimension")
    if not values:
        raise OptionsError(f"{name} is empty; name at least one frame")
    items = tuple(map(parse, values))
    if None in items:
        refused = format_value(values[items.index(None)])
        raise OptionsError(f"{name} contains {refused}; it must contain {allowed} only")
    return items


_indices = partial(_items, to_int, "whole numbers")
_timestamps = partial(_items, _finite, "finite numbers")


Array: TypeAlias = npt.NDArray[Any]
OptionalCount: TypeAlias = Checked[SupportsIndex | None, int | None]
OptionalNumber: TypeAlias = Checked[SupportsFloat | None, Seconds | None]


@dataclass(frozen=True)
class Sampling:
    """The sampling options of a request. Without any option every frame is chosen.

    Numbers of NumPy and ``Fraction`` are accepted. Lists and arrays are kept as tuples.

    Raises:
        OptionsError: a value is out of range, or options contradict each other.
    """

    num_frames: OptionalCount = Checked(None, _count)
    """Number of frames, spread evenly from the first to the last; all if the clip has fewer."""
    fps: OptionalNumber = Checked(None, _number)
    """Choose the frame shown at each multiple of ``1/fps`` seconds; with ``num_frames`` that many at most."""
    min_frames: OptionalCount = Checked(None, _count)
    """Minimum number of frames if ``fps`` gives fewer and the clip has them."""
    max_frames: OptionalCount = Checked(None, _count)
    """Maximum number of frames."""
    indices: Checked[Sequence[SupportsIndex] | Array | None, tuple[int, ...] | None] = Checked(None, _indices)
    """Frame indices, returned in this order."""
    timestamps: Checked[Sequence[SupportsFloat] | Array | None, tuple[Seconds, ...] | None] = Checked(None, _timestamps)
    """Times in seconds after the first frame; the nearest frame of each is returned, in this order."""
    start: OptionalNumber = Checked(None, _number)
    """Start of the window to choose from, in seconds after the first frame; means the start of a frame close to it."""
    end: OptionalNumber = Checked(None, _number)
    """End of the window to choose from, exclusive, in seconds after the first frame; rounded as ``start``."""
    policy: str | None = None
    """Name of a model's own sampling rule, or ``"key_frames"``."""

    def __post_init__(self) -> None:
        if self.end is not None and self.end <= (self.start or 0):
            start = format_value(self.start or 0)
            raise OptionsError(f"end is {format_value(self.end)}; it must be greater than start, which is {start}")
        for name in ("num_frames", "max_frames"):
            maximum = getattr(self, name)
            if self.min_frames is not None and maximum is not None and self.min_frames > maximum:
                raise OptionsError(
                    f"min_frames is {self.min_frames} and {name} is {maximum}; min_frames must not be larger"
                )
        choosers = [name for name in ("indices", "timestamps", "policy") if getattr(self, name) is not None]
        if len(choosers) > 1:
            raise OptionsError(f"{' and '.join(choosers)} each choose the frames by themselves; give only one of them")
        if choosers:
            self._check_combination(choosers[0])

    def _check_combination(self, chooser: str) -> None:
        """Refuse the options that do not go with indices, timestamps or policy."""
        takes = [] if chooser == "indices" else ["start", "end"]
        if self.policy is not None:
            chooser = f"policy {self.policy!r}"
            takes = [*policy_defaults(self.policy), *takes]
        for name in (*_COUNTS, "fps", "start", "end"):
            if getattr(self, name) is not None and name not in takes:
                allowed = f"only {', '.join(takes)}" if takes else "no other option"
                raise OptionsError(f"{name} does not go with {chooser}, which takes {allowed}")


def select(sampling: Sampling, timeline: Timeline) -> IntArray:
    """Choose frame indices: ``int64 [N]``, N at least 1, strictly increasing.

    Explicit indices and timestamps keep their order and repeats, and some policies repeat frames.
    """
    if timeline.num_frames == 0:
        raise NoVideoError("the video has no presentable frames")
    if sampling.indices is not None:
        return _explicit(sampling.indices, timeline.num_frames)
    first, stop = _window(sampling, timeline)
    if sampling.timestamps is not None:
        return first + _nearest(sampling.timestamps, timeline.ticks[first:stop], timeline.time_base)
    if sampling.policy == KEY_FRAMES:
        return first + _key_frames(sampling, timeline, first, stop)
    if sampling.policy is not None:
        return first + _by_policy(sampling.policy, sampling, timeline, first, stop)
    if sampling.fps is not None:
        return first + _by_rate(sampling.fps, sampling, timeline, first, stop)
    return first + _by_count(sampling, timeline.ticks[first:stop])


def _explicit(indices: tuple[int, ...], num_frames: int) -> IntArray:
    for index in (min(indices), max(indices)):
        if not 0 <= index < num_frames:
            raise OptionsError(
                f"indices contains {format_value(index)}; this clip has {num_frames} frames, "
                f"so an index is from 0 to {num_frames - 1}"
            )
    return np.array(indices, np.int64)


def _to_ticks(seconds: Seconds, time_base: Fraction) -> Fraction:
    """Convert seconds to ticks. A float within a nanosecond of a whole or half tick means that tick.

    So 0.1 + 0.2, or a timestamp of a result, is the time of the frame and not 1e-17 s off. Midpoints between frames
    are at half ticks.
    """
    halves = 2 * Fraction(seconds) / time_base
    nearest = round(halves)
    if isinstance(seconds, float) and abs(halves - nearest) * time_base < 2 * _NANOSECOND:
        return Fraction(nearest, 2)
    return halves / 2


def _snap(seconds: Seconds | None, timeline: Timeline) -> Fraction | None:
    """Convert a bound of a window to ticks; within half a frame of the start of a frame, or of the end, it means that.

    Users and datasets write k/fps as a float32 or with a few decimals, and containers round times to ticks. Half of a
    usual frame, the median: a time in the middle of a long frame is not the start of the next one.
    """
    if seconds is None:
        return None
    tick = _to_ticks(seconds, timeline.time_base)
    starts = np.append(timeline.ticks, timeline.end_tick)
    after = int(np.searchsorted(starts, min(math.ceil(tick), timeline.end_tick)))
    nearest = min(starts[max(0, after - 1) : after + 1].tolist(), key=lambda start: abs(start - tick))
    return Fraction(nearest) if 2 * abs(nearest - tick) < float(np.median(np.diff(starts))) else tick


def _exact_rate(fps: Seconds) -> Fraction:
    """Return the rate that a float means: 30000/1001 and 1/10, not the nearest binary fractions."""
    simple = Fraction(fps).limit_denominator(1_000_000)
    return simple if float(simple) == fps else Fraction(fps)


def _window(sampling: Sampling, timeline: Timeline) -> tuple[int, int]:
    """Return the range of frames with a time in [start, end): the first index, and the index after the last."""

    def frames_before(bound: Fraction | None) -> int:
        tick = timeline.end_tick if bound is None else min(math.ceil(bound), timeline.end_tick)
        return int(np.searchsorted(timeline.ticks, tick))

    first, stop = (frames_before(_snap(bound, timeline)) for bound in (sampling.start or 0.0, sampling.end))
    if first >= stop and sampling.end is not None:
        # a window shorter than half a frame
        bounds = (_to_ticks(bound, timeline.time_base) for bound in (sampling.start or 0.0, sampling.end))
        first, stop = map(frames_before, bounds)
    if first >= stop:
        end = "the end" if sampling.end is None else f"end = {float(sampling.end):g} s"
        last = float(timeline.seconds()[-1])
        raise OptionsError(
            f"no frame begins between start = {float(sampling.start or 0):g} s and {end}: this clip lasts "
            f"{timeline.duration:g} s and its last frame begins at {last:g} s; choose a window that holds a frame"
        )
    return first, stop


def _nearest(times: tuple[Seconds, ...], ticks: IntArray, time_base: Fraction) -> IntArray:
    """Return the nearest frame of each time; the earlier one if the time is exactly between two."""
    lowest, highest = 2 * int(ticks[0]), 2 * int(ticks[-1])
    doubled = [2 * _to_ticks(seconds, time_base) for seconds in times]
    floors = np.array([min(max(math.floor(time), lowest), highest) for time in doubled], np.int64)
    ceilings = np.array([min(max(math.ceil(time), lowest), highest) for time in doubled], np.int64)
    before = np.searchsorted(ticks, floors // 2, side="right") - 1
    after = np.minimum(before + 1, len(ticks) - 1)
    # the sum of two ticks is twice their midpoint; the later frame is chosen only for times after it
    return np.where(ticks[before] + ticks[after] < ceilings, after, before)


def _key_frames(sampling: Sampling, timeline: Timeline, first: int, stop: int) -> IntArray:
    keys = np.flatnonzero(timeline.key[first:stop])
    if len(keys) == 0:
        raise OptionsError(
            f"policy 'key_frames': none of the {stop - first} frames of the window is a key frame; "
            "widen start and end, or leave out the policy"
        )
    return keys[_spread(len(keys), _capped(len(keys), sampling.num_frames, sampling.max_frames))]


def _capped(count: int, *bounds: int | None) -> int:
    return min([count, *(bound for bound in bounds if bound is not None)])


def _by_policy(policy: str, sampling: Sampling, timeline: Timeline, first: int, stop: int) -> IntArray:
    """Apply a policy to the window as if it were the whole clip."""
    begin = int(timeline.ticks[first])
    end = int(timeline.ticks[stop]) if stop < timeline.num_frames else timeline.end_tick
    window = Timeline(timeline.ticks[first:stop] - begin, timeline.time_base, end - begin, timeline.key[first:stop])
    fps = None if sampling.fps is None else float(sampling.fps)
    return apply_policy(policy, ClipFacts.of(window), fps=fps, **{name: getattr(sampling, name) for name in _COUNTS})


def _by_count(sampling: Sampling, ticks: IntArray) -> IntArray:
    requested = _capped(len(ticks), sampling.num_frames)
    count = _capped(requested, sampling.max_frames)
    return _spread(len(ticks), count) if count == requested else _spread_in_time(ticks, count)


def _by_rate(fps: Seconds, sampling: Sampling, timeline: Timeline, first: int, stop: int) -> IntArray:
    picks = _shown_at_rate(fps, sampling, timeline, first, stop)
    count = _capped(max(len(picks), sampling.min_frames or 0), sampling.num_frames, sampling.max_frames, stop - first)
    return picks if count == len(picks) else _spread_in_time(timeline.ticks[first:stop], count)


def _shown_at_rate(fps: Seconds, sampling: Sampling, timeline: Timeline, first: int, stop: int) -> IntArray:
    """Return the frames shown at multiples of 1/fps s after the window's start, each once.

    A frame is chosen if a multiple falls into its display time, so the work does not grow with ``fps``. If ticks may be
    rounded, each frame starts half a tick earlier: frame 20 at 30 fps starts at 666.67 ms, stored in Matroska as 667.
    """
    ticks = timeline.ticks[first:stop]
    step = 1 / (_exact_rate(fps) * timeline.time_base)
    rounded = may_be_rounded(timeline)
    if len(ticks) == 1 or _is_every_frame_due(ticks, step):
        return np.arange(len(ticks))
    origin = _snap(sampling.start, timeline) or Fraction(0)
    end = min(Fraction(timeline.end_tick - rounded), _snap(sampling.end, timeline) or math.inf)
    # the last frame counts at its own time, however short it is
    multiples = max(math.ceil((end - origin) / step), math.floor((int(ticks[-1]) - origin) / step) + 1)

    # in half ticks: the number of multiples before each frame is ceil((2 * tick - rounded - 2 * origin) / (2 * step))
    scale = origin.denominator * step.denominator
    offset = 2 * origin.numerator * step.denominator
    divisor = 2 * step.numerator * origin.denominator
    too_long = max(2 * int(ticks[-1]) * scale + offset, divisor) >= 2**62
    shown_from = (2 * ticks - rounded).astype(object if too_long else np.int64) * scale - offset
    before = np.minimum(-(-shown_from // divisor), multiples).astype(np.int64)
    before[0] = 0  # multiples before the window's first frame choose that frame
    return np.flatnonzero(np.diff(before, append=multiples))


def _is_every_frame_due(ticks: IntArray, step: Fraction) -> bool:
    """Return True if no frame is shorter than a step, or the rate is that of the video, with jitter and missing frames.

    The video has a rate if nine of ten frames last about as long as the median. Then their mean is compared: at the
    video's own rate the multiples fall close to the frames' starts, and with jitter on either side of them.
    """
    gaps = np.diff(ticks)
    usual = gaps[np.abs(2 * gaps - 2 * np.median(gaps)) <= np.median(gaps)]
    has_rate = 10 * len(usual) >= 9 * len(gaps)
    return bool(step <= int(gaps.min()) or (has_rate and step <= float(usual.mean()) * (1 + _RATE_TOLERANCE)))


def _spread(available: int, count: int) -> IntArray:
    """Return ``count`` positions from the first to the last of ``available``, rounded half up; the first if one."""
    gaps = max(1, count - 1)
    return (2 * np.arange(count) * (available - 1) + gaps) // (2 * gaps)


def _spread_in_time(ticks: IntArray, count: int) -> IntArray:
    """Return ``count`` different frames, nearest to as many even times from the first frame to the last.

    A time halfway between two frames takes the later one, so that this equals :func:`_spread` at a constant rate.
    """
    order, gaps = np.arange(count), max(1, count - 1)
    offsets = ticks - ticks[0]
    # floor(2 * i * duration / gaps), split to stay within 64 bits
    quotient, remainder = divmod(2 * int(offsets[-1]), gaps)
    doubled = order * quotient + order * remainder // gaps
    before = np.searchsorted(offsets, doubled // 2, side="right") - 1
    after = np.minimum(before + 1, len(ticks) - 1)
    nearest = np.where(offsets[before] + offsets[after] <= doubled, after, before)
    # several times may fall into one long frame; each gets a frame of its own, and enough remain for the last ones
    distinct = order + np.maximum.accumulate(nearest - order)
    return np.minimum(distinct, len(ticks) - count + order)
