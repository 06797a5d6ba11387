"""What is tried, case by case. Each check takes a subject and raises :class:`Unequal` where it breaks the contract."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.deadline import Deadline, Timeout
from telecine.errors import (
    Cancelled,
    DeadlineError,
    DecodeError,
    LimitError,
    OptionsError,
    SourceError,
    TelecineError,
)
from telecine.frames import Frames
from telecine.limits import Limits
from telecine.pipeline import run_request
from telecine.request import Request
from telecine.testing.clips import CLIPS, Clip, clip
from telecine.testing.test_pattern import read

__all__ = ["CASES", "Case", "Subject", "Unequal"]


class Unequal(AssertionError):
    """Something came out that is not what is known."""


def _load(source: Any, *, timeout: Timeout = None, **options: Any) -> Frames:
    """Load frames as :func:`telecine.load` does."""
    return run_request(Request.of(source, **options), Deadline.of(timeout))


@dataclass(frozen=True)
class Subject:
    """The backend that is tried."""

    backend: str
    device: str
    options: dict[str, Any]

    def load(self, source: Any, **arguments: Any) -> Frames:
        """As :func:`telecine.load`, with this backend."""
        return _load(source, backend=self.backend, device=self.device, **self.options, **arguments)


@dataclass(frozen=True)
class Case:
    """One thing that is tried."""

    name: str
    about: str
    """In half a sentence, for the table."""
    check: Callable[[Subject], int | None]
    """Gives the largest difference of a pixel from ``pyav``, or None where no pixels are compared."""
    refusable: bool = False
    """Whether a backend may refuse, with a reason."""
    excusable: bool = False
    """Whether a backend may declare that it does otherwise."""


def _equal(got: Any, known: Any, what: str) -> None:
    if got != known:
        raise Unequal(f"{what}: {_short(got)}; it must be {_short(known)}")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _right(known: Clip, frames: Frames, wanted: list[int] | None = None) -> None:
    """Every label of a result, by what is painted on the frames, and what is missing from it."""
    wanted = list(range(len(known.times))) if wanted is None else wanted
    _equal(frames.indices.tolist(), [index for index in wanted if index not in known.lost], "indices")
    _equal(set(frames.report.lost), set(wanted) & known.lost, "frames reported as lost")
    _equal(frames.numpy().shape, (len(frames), known.height, known.width, 3), "shape")
    _equal(str(frames.numpy().dtype), "uint8", "type")
    times = [known.times[index] for index in frames.indices]
    if not np.allclose(frames.timestamps, times, atol=1e-3):
        raise Unequal(f"times: {_short(frames.timestamps.tolist())}; they must be {_short(times)}")
    if known.numbers:
        _equal(
            [read(image) for image in frames.numpy()], [known.numbers[i] for i in frames.indices], "frames by number"
        )
    if known.colour is not None:
        off = int(np.abs(frames.numpy().astype(np.int16) - known.colour).max())
        if off > 4:
            raise Unequal(f"colour: up to {off} off {known.colour}")


def _difference(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    return int(np.abs(one.astype(np.int16) - other).max()) if one.size else 0


def _every_frame(name: str) -> Callable[[Subject], int | None]:
    """All frames of a clip, and some of them alone."""

    def check(subject: Subject) -> int | None:
        known = clip(name)
        frames = subject.load(known.data)
        _right(known, frames)
        last = len(known.times) - 1
        for wanted in ([last], [0, last // 2, last], [last // 3]):
            if not set(wanted) - known.lost:
                continue
            some = subject.load(known.data, indices=wanted)
            _right(known, some, wanted)
            kept = [frames.indices.tolist().index(index) for index in some.indices]
            if not np.array_equal(some.numpy(), frames.numpy()[kept]):
                raise Unequal(f"frames {some.indices.tolist()} asked for alone have other pixels than among all")
        reference = _load(known.data, indices=frames.indices, backend="pyav", device="cpu")
        both = np.isin(frames.indices, reference.indices)
        return _difference(frames.numpy()[both], reference.numpy())

    return check


def _order(subject: Subject) -> int | None:
    known = clip("plain")
    wanted = random.Random(1).sample(range(len(known.times)), 20)
    wanted += wanted[:4]
    _right(known, subject.load(known.data, indices=wanted), wanted)
    return None


def _by_time(subject: Subject) -> int | None:
    known = clip("uneven-times")
    wanted = [40, 3, 25]
    at = [known.times[index] + 0.004 for index in wanted]
    _right(known, subject.load(known.data, timestamps=at), wanted)
    return None


def _size(subject: Subject) -> int | None:
    largest = 0
    for name, size in (("plain", (72, 88)), ("plain", 200), ("turned", 60)):
        known = clip(name)
        frames = subject.load(known.data, num_frames=5, size=size)
        reference = _load(known.data, num_frames=5, size=size, backend="pyav", device="cpu")
        _equal(frames.numpy().shape, reference.numpy().shape, "shape")
        _equal(
            [read(image) for image in frames.numpy()], [known.numbers[i] for i in frames.indices], "frames by number"
        )
        largest = max(largest, _difference(frames.numpy(), reference.numpy()))
    return largest


def _strict(subject: Subject) -> int | None:
    _raises(DecodeError, lambda: subject.load(clip("bad-packet").data, errors="strict"), "a damaged clip, strictly")
    return None


def _limits(subject: Subject) -> int | None:
    data = clip("plain").data
    for limits in (Limits(max_frames=4), Limits(max_output_bytes=10_000), Limits(max_pixels=100)):
        _raises(LimitError, partial(subject.load, data, limits=limits), "a limit that is passed")
    return None


def _bad_bytes(subject: Subject) -> int | None:
    data = clip("plain").data
    noise = np.random.default_rng(3).integers(0, 256, 4096, np.uint8).tobytes()
    for bad in (b"", b"no video at all, but text", noise, data[:600], b"\0" * 10_000):
        _raises(SourceError, partial(subject.load, bad), f"{len(bad)} bytes that are no video")
    # whatever survives of these, it is either labelled right or an error of the tree
    for seed in range(12):
        spoilt = bytearray(data)
        generator = random.Random(seed)
        for _ in range(6):
            spoilt[generator.randrange(len(spoilt))] = generator.randrange(256)
        try:
            frames = subject.load(bytes(spoilt))
        except TelecineError:
            continue
        _equal(len(frames.numpy()), len(frames.indices), "frames for as many indices")
    return None


def _deadline(subject: Subject) -> int | None:
    known = clip("plain")
    _raises(DeadlineError, lambda: subject.load(known.data, timeout=1e-6), "a timeout that has passed")
    withdrawn = Deadline()
    withdrawn.cancel()
    _raises(Cancelled, lambda: subject.load(known.data, timeout=withdrawn), "a request that was withdrawn")
    return None


def _options(subject: Subject) -> int | None:
    _raises(OptionsError, lambda: subject.load(clip("plain").data, no_such_option=1), "an unknown option")
    return None


def _at_once(subject: Subject) -> int | None:
    """Eight threads with clips of several kinds: each gets its own frames."""
    names = ("plain", "turned", "uneven-times", "matroska") * 4

    def one(name: str) -> tuple[str, Frames]:
        return name, subject.load(clip(name).data)

    with ThreadPoolExecutor(8) as threads:
        for name, frames in threads.map(one, names):
            _right(clip(name), frames)
    return None


def _own_memory(subject: Subject) -> int | None:
    known = clip("plain")
    first = subject.load(known.data, indices=[0, 20])
    before = first.numpy().copy()
    subject.load(known.data, indices=[30, 40])
    if not np.array_equal(first.numpy(), before):
        raise Unequal("a later request has changed the frames of an earlier one")
    return None


def _raises(expected: type[TelecineError], call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except expected as error:
        if not str(error):
            raise Unequal(f"{what}: {expected.__name__} without a message") from error
        return
    except Exception as error:
        raise Unequal(f"{what}: {type(error).__name__}: {error}; it must be {expected.__name__}") from error
    raise Unequal(f"{what}: no error; it must be {expected.__name__}")


_ABOUT = {
    "plain": "H.264 with B pictures: every frame, and some alone",
    "open-gop": "starting at a picture that others in front of it look back over",
    "one-frame": "a video of one frame",
    "matroska": "another container",
    "transport-stream": "another container, without an index",
    "hevc": "HEVC",
    "ten-bit": "10 bits, rounded to 8",
    "interlaced": "interlaced pictures, woven",
    "uneven-times": "a rate that changes",
    "hidden-start": "frames that an edit list hides",
    "turned": "a quarter turn in the display matrix",
    "upside-down": "half a turn",
    "mirrored": "a turn and mirrored",
    "odd-size": "95x63 pixels, 4:4:4",
    "slides": "neighbours that look the same",
    "bt709": "BT.709, limited range",
    "bt709-full": "BT.709, full range",
    "bt601": "BT.601",
    "untagged": "no colour tags: BT.601, limited",
    "bad-packet": "a packet that no decoder accepts: it is lost, and what is built on it",
    "noise": "noise inside a picture: it is lost, and what is built on it",
    "cut-off": "a file that ends too early",
}
_REFUSABLE = {"ten-bit", "interlaced", "odd-size", "hevc", "mirrored"}
_EXCUSABLE = {"noise"}

CASES: tuple[Case, ...] = (
    *(Case(name, _ABOUT[name], _every_frame(name), name in _REFUSABLE, name in _EXCUSABLE) for name in CLIPS),
    Case("order", "any order, and repeats", _order),
    Case("by-time", "asked for by time", _by_time),
    Case("size", "another size", _size),
    Case("strict", 'a lost frame with errors="strict"', _strict),
    Case("limits", "limits that are passed", _limits),
    Case("bad-bytes", "what is no video, and videos with wrong bytes", _bad_bytes),
    Case("deadline", "a timeout, and a request withdrawn", _deadline),
    Case("options", "an option that does not exist", _options),
    Case("at-once", "eight threads", _at_once),
    Case("own-memory", "frames that nobody else writes to", _own_memory),
)
"""All cases, in the order of the table."""
