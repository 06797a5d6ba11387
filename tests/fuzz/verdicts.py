"""Judges a result: are the frames the right ones, and are those missing that damage cannot excuse?"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt

import telecine
from fuzz.corpus import Seed
from fuzz.mutations import Case
from support.painting import UnreadableNumber, read_number
from telecine import Limits

__all__ = ["HARD_VERDICTS", "LIMITS", "Finding", "check_case", "clean_numbers"]

LIMITS = Limits(max_pixels=1 << 22, max_output_bytes=128 << 20, max_packets=100_000)
"""Limits of every request."""
HARD_VERDICTS = frozenset((
    "crash", "hang", "memory", "foreign exception", "wrong frame", "sound frames lost", "refused", "inconsistent",
    "invalid result",
))  # fmt: skip
"""Verdicts that no backend may get. The others are "hidden damage", which some codecs cannot reveal, and "renumbered
with a note" if the mutation may have destroyed the times."""
_BLOCK = 16
_MAX_BLOCK_DIFFERENCE = 8.0
"""Largest mean difference of a block of pixels from the true picture that still counts as the same."""
_MAX_FRAMES = 2000
"""Videos that claim more frames are loaded in samples."""

_OTHER_OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_frames": 4},
    {"fps": 2, "max_frames": 8},
    {"num_frames": 3, "size": 32},
    {"start": 0.2, "num_frames": 2, "layout": "NCHW", "size": (40, 48)},
)
_STRICT_SHARE = 0.3
"""Share of the cases that are also loaded with ``errors="strict"``."""

Picture = npt.NDArray[np.uint8]
Load = Callable[..., telecine.Frames]


@dataclass(frozen=True)
class Finding:
    """A fault that a case has shown."""

    verdict: str
    detail: str


def clean_numbers(pictures: Picture, seed: Seed, expected: Sequence[int] = ()) -> list[int | None]:
    """Return the index of the true frame that each picture shows undamaged; None if it is damaged or another size.

    Args:
        pictures: ``uint8 [N, H, W, 3]``.
        seed: the intact file.
        expected: the index that each is compared with first, which only saves time.
    """
    numbers: list[int | None] = [None] * len(pictures)
    known = np.asarray(expected, int)
    if len(known) == len(pictures) and known.max() < len(seed.pictures):
        right = _are_close(pictures, seed.pictures[known])
        numbers = [int(index) if same else None for index, same in zip(known, right, strict=True)]
    return [_read(pictures[n], seed) if found is None else found for n, found in enumerate(numbers)]


def _read(picture: Picture, seed: Seed) -> int | None:
    try:
        index = read_number(picture) - _first_number(seed)
    except (UnreadableNumber, IndexError, ValueError):
        return None
    if not 0 <= index < len(seed.pictures) or not _are_close(picture[None], seed.pictures[index : index + 1])[0]:
        return None
    return index


@cache
def _first_number(seed: Seed) -> int:
    return read_number(seed.pictures[0])


def _are_close(pictures: Picture, others: Picture) -> npt.NDArray[np.bool_]:
    """Return for each picture whether no block of it differs much from that of the other one."""
    if pictures.shape != others.shape:
        return np.zeros(len(pictures), bool)
    height, width = (side // _BLOCK * _BLOCK for side in pictures.shape[1:3])
    one, two = pictures[:, :height, :width], others[:, :height, :width]
    difference = (np.maximum(one, two) - np.minimum(one, two)).reshape(
        len(one), height // _BLOCK, _BLOCK, -1, _BLOCK * 3
    )
    result: npt.NDArray[np.bool_] = difference.mean((2, 4), dtype=np.float32).max((1, 2)) <= _MAX_BLOCK_DIFFERENCE
    return result


def check_case(case: Case, load: Load, detects_damage: bool = True) -> tuple[str, list[Finding]]:
    """Load a mutated file in several ways and judge the results.

    Args:
        case: the mutated file.
        load: loads a source with the backend under test, as :func:`telecine.load` does.
        detects_damage: True if the backend promises to find damage inside pictures.

    Returns:
        The outcome in one word, and the findings.
    """
    try:
        info = telecine.probe(case.data, limits=LIMITS)
        frames = load(case.data, **_options(info))
    except telecine.TelecineError as error:
        return type(error).__name__, list(_judge_refusal(case, error, load))
    findings = [Finding("invalid result", what) for what in _invariants(frames, info)]
    if frames.shape[1:3] == (info.height, info.width):
        shown = clean_numbers(frames.numpy(), case.seed, frames.indices.tolist())
        findings += _judge_frames(case, frames, shown, detects_damage)
        findings += _judge_alone(case, frames, shown, load, detects_damage)
    findings += _judge_options(case, frames, load)
    return "frames", findings


def _options(info: telecine.VideoInfo) -> dict[str, Any]:
    total = info.num_frames * info.width * info.height * 3
    if info.num_frames > _MAX_FRAMES or total > LIMITS.max_output_bytes:
        return {"num_frames": 8, "size": 64}
    return {"indices": range(info.num_frames)}


def _judge_refusal(case: Case, error: telecine.TelecineError, load: Load) -> Iterable[Finding]:
    if case.at_risk is None or len(case.at_risk) == len(case.seed.pictures) or not _is_harmless(case):
        return
    if isinstance(error, telecine.UnsupportedVideoError) and _is_refused(case.seed, load):
        return
    yield Finding("refused", f"{type(error).__name__}: {error}")


def _is_refused(seed: Seed, load: Load) -> bool:
    """Return True if the backend refuses the intact file too."""
    try:
        load(seed.data, indices=[0])
    except telecine.UnsupportedVideoError:
        return True
    return False


def _is_harmless(case: Case) -> bool:
    """Return True unless frames were claimed to be safe that FFmpeg does not show undamaged either."""
    sound = {number for _, number in decode_plainly(case)}
    assert case.at_risk is not None
    return sound >= set(range(len(case.seed.pictures))) - case.at_risk


def decode_plainly(case: Case) -> list[tuple[float | None, int]]:
    """Decode a mutated file with PyAV alone, one thread and no index; return time and number of each clean picture."""
    found: list[tuple[float | None, int]] = []
    try:
        with av.open(io.BytesIO(case.data)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            for packet in itertools.islice(container.demux(stream), 2000):
                try:
                    decoded = packet.decode()
                except (av.FFmpegError, ValueError):
                    continue
                for frame in decoded[:100]:
                    number = _read(frame.to_ndarray(format="rgb24"), case.seed)
                    if number is not None:
                        found.append((frame.time, number))
    except (av.FFmpegError, ValueError, IndexError, OverflowError, MemoryError):
        pass
    return found


def _invariants(frames: telecine.Frames, info: telecine.VideoInfo) -> Iterable[str]:
    """Yield each contradiction inside a result."""
    indices, times, lost = frames.indices, frames.timeline.seconds(), frames.report.lost
    checks = {
        "info differs from that of probe": frames.info == info,
        "numbers of frames, indices and times differ": len(frames.data) == len(indices) == len(frames.timestamps) > 0,
        "not uint8 RGB": frames.data.dtype == np.uint8 and 3 in frames.shape[1::2],
        "an index out of range": indices.min() >= 0 and indices.max() < info.num_frames,
        "a frame is both returned and lost": not set(indices.tolist()) & set(lost),
        "times do not start at 0 and rise": times[0] == 0 and bool((np.diff(times) > 0).all()),
        "timeline and num_frames differ": len(times) == info.num_frames,
        "duration ends before the last frame": times[-1] < info.duration <= LIMITS.max_seconds,
        "timestamps differ from the timeline": bool(np.array_equal(frames.timestamps, times[indices])),
        "average_fps or start_time is not sensible": 0 <= info.average_fps < 1e9 and bool(np.isfinite(info.start_time)),
        "rotation is not a quarter turn": info.rotation in (0, 90, 180, 270),
    }  # fmt: skip
    return [what for what, holds in checks.items() if not holds]


def _judge_frames(
    case: Case, frames: telecine.Frames, shown: list[int | None], detects_damage: bool
) -> Iterable[Finding]:
    indices = frames.indices.tolist()
    absolute = frames.timestamps + frames.info.start_time
    wrong = [
        (index, number)
        for index, number, time in zip(indices, shown, absolute.tolist(), strict=True)
        if number is not None and not _is_right(case, index, number, time)
    ]
    damaged = [index for index, number in zip(indices, shown, strict=True) if number is None]
    if not detects_damage:
        # decoders replace damaged pictures by copies of others, which are also at their own indices
        copies = [(index, number) for index, number in wrong if number in indices]
        copies = [(i, n) for i, n in copies if shown[indices.index(n)] == n and _is_at_risk(case, i)]
        wrong, damaged = [pair for pair in wrong if pair not in copies], damaged + [index for index, _ in copies]
    if wrong and _is_confirmed(case, wrong, frames):
        verdict = "renumbered with a note" if case.identity != "index" and _has_rebuilt_times(frames) else "wrong frame"
        yield Finding(verdict, f"(index, shown): {wrong[:6]}; {len(wrong)} of {len(shown)}; {case.identity}")
    if damaged and case.identity != "none":
        yield Finding("hidden damage", f"frames {damaged[:8]}, {len(damaged)} of {len(shown)}")
    if case.at_risk is not None and case.identity != "none":
        missing = set(range(len(case.seed.pictures))) - case.at_risk - {n for n in shown if n is not None}
        if missing and _is_harmless(case):
            yield Finding("sound frames lost", f"{sorted(missing)[:10]}, {len(missing)} of {len(case.seed.pictures)}")


def _has_rebuilt_times(frames: telecine.Frames) -> bool:
    return any(note.code == "times-rebuilt" for note in frames.report.notes)


def _is_at_risk(case: Case, index: int) -> bool:
    return case.at_risk is None or index in case.at_risk


def _is_right(case: Case, index: int, number: int, time: float) -> bool:
    if case.identity == "index":
        return index == number
    step = 0.4 * float(case.seed.times[1] - case.seed.times[0])
    return index == number or abs(time - float(case.seed.times[number])) < step


def _is_confirmed(case: Case, wrong: list[tuple[int, int]], frames: telecine.Frames) -> bool:
    """Return True if the identity of frames is known from the mutation, or FFmpeg shows other frames at these times."""
    if case.identity != "none":
        return True
    plain = [(time, number) for time, number in decode_plainly(case) if time is not None]
    absolute = dict(zip(frames.indices.tolist(), (frames.timestamps + frames.info.start_time).tolist(), strict=True))
    return any(
        any(shown == number for _, shown in plain)
        and not any(shown == number and abs(time - absolute[index]) < 0.02 for time, shown in plain)
        for index, number in wrong
    )


def _judge_alone(
    case: Case, frames: telecine.Frames, shown: list[int | None], load: Load, detects_damage: bool
) -> Iterable[Finding]:
    """Load some frames alone, and all strictly; they must agree with the first result."""
    count = frames.info.num_frames
    together = dict(zip(frames.indices.tolist(), shown, strict=True))
    rng = random.Random(case.number)
    for index in {rng.randrange(count), count - 1}:
        expected = together.get(index)
        try:
            alone = load(case.data, indices=[index])
        except telecine.TelecineError as error:
            if expected is not None:
                yield Finding("inconsistent", f"frame {index} is returned with others, but not alone: {error}")
            continue
        number = clean_numbers(alone.numpy(), case.seed, [index])[0]
        is_concealed = not detects_damage and _is_at_risk(case, index) and (expected != index or number is None)
        if number != expected and expected is not None and not is_concealed:
            what = "is damaged" if number is None else f"shows {number}"
            yield Finding("inconsistent", f"frame {index} shows {expected} with others, but {what} if loaded alone")
    if rng.random() < _STRICT_SHARE:
        yield from _judge_strict(case, frames, load)


def _judge_options(case: Case, frames: telecine.Frames, load: Load) -> Iterable[Finding]:
    """Load a sample of the frames with other options, which must give a consistent result too."""
    options = random.Random(case.number).choice(_OTHER_OPTIONS)
    try:
        sample = load(case.data, **options)
    except (telecine.DecodeError, telecine.OptionsError):
        return  # the damage is at these frames, or the video has become too short
    except telecine.TelecineError as error:
        yield Finding("inconsistent", f"{options} raises {type(error).__name__}: {error}")
        return
    for what in _invariants(sample, frames.info):
        yield Finding("invalid result", f"{what} with {options}")
    if not np.array_equal(sample.timeline.seconds(), frames.timeline.seconds()):
        yield Finding("inconsistent", f"times differ with {options}")


def _judge_strict(case: Case, frames: telecine.Frames, load: Load) -> Iterable[Finding]:
    lost = frames.report.lost
    try:
        load(case.data, errors="strict", **_options(frames.info))
    except telecine.DecodeError:
        if not lost:
            yield Finding("inconsistent", 'no frame is lost, yet errors="strict" raises')
    except telecine.TelecineError as error:
        yield Finding("inconsistent", f'errors="strict" raises {type(error).__name__}: {error}')
    else:
        if lost:
            yield Finding("inconsistent", f'frames {lost[:8]} are lost, yet errors="strict" succeeds')
