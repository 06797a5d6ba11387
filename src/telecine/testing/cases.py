"""The cases of the conformance suite. Each check raises :class:`Mismatch` if a backend violates the contract."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from telecine.deadline import Deadline, Timeout
from telecine.errors import Cancelled, DeadlineError, DecodeError, LimitError, OptionsError, SourceError, TelecineError
from telecine.frames import Frames
from telecine.limits import Limits
from telecine.pipeline import run_request
from telecine.request import Request
from telecine.testing.clips import CLIPS, Clip, make_clip
from telecine.testing.comparison import decode_with_ffmpeg, max_difference
from telecine.testing.test_pattern import UnreadableNumber, read_number

__all__ = ["CASES", "BackendUnderTest", "Case", "Mismatch"]

_MAX_COLOUR_DIFFERENCE = 4
"""Largest difference of a channel from the colour that was encoded."""


class Mismatch(AssertionError):
    """A result is not the expected one."""


@dataclass(frozen=True)
class BackendUnderTest:
    """A backend with the device and the options that it is tested with."""

    backend: str
    device: str
    options: dict[str, Any]

    def load(self, source: Any, **options: Any) -> Frames:
        """Load frames as :func:`telecine.load` does, with this backend."""
        return _load(source, backend=self.backend, device=self.device, **self.options, **options)


def _load(source: Any, timeout: Timeout = None, **options: Any) -> Frames:
    return run_request(Request.of(source, **options), Deadline.of(timeout))


@dataclass(frozen=True)
class Case:
    """One check of the suite."""

    name: str
    description: str
    check: Callable[[BackendUnderTest], int | None]
    """Returns the largest difference of a pixel from the reference frames; None if no pixels are compared."""
    may_refuse: bool = False
    """True if a backend may raise ``UnsupportedVideoError``, provided that it declares so in ``refused_cases``."""
    needs_damage_detection: bool = False
    """True if only a backend that detects damage can pass."""


def _expect_equal(got: Any, expected: Any, what: str) -> None:
    if got != expected:
        raise Mismatch(f"{what}: {_shorten(got)}; expected {_shorten(expected)}")


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _expect_frames(clip: Clip, frames: Frames, wanted: Sequence[int] | None = None) -> None:
    """Compare indices, times, lost frames, and painted numbers or colour with those of the clip."""
    wanted = range(len(clip.times)) if wanted is None else wanted
    _expect_equal(frames.indices.tolist(), [index for index in wanted if index not in clip.lost], "indices")
    _expect_equal(set(frames.report.lost), set(wanted) & clip.lost, "frames reported as lost")
    _expect_equal(frames.numpy().shape, (len(frames), clip.height, clip.width, 3), "shape")
    _expect_equal(frames.numpy().dtype, "uint8", "dtype")
    times = [clip.times[index] for index in frames.indices]
    if not np.allclose(frames.timestamps, times, atol=1e-3):
        raise Mismatch(f"times: {_shorten(frames.timestamps.tolist())}; expected {_shorten(times)}")
    if clip.numbers:
        _expect_numbers(clip, frames)
    if clip.colour is not None:
        off = max_difference(frames.numpy(), np.broadcast_to(np.array(clip.colour, np.uint8), frames.numpy().shape))
        if off > _MAX_COLOUR_DIFFERENCE:
            raise Mismatch(f"colour: differs by up to {off} from {clip.colour}")


def _expect_numbers(clip: Clip, frames: Frames) -> None:
    painted = [_read_or_none(image) for image in frames.numpy()]
    _expect_equal(painted, [clip.numbers[index] for index in frames.indices], "painted numbers")


def _read_or_none(image: Any) -> int | None:
    try:
        return read_number(image)
    except UnreadableNumber:
        return None


def _check_clip(name: str, subject: BackendUnderTest) -> int | None:
    """Load all frames of a clip, and some of them alone."""
    clip = make_clip(name)
    frames = subject.load(clip.data)
    _expect_frames(clip, frames)
    last = len(clip.times) - 1
    for wanted in ([last], [0, last // 2, last], [last // 3]):
        if not set(wanted) - clip.lost:
            continue
        some = subject.load(clip.data, indices=wanted)
        _expect_frames(clip, some, wanted)
        rows = [frames.indices.tolist().index(index) for index in some.indices]
        if not np.array_equal(some.numpy(), frames.numpy()[rows]):
            raise Mismatch(f"frames {some.indices.tolist()} loaded alone have other pixels than with all frames")
    return _difference(clip, frames)


def _difference(clip: Clip, frames: Frames) -> int:
    """Return the largest difference from the frames of the ffmpeg command line, or of ``pyav`` if it cannot be used."""
    expected = decode_with_ffmpeg(clip.data, clip.width, clip.height) if not clip.lost else None
    if expected is not None and len(expected) == len(clip.times):
        return max_difference(frames.numpy(), expected[frames.indices])
    reference = _load(clip.data, indices=frames.indices, backend="pyav", device="cpu")
    common = np.isin(frames.indices, reference.indices)
    return max_difference(frames.numpy()[common], reference.numpy())


def _check_order(subject: BackendUnderTest) -> None:
    clip = make_clip("h264")
    wanted = random.Random(1).sample(range(len(clip.times)), 20)
    wanted += wanted[:4]
    _expect_frames(clip, subject.load(clip.data, indices=wanted), wanted)


def _check_timestamps(subject: BackendUnderTest) -> None:
    clip = make_clip("variable-rate")
    wanted = [40, 3, 25]
    times = [clip.times[index] + 0.004 for index in wanted]
    _expect_frames(clip, subject.load(clip.data, timestamps=times), wanted)


def _check_size(subject: BackendUnderTest) -> int | None:
    difference = 0
    for name, size in (("h264", (72, 88)), ("h264", 200), ("rotated-90", 60)):
        clip = make_clip(name)
        frames = subject.load(clip.data, num_frames=5, size=size)
        reference = _load(clip.data, num_frames=5, size=size, backend="pyav", device="cpu")
        _expect_equal(frames.numpy().shape, reference.numpy().shape, "shape")
        _expect_numbers(clip, frames)
        difference = max(difference, max_difference(frames.numpy(), reference.numpy()))
    return difference


def _check_strict(subject: BackendUnderTest) -> None:
    damaged = make_clip("corrupt-packet").data
    _expect_error(DecodeError, 'a damaged clip with errors="strict"', subject, damaged, errors="strict")


def _check_limits(subject: BackendUnderTest) -> None:
    for limits in (Limits(max_frames=4), Limits(max_output_bytes=10_000), Limits(max_pixels=100)):
        _expect_error(LimitError, "a request over a limit", subject, make_clip("h264").data, limits=limits)


def _check_invalid_input(subject: BackendUnderTest) -> None:
    data = make_clip("h264").data
    noise = np.random.default_rng(3).integers(0, 256, 4096, np.uint8).tobytes()
    for invalid in (b"", b"no video at all, but text", noise, data[:600], b"\0" * 10_000):
        _expect_error(SourceError, f"{len(invalid)} bytes that are no video", subject, invalid)
    # a clip with random bytes changed gives frames or an error of this package
    for seed in range(12):
        changed, generator = bytearray(data), random.Random(seed)
        for _ in range(6):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        try:
            frames = subject.load(bytes(changed))
        except TelecineError:
            continue
        _expect_equal(len(frames.numpy()), len(frames.indices), "number of frames for the indices")


def _check_deadline(subject: BackendUnderTest) -> None:
    data = make_clip("h264").data
    _expect_error(DeadlineError, "a timeout that has passed", subject, data, timeout=1e-6)
    cancelled = Deadline()
    cancelled.cancel()
    _expect_error(Cancelled, "a cancelled request", subject, data, timeout=cancelled)


def _check_options(subject: BackendUnderTest) -> None:
    _expect_error(OptionsError, "an unknown option", subject, make_clip("h264").data, no_such_option=1)


def _check_threads(subject: BackendUnderTest) -> None:
    """Load clips of several kinds from eight threads at once."""
    clips = [make_clip(name) for name in ("h264", "rotated-90", "variable-rate", "matroska")] * 4
    with ThreadPoolExecutor(8) as threads:
        for clip, frames in zip(clips, threads.map(lambda clip: subject.load(clip.data), clips), strict=True):
            _expect_frames(clip, frames)


def _check_memory(subject: BackendUnderTest) -> None:
    data = make_clip("h264").data
    first = subject.load(data, indices=[0, 20])
    before = first.numpy().copy()
    subject.load(data, indices=[30, 40])
    if not np.array_equal(first.numpy(), before):
        raise Mismatch("a later request changed the frames of an earlier one")


def _expect_error(
    expected: type[TelecineError], what: str, subject: BackendUnderTest, source: bytes, **options: Any
) -> None:
    try:
        subject.load(source, **options)
    except expected as error:
        if not str(error):
            raise Mismatch(f"{what}: {expected.__name__} without a message") from error
        return
    except Exception as error:
        raise Mismatch(f"{what}: {type(error).__name__}: {error}; expected {expected.__name__}") from error
    raise Mismatch(f"{what}: no error; expected {expected.__name__}")


_MAY_REFUSE = {"10-bit", "hdr", "hdr-rotated", "interlaced", "odd-size", "hevc", "mirrored"}

CASES: tuple[Case, ...] = (
    *(
        Case(name, description, partial(_check_clip, name), name in _MAY_REFUSE, name == "damaged-picture")
        for name, (description, _) in CLIPS.items()
    ),
    Case("order", "indices in any order, with repeats", _check_order),
    Case("timestamps", "frames chosen by time", _check_timestamps),
    Case("size", "another size", _check_size),
    Case("strict", 'a lost frame with errors="strict"', _check_strict),
    Case("limits", "requests over a limit", _check_limits),
    Case("invalid-input", "bytes that are no video, and a video with changed bytes", _check_invalid_input),
    Case("deadline", "a timeout, and a cancelled request", _check_deadline),
    Case("options", "an option that does not exist", _check_options),
    Case("threads", "requests from eight threads at once", _check_threads),
    Case("memory", "returned frames are not written to by later requests", _check_memory),
)
"""All cases, in the order of the table in docs/backends.md."""
