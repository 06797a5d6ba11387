"""The clips of the suite, made in memory by the encoders that PyAV brings."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.testing.test_pattern import paint

__all__ = ["CLIPS", "Clip", "clip"]

_WIDTH, _HEIGHT = 192, 144
_FRAMES = 48
_GOP = "keyint=12:min-keyint=12:scenecut=0:bframes=3:b-adapt=0"
_CLOCK = Fraction(1, 15360)
_FRAME = 512


@dataclass(frozen=True, eq=False)
class Clip:
    """A video and what is known about it."""

    name: str
    data: bytes = field(repr=False)
    numbers: tuple[int, ...]
    """Painted on each presentable frame; empty where none is painted."""
    times: tuple[float, ...]
    """Seconds after the first frame."""
    width: int = _WIDTH
    """Of the display, pixels."""
    height: int = _HEIGHT
    lost: frozenset[int] = frozenset()
    """Frames that cannot be given: damaged, or built on damaged ones."""
    colour: tuple[int, int, int] | None = None
    """RGB of every pixel of a flat picture."""


@cache
def clip(name: str) -> Clip:
    """The clip of a name, made on first use."""
    return CLIPS[name](name)


_Picture = npt.NDArray[np.uint8]


def _encode(
    pictures: Iterable[_Picture],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    muxer: Mapping[str, str] | None = None,
    ticks: Callable[[int], int] = lambda number: number * _FRAME,
    prepare: Callable[[Any], None] = lambda stream: None,
) -> bytes:
    import av

    target = io.BytesIO()
    with av.open(target, "w", format=container, options={"fflags": "+bitexact", **(muxer or {})}) as file:
        stream: Any = None
        for number, picture in enumerate(pictures):
            if stream is None:
                stream = file.add_stream(codec, rate=30)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt = pixels
                stream.codec_context.time_base = _CLOCK
                stream.options = {"threads": "1", "preset": "veryfast", "x264-params": _GOP, **(options or {})}
                prepare(stream)
            frame = _frame(picture, pixels, stream.codec_context)
            frame.pts, frame.time_base = ticks(number), _CLOCK
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return target.getvalue()


def _frame(picture: _Picture, pixels: str, context: Any) -> Any:
    """A picture in the pixel format of the stream, with the matrix and range that it is tagged with; else BT.601."""
    from av import VideoFrame

    frame = VideoFrame.from_ndarray(picture, "rgb24")
    matrix, levels = int(context.colorspace or 2), int(context.color_range or 0)
    frame = frame.reformat(
        format=pixels, dst_colorspace=matrix if matrix != 2 else 5, dst_color_range=levels or 1, interpolation="AREA"
    )
    frame.colorspace, frame.color_range = matrix, levels
    return frame


def _painted(count: int = _FRAMES, width: int = _WIDTH, height: int = _HEIGHT) -> Iterator[_Picture]:
    return (paint(number, width, height) for number in range(count))


def _even(count: int) -> tuple[float, ...]:
    return tuple(number / 30 for number in range(count))


def _plain(name: str, **how: Any) -> Clip:
    return Clip(name, _encode(_painted(), **how), tuple(range(_FRAMES)), _even(_FRAMES))


def _uneven(name: str) -> Clip:
    """30 a second, then 5 a second: what has no rate."""
    at = [number * _FRAME if number < 24 else (24 + (number - 24) * 6) * _FRAME for number in range(_FRAMES)]
    times = tuple(ticks / 15360 for ticks in at)
    return Clip(name, _encode(_painted(), ticks=lambda number: at[number]), tuple(range(_FRAMES)), times)


def _hidden_start(name: str) -> Clip:
    """An edit list hides the first ten frames, which the others are built on."""
    data = _encode(
        _painted(), ticks=lambda number: (number - 10) * _FRAME, muxer={"avoid_negative_ts": "disabled"},
        options={"x264-params": "keyint=48:scenecut=0:bframes=0"},
    )  # fmt: skip
    return Clip(name, data, tuple(range(10, _FRAMES)), _even(_FRAMES - 10))


def _turned(name: str, quarter_turns: int, mirror: bool) -> Clip:
    """Pictures stored so that they are upright only when the display matrix is applied."""

    def stored() -> Iterator[_Picture]:
        for picture in _painted(24):
            seen = picture[:, ::-1] if mirror else picture
            yield np.ascontiguousarray(np.rot90(seen, quarter_turns))

    def prepare(stream: Any) -> None:
        stream.set_display_rotation(-90 * quarter_turns, hflip=mirror)

    return Clip(name, _encode(stored(), prepare=prepare), tuple(range(24)), _even(24))


def _flat(name: str, matrix: int, levels: int) -> Clip:
    """One colour, which a wrong matrix or range puts off by 8 or more."""
    rgb = (192, 64, 32)
    picture = np.full((64, 64, 3), rgb, np.uint8)

    def prepare(stream: Any) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, levels

    data = _encode([picture] * 6, prepare=prepare, options={"qp": "1", "x264-params": "keyint=3:bframes=0"})
    return Clip(name, data, (), _even(6), 64, 64, colour=rgb)


def _still(name: str) -> Clip:
    """Every picture twice, as a recording of slides has them."""
    pictures = (paint(number // 2, _WIDTH, _HEIGHT) for number in range(24))
    # both of a pair are alike to the last bit only where each is coded by itself
    data = _encode(pictures, options={"x264-params": "keyint=1", "qp": "20"})
    return Clip(name, data, tuple(number // 2 for number in range(24)), _even(24))


def _spoilt(name: str, change: Callable[[bytes], bytes]) -> Clip:
    """One packet is another one, of the same size; what is built on it is lost with it."""
    data = _encode(_painted(), options={"x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=0"})
    at, size = _packets(data)[15]
    data = data[:at] + change(data[at : at + size]) + data[at + size :]
    return Clip(name, data, tuple(range(_FRAMES)), _even(_FRAMES), lost=frozenset(range(15, 24)))


def _bad_length(packet: bytes) -> bytes:
    """It claims to be longer than it is, and a decoder refuses it."""
    return (int.from_bytes(packet[:4], "big") + 9).to_bytes(4, "big") + packet[4:]


def _noise(packet: bytes) -> bytes:
    """Its second half is noise: a decoder notices, and may show something all the same."""
    kept = len(packet) // 2
    return packet[:kept] + np.random.default_rng(2).integers(0, 256, len(packet) - kept, np.uint8).tobytes()


def _cut_off(name: str) -> Clip:
    """The file ends in front of a packet."""
    whole = _encode(_painted(), container="mpegts", options={"x264-params": "keyint=12:scenecut=0:bframes=0"})
    count = 30
    return Clip(name, whole[: _packets(whole)[count][0]], tuple(range(count)), _even(count))


def _packets(data: bytes) -> list[tuple[int, int]]:
    """Where each packet of the video begins in a file, and how long it is."""
    import av

    with av.open(io.BytesIO(data), "r") as file:
        return [(packet.pos or 0, packet.size) for packet in file.demux(video=0) if packet.size]


CLIPS: dict[str, Callable[[str], Clip]] = {
    "plain": _plain,
    "open-gop": lambda name: _plain(name, options={"x264-params": f"{_GOP}:open-gop=1"}),
    "one-frame": lambda name: Clip(name, _encode(_painted(1)), (0,), (0.0,)),
    "matroska": lambda name: _plain(name, container="matroska"),
    "transport-stream": lambda name: _plain(name, container="mpegts"),
    "hevc": lambda name: _plain(
        name, codec="libx265", options={"x265-params": "log-level=none:pools=none:frame-threads=1:keyint=12:bframes=4"}
    ),
    "ten-bit": lambda name: _plain(
        name,
        codec="libx265",
        pixels="yuv420p10le",
        options={"x265-params": "log-level=none:pools=none:frame-threads=1:keyint=12:bframes=4"},
    ),
    "interlaced": lambda name: _plain(name, options={"x264-params": f"{_GOP}:tff=1"}),
    "uneven-times": _uneven,
    "hidden-start": _hidden_start,
    "turned": lambda name: _turned(name, 1, False),
    "upside-down": lambda name: _turned(name, 2, False),
    "mirrored": lambda name: _turned(name, 3, True),
    "odd-size": lambda name: Clip(
        name, _encode(_painted(24, 95, 63), pixels="yuv444p"), tuple(range(24)), _even(24), 95, 63
    ),
    "slides": _still,
    "bt709": lambda name: _flat(name, 1, 1),
    "bt709-full": lambda name: _flat(name, 1, 2),
    "bt601": lambda name: _flat(name, 5, 1),
    "untagged": lambda name: _flat(name, 2, 0),
    "bad-packet": lambda name: _spoilt(name, _bad_length),
    "noise": lambda name: _spoilt(name, _noise),
    "cut-off": _cut_off,
}
"""The makers by name."""
