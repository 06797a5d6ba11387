"""The clips of the conformance suite, encoded in memory by the encoders of PyAV."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.testing.test_pattern import paint, rotate_for_storage

__all__ = ["CLIPS", "Clip", "encode_video", "make_clip"]

_Picture = npt.NDArray[np.uint8]

_WIDTH, _HEIGHT = 192, 144
_FRAMES = 48
_GOP = "keyint=12:min-keyint=12:scenecut=0:bframes=3:b-adapt=0"
_TIME_BASE = Fraction(1, 15360)
_FRAME_TICKS = 512


@dataclass(frozen=True, eq=False)
class Clip:
    """A video and the facts known about it: displayed size in pixels, times and contents of its frames."""

    data: bytes = field(repr=False)
    numbers: tuple[int, ...]
    """The number painted on each presentable frame; empty if none is painted."""
    times: tuple[float, ...]
    """Time of each frame, seconds after the first one."""
    width: int = _WIDTH
    height: int = _HEIGHT
    lost: frozenset[int] = frozenset()
    """Indices of the frames that are damaged or refer to damaged ones."""
    colour: tuple[int, int, int] | None = None
    """RGB of every pixel; None if the pictures are not of one colour."""


@cache
def make_clip(name: str) -> Clip:
    """Return the clip of a name; it is encoded on first use."""
    return CLIPS[name][1]()


def encode_video(
    pictures: Iterable[_Picture],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    muxer: Mapping[str, str] | None = None,
    ticks: Callable[[int], int] = lambda number: number * _FRAME_TICKS,
    prepare: Callable[[Any], None] = lambda stream: None,
) -> bytes:
    """Encode pictures, ``uint8 [H, W, 3]`` RGB, shown at ``ticks(number)`` in 1/15360 s, and return the file."""
    import av

    target = io.BytesIO()
    with av.open(target, "w", format=container, options={"fflags": "+bitexact", **(muxer or {})}) as file:
        stream: Any = None
        for number, picture in enumerate(pictures):
            if stream is None:
                stream = file.add_stream(codec, rate=30)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt = pixels
                stream.codec_context.time_base = _TIME_BASE
                stream.options = {"threads": "1", "preset": "veryfast", "x264-params": _GOP, **(options or {})}
                prepare(stream)
            frame = _frame(picture, pixels, stream.codec_context)
            frame.pts, frame.time_base = ticks(number), _TIME_BASE
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return target.getvalue()


def _frame(picture: _Picture, pixels: str, context: Any) -> Any:
    """Convert a picture to the pixel format of the stream, by the matrix and range of its tags, else BT.601."""
    from av import VideoFrame

    frame = VideoFrame.from_ndarray(picture, "rgb24")
    matrix, levels = int(context.colorspace or 2), int(context.color_range or 0)
    frame = frame.reformat(
        format=pixels, dst_colorspace=matrix if matrix != 2 else 5, dst_color_range=levels or 1, interpolation="AREA"
    )
    frame.colorspace, frame.color_range = matrix, levels
    return frame


def _numbered_clip(
    numbers: Sequence[int] = range(_FRAMES),
    width: int = _WIDTH,
    height: int = _HEIGHT,
    store: Callable[[_Picture], _Picture] = lambda picture: picture,
    **options: Any,
) -> Clip:
    """Make a clip of painted pictures, which ``store`` may change before they are encoded."""
    data = encode_video((store(paint(number, width, height)) for number in numbers), **options)
    return Clip(data, tuple(numbers), tuple(at / 30 for at in range(len(numbers))), width, height)


def _hevc(pixels: str = "yuv420p", **options: Any) -> Clip:
    parameters = {"x265-params": "log-level=none:pools=none:frame-threads=1:keyint=12:bframes=4"}
    return _numbered_clip(codec="libx265", pixels=pixels, options=parameters, **options)


def _hdr(transfer: int, quarter_turns: int) -> Clip:
    """Make a clip in BT.2020 with 10 bits and a transfer function of HDR, as phones record it."""

    def prepare(stream: Any) -> None:
        context = stream.codec_context
        context.colorspace, context.color_range, context.color_primaries, context.color_trc = 9, 1, 9, transfer
        if quarter_turns:
            stream.set_display_rotation(-90 * quarter_turns)

    store = partial(rotate_for_storage, quarter_turns=quarter_turns, mirrored=False)
    return _hevc("yuv420p10le", numbers=range(24), store=store, prepare=prepare)


def _variable_rate() -> Clip:
    """Make a clip with 30 frames per second, then 5."""
    at = [(number if number < 24 else 24 + (number - 24) * 6) * _FRAME_TICKS for number in range(_FRAMES)]
    clip = _numbered_clip(ticks=lambda number: at[number])
    return replace(clip, times=tuple(float(ticks * _TIME_BASE) for ticks in at))


def _edit_list() -> Clip:
    """Make a clip whose first ten frames, which the others refer to, are hidden by an edit list."""
    clip = _numbered_clip(
        ticks=lambda number: (number - 10) * _FRAME_TICKS, muxer={"avoid_negative_ts": "disabled"},
        options={"x264-params": "keyint=48:scenecut=0:bframes=0"},
    )  # fmt: skip
    return replace(clip, numbers=clip.numbers[10:], times=clip.times[:-10])


def _rotated(quarter_turns: int, mirrored: bool) -> Clip:
    """Make a clip whose pictures are upright once the display matrix is applied."""
    return _numbered_clip(
        range(24),
        store=lambda picture: rotate_for_storage(picture, quarter_turns, mirrored),
        prepare=lambda stream: stream.set_display_rotation(-90 * quarter_turns, hflip=mirrored),
    )


def _flat(matrix: int, levels: int) -> Clip:
    """Make a clip of one colour, which a wrong matrix or range changes by 8 or more."""
    rgb = (192, 64, 32)

    def prepare(stream: Any) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, levels

    options = {"qp": "1", "x264-params": "keyint=3:bframes=0"}
    data = encode_video([np.full((64, 64, 3), rgb, np.uint8)] * 6, prepare=prepare, options=options)
    return Clip(data, (), tuple(at / 30 for at in range(6)), 64, 64, colour=rgb)


def _repeated() -> Clip:
    """Make a clip with every picture twice, as in a recording of slides."""
    # the two are identical only if each is coded as a key frame
    options = {"x264-params": "keyint=1", "qp": "20"}
    return _numbered_clip([number // 2 for number in range(24)], options=options)


def _damaged(change: Callable[[bytes], bytes]) -> Clip:
    """Make a clip in which one packet is replaced by another one of the same size."""
    clip = _numbered_clip(options={"x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=0"})
    at, size = _packets(clip.data)[15]
    data = clip.data[:at] + change(clip.data[at : at + size]) + clip.data[at + size :]
    return replace(clip, data=data, lost=frozenset(range(15, 24)))


def _wrong_length(packet: bytes) -> bytes:
    """Make a NAL unit claim to be longer than the packet, which decoders reject."""
    return (int.from_bytes(packet[:4], "big") + 9).to_bytes(4, "big") + packet[4:]


def _add_noise(packet: bytes) -> bytes:
    """Replace the second half by noise, which decoders notice and may conceal."""
    kept = len(packet) // 2
    return packet[:kept] + np.random.default_rng(2).integers(0, 256, len(packet) - kept, np.uint8).tobytes()


def _truncated() -> Clip:
    """Make a file that ends before a packet."""
    clip = _numbered_clip(container="mpegts", options={"x264-params": "keyint=12:scenecut=0:bframes=0"})
    return Clip(clip.data[: _packets(clip.data)[30][0]], clip.numbers[:30], clip.times[:30])


def _packets(data: bytes) -> list[tuple[int, int]]:
    """Return position and size of each video packet of a file, bytes."""
    import av

    with av.open(io.BytesIO(data), "r") as file:
        return [(packet.pos or 0, packet.size) for packet in file.demux(video=0) if packet.size]


CLIPS: dict[str, tuple[str, Callable[[], Clip]]] = {
    "h264": ("H.264 with B pictures: every frame, and some alone", _numbered_clip),
    "open-gop": (
        "decoding from an open random access point, with leading pictures",
        lambda: _numbered_clip(options={"x264-params": f"{_GOP}:open-gop=1"}),
    ),
    "one-frame": ("a video of one frame", lambda: _numbered_clip(range(1))),
    "matroska": ("Matroska", lambda: _numbered_clip(container="matroska")),
    "transport-stream": ("MPEG-TS, a container without an index", lambda: _numbered_clip(container="mpegts")),
    "hevc": ("HEVC", _hevc),
    "10-bit": ("10 bits, rounded to 8", lambda: _hevc("yuv420p10le")),
    "hdr": ("PQ and BT.2020: not tone-mapped", lambda: _hdr(16, 0)),
    "hdr-rotated": ("HLG and BT.2020, rotated by 90 degrees", lambda: _hdr(18, 1)),
    "interlaced": (
        "interlaced pictures, both fields woven",
        lambda: _numbered_clip(options={"x264-params": f"{_GOP}:tff=1"}),
    ),
    "variable-rate": ("a frame rate that changes", _variable_rate),
    "edit-list": ("frames hidden by an edit list", _edit_list),
    "rotated-90": ("a rotation of 90 degrees in the display matrix", lambda: _rotated(1, False)),
    "rotated-180": ("a rotation of 180 degrees", lambda: _rotated(2, False)),
    "mirrored": ("a rotation and a mirroring", lambda: _rotated(3, True)),
    "odd-size": ("95x63 pixels, 4:4:4", lambda: _numbered_clip(range(24), 95, 63, pixels="yuv444p")),
    "repeated-pictures": ("neighbouring frames with the same picture", _repeated),
    "bt709": ("BT.709, limited range", lambda: _flat(1, 1)),
    "bt709-full": ("BT.709, full range", lambda: _flat(1, 2)),
    "bt601": ("BT.601", lambda: _flat(5, 1)),
    "untagged": ("no colour tags: BT.601, limited range", lambda: _flat(2, 0)),
    "corrupt-packet": (
        "a packet that decoders reject: its frame and those that refer to it are lost",
        lambda: _damaged(_wrong_length),
    ),
    "damaged-picture": (
        "noise inside a picture: its frame and those that refer to it are lost",
        lambda: _damaged(_add_noise),
    ),
    "truncated": ("a file whose end is missing", _truncated),
}
"""Description of each clip, and a function that makes it, by name."""
