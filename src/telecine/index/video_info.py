"""The facts of a video without decoding it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from telecine.bitstream import PictureFormat
from telecine.bitstream.h273 import MATRICES, RANGES, UNSPECIFIED, UNSPECIFIED_RANGE
from telecine.container.demuxer import Demuxer
from telecine.container.display_matrix import Orientation, iso_orientation, matroska_orientation
from telecine.container.timestamps import NO_TIME, has_variable_rate
from telecine.deadline import Deadline
from telecine.errors import LimitError, NoVideoError
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.source.source import Source

__all__ = ["VideoInfo", "describe", "look"]

_PROGRESSIVE = (0, 1)
"""FFmpeg's AV_FIELD_UNKNOWN and AV_FIELD_PROGRESSIVE."""


@dataclass(frozen=True)
class VideoInfo:
    """Facts about a video, all from its packets and headers; nothing was decoded to get them."""

    width: int
    """Display width, pixels, after rotation."""
    height: int
    """Display height, pixels, after rotation."""
    rotation: int
    """Degrees clockwise that the stored picture is turned by to be displayed: 0, 90, 180 or 270."""
    mirrored: bool
    """Whether it is mirrored left to right after that."""
    codec: str
    """FFmpeg's name of the codec: "h264"."""
    pixel_format: str
    """FFmpeg's name of the stored pixel format: "yuv420p"; "unknown" where the header does not tell."""
    bit_depth: int
    """Bits per component; 0 where unknown."""
    color_space: str
    """YUV matrix as tagged, in FFmpeg's names: "bt709"; "unknown" is decoded as BT.601."""
    color_range: str
    """"tv" (limited), "pc" (full) or "unknown", decoded as limited."""
    color_primaries: int
    """Code point of ITU-T H.273; 2 is unspecified. Not converted."""
    color_trc: int
    """Transfer characteristics, a code point of H.273; 2 is unspecified. Not converted: HDR is not tone-mapped."""
    interlaced: bool
    """Whether the header says that pictures hold two fields. They are returned woven, not deinterlaced."""
    sample_aspect_ratio: Fraction
    """Width of a pixel over its height. Frames are returned in stored pixels, not stretched."""
    num_frames: int
    """Presentable frames."""
    average_fps: float
    """Measured rate, (n-1) / (t_last - t_first) per second; 0.0 where unknown."""
    duration: float
    """Seconds from the first frame until the last one stops being shown."""
    start_time: float
    """Time of the first presentable frame in the container's own clock, seconds. Timestamps start from it."""
    variable_frame_rate: bool
    """Whether frames are unevenly spaced."""
    stream_index: int
    """Number of the video stream in the container."""
    container: str
    """FFmpeg's name of the container format: "mov,mp4,m4a,3gp,3g2,mj2"."""


def look(source: Source, limits: Limits, deadline: Deadline) -> VideoInfo:
    """Say what an open source is; as :func:`telecine.probe`."""
    with Demuxer(source, deadline, limits.max_pixels) as demuxer:
        return describe(source, demuxer, read_index(demuxer, limits, deadline), limits)


def describe(source: Source, demuxer: Demuxer, index: PacketIndex, limits: Limits) -> VideoInfo:
    """Put the facts together.

    Raises:
        NoVideoError: the size of its pictures is not known.
        LimitError: a picture has more pixels than allowed.
    """
    context: Any = demuxer.stream.codec_context
    turns, mirrored = _orientation(source, demuxer)
    size = (context.width, context.height)
    if not all(size):
        raise NoVideoError(f"{source.name}: its video stream ({index.codec}) tells no picture size: damaged or cut off")
    if size[0] * size[1] > limits.max_pixels:
        raise LimitError(f"{source.name}: {size[0]}x{size[1]} pixels; limits.max_pixels is {limits.max_pixels}")
    width, height = size if turns % 2 == 0 else size[::-1]
    stored = _picture_format(context, index)
    start = index.pts[index.display_order[0]]
    return VideoInfo(
        width=width,
        height=height,
        rotation=90 * turns,
        mirrored=mirrored,
        codec=index.codec,
        pixel_format=stored.pixel_format,
        bit_depth=stored.bit_depth,
        color_space=MATRICES.get(stored.color_space, "unknown"),
        color_range=RANGES.get(stored.color_range, "unknown"),
        color_primaries=stored.color_primaries,
        color_trc=stored.color_trc,
        interlaced=context.field_order not in _PROGRESSIVE,
        sample_aspect_ratio=demuxer.stream.sample_aspect_ratio or Fraction(1),
        num_frames=index.num_frames,
        average_fps=index.timeline.average_fps,
        duration=index.timeline.duration,
        start_time=0.0 if index.synthetic_times or start == NO_TIME else float(int(start) * index.time_base),
        variable_frame_rate=has_variable_rate(index.timeline.ticks),
        stream_index=demuxer.stream.index,
        container=demuxer.format,
    )


def _picture_format(context: Any, index: PacketIndex) -> PictureFormat:
    """As FFmpeg found it; what it did not look for, from the packets' headers."""
    layout, own = context.format, index.picture
    seen = PictureFormat(
        layout.name if layout else "unknown",
        max((component.bits for component in layout.components), default=0) if layout else 0,
        context.colorspace,
        context.color_range,
        context.color_primaries,
        context.color_trc,
    )
    if layout is not None or own is None:
        return seen
    unspecified = dict.fromkeys(("color_space", "color_primaries", "color_trc"), UNSPECIFIED)
    unspecified["color_range"] = UNSPECIFIED_RANGE
    return own._replace(
        **{name: getattr(seen, name) for name, none in unspecified.items() if getattr(seen, name) != none}
    )


def _orientation(source: Source, demuxer: Demuxer) -> Orientation:
    container = demuxer.format
    if container.startswith("mov"):
        return iso_orientation(source.data, demuxer.stream.id)
    if container.startswith("matroska"):
        # FFmpeg leaves the stream id of Matroska unset where it equals the number, counted from 1
        return matroska_orientation(source.data, demuxer.stream.id or demuxer.stream.index + 1)
    return (0, False)
