"""Size, rate, duration, format and colour of a video, without decoding it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from telecine.bitstream import PictureFormat
from telecine.bitstream.h273 import HDR_TRANSFERS, MATRICES, RANGES, UNSPECIFIED, UNSPECIFIED_RANGE
from telecine.container.demuxer import Demuxer
from telecine.container.display_matrix import Orientation, iso_orientation, matroska_orientation
from telecine.container.timestamps import has_variable_rate
from telecine.deadline import Deadline
from telecine.errors import LimitError, NoVideoError
from telecine.index.packet_index import PacketIndex
from telecine.index.table_index import find_index
from telecine.limits import Limits
from telecine.notes import Note
from telecine.source.source import Source

__all__ = ["VideoInfo", "make_video_info", "read_video_info"]

_ALPHA_FORMATS = ("yuva", "gbrap", "rgba", "bgra", "argb", "abgr", "ya8", "ya16", "ayuv")
"""Beginnings of FFmpeg's names of pixel formats with alpha."""
_IGNORE_CONTAINER = frozenset({"prores", "vp9"})
"""Codecs whose decoders give pictures the matrix of the bitstream even if that is "unspecified"."""
_PROGRESSIVE = (0, 1)
"""FFmpeg's AV_FIELD_UNKNOWN and AV_FIELD_PROGRESSIVE."""


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video, from its packets and headers, without decoding."""

    width: int
    """Display width, pixels, after rotation."""
    height: int
    """Display height, pixels, after rotation."""
    rotation: int
    """Clockwise rotation of the stored picture for display, degrees: 0, 90, 180 or 270."""
    mirrored: bool
    """True if the picture is mirrored left to right after the rotation."""
    codec: str
    """FFmpeg's name of the codec: "h264"."""
    pixel_format: str
    """FFmpeg's name of the stored pixel format: "yuv420p"; "unknown" if the header does not have it."""
    bit_depth: int
    """Bits per component; 0 if unknown."""
    color_space: str
    """YUV matrix as tagged, in FFmpeg's names: "bt709"; "unknown" is decoded as BT.601."""
    color_range: str
    """"tv" (limited), "pc" (full) or "unknown", decoded as limited."""
    color_primaries: int
    """Code point of ITU-T H.273; 2 is unspecified. Not converted."""
    color_trc: int
    """Transfer characteristics, a code point of H.273; 2 is unspecified. Not converted: HDR is not tone-mapped."""
    interlaced: bool
    """True if the header says that pictures consist of two fields. They are not deinterlaced."""
    sample_aspect_ratio: Fraction
    """Width of a pixel over its height, after rotation. Frames are not resampled to square pixels."""
    num_frames: int
    """Number of presentable frames."""
    average_fps: float
    """Measured rate, (n-1) / (t_last - t_first) per second; 0.0 if unknown."""
    duration: float
    """Seconds from the first frame to the end of the last one."""
    start_time: float
    """Time of the first presentable frame on the container's clock, seconds; 0.0 if the container has no times.
    Timestamps count from it."""
    variable_frame_rate: bool
    """True if frames are unevenly spaced."""
    stream_index: int
    """Index of the video stream in the container."""
    container: str
    """FFmpeg's name of the container format: "mov,mp4,m4a,3gp,3g2,mj2"."""
    bytes_read: int = field(default=0, compare=False)
    """Bytes of the source that were read to find these facts; those that are read twice count twice."""
    notes: tuple[Note, ...] = ()
    """Repairs and choices that are known without decoding; see docs/notes.md."""


def read_video_info(source: Source, limits: Limits, deadline: Deadline) -> VideoInfo:
    """Read the packets of an open source and return the properties of its video; see :func:`telecine.probe`."""
    with Demuxer(source, deadline, limits.max_pixels) as demuxer:
        return make_video_info(source, demuxer, find_index(demuxer, limits, deadline), limits)


def make_video_info(source: Source, demuxer: Demuxer, index: PacketIndex, limits: Limits) -> VideoInfo:
    """Return the properties of an indexed video.

    Raises:
        NoVideoError: the picture size is unknown.
        LimitError: a picture has more pixels than allowed.
    """
    context: Any = demuxer.stream.codec_context
    turns, mirrored = _orientation(source, demuxer)
    stored = _picture_format(demuxer, index, limits.max_pixels)
    size = (stored.width, stored.height)
    if not all(size):
        raise NoVideoError(f"{source.name}: its video stream ({index.codec}) has no picture size: damaged or cut off")
    if size[0] * size[1] > limits.max_pixels:
        raise LimitError(f"{source.name}: {size[0]}x{size[1]} pixels; limits.max_pixels is {limits.max_pixels}")
    width, height = size if turns % 2 == 0 else size[::-1]
    ratio = demuxer.stream.sample_aspect_ratio or Fraction(1)
    info = VideoInfo(
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
        interlaced=context.field_order not in _PROGRESSIVE or index.interlaced,
        sample_aspect_ratio=ratio if turns % 2 == 0 else 1 / ratio,
        num_frames=index.num_frames,
        average_fps=index.timeline.average_fps,
        duration=index.timeline.duration,
        start_time=float(index.start_tick * index.time_base),
        variable_frame_rate=has_variable_rate(index.timeline.ticks),
        stream_index=demuxer.stream.index,
        container=demuxer.format,
        bytes_read=demuxer.bytes_read,
    )
    return replace(info, notes=(*index.notes, *_notes(context, stored, info)))


def _notes(context: Any, stored: PictureFormat, info: VideoInfo) -> Iterator[Note]:
    """Yield notes about a wrong size in the container, and about what frames are not converted for."""
    announced = context.width, context.height
    if all(announced) and announced != (stored.width, stored.height):
        size = f"{stored.width}x{stored.height}"
        yield Note(
            "size-from-bitstream", f"the container announces {announced[0]}x{announced[1]}, the bitstream has {size}"
        )
    if info.color_trc in HDR_TRANSFERS:
        yield Note("hdr", f"the transfer is {HDR_TRANSFERS[info.color_trc]}; frames are not tone-mapped")
    if info.bit_depth > 8:
        yield Note("bit-depth", f"components of {info.bit_depth} bits are rounded to 8")
    if info.pixel_format.startswith(_ALPHA_FORMATS):
        yield Note("alpha", "the alpha channel is dropped")
    if info.sample_aspect_ratio != 1:
        ratio = info.sample_aspect_ratio
        yield Note("non-square-pixels", f"pixels are {ratio.numerator}:{ratio.denominator}; frames are not resampled")
    if info.interlaced:
        yield Note("interlaced", "pictures consist of two fields; frames are not deinterlaced")


def _picture_format(demuxer: Demuxer, index: PacketIndex, max_pixels: int) -> PictureFormat:
    """Return the format of the first picture, with the colours that its decoder gives it.

    These come from the bitstream, and from the container where the bitstream has none. The decoders of
    :data:`_IGNORE_CONTAINER` take "unspecified" for a statement, as the ffmpeg command line then does.
    """
    from av.error import FFmpegError

    context: Any = demuxer.stream.codec_context
    if index.codec == "hevc":
        # FFmpeg's demuxers may keep the container's colours; opened, the decoder has those of the parameter sets
        context = demuxer.new_decoder(max_pixels)
        with suppress(FFmpegError):
            context.open()
    layout, from_packets = demuxer.stream.codec_context.format, index.picture
    found = PictureFormat(
        layout.name if layout else "unknown",
        max((component.bits for component in layout.components), default=0) if layout else 0,
        context.colorspace,
        context.color_range,
        context.color_primaries,
        context.color_trc,
        context.width,
        context.height,
    )
    if from_packets is None:
        return found
    untagged = PictureFormat("unknown", 0, UNSPECIFIED, UNSPECIFIED_RANGE, UNSPECIFIED, UNSPECIFIED)
    if index.codec in _IGNORE_CONTAINER:
        untagged = untagged._replace(color_space=-1)
    tags = {name: tag for name, tag in from_packets._asdict().items() if tag != getattr(untagged, name)}
    return found._replace(**tags)


def _orientation(source: Source, demuxer: Demuxer) -> Orientation:
    container = demuxer.format
    if container.startswith("mov"):
        return iso_orientation(source.data, demuxer.stream.id)
    if container.startswith("matroska"):
        # FFmpeg's stream IDs are not the numbers of the tracks
        earlier = [stream for stream in demuxer.container.streams.video if stream.index < demuxer.stream.index]
        return matroska_orientation(source.data, len(earlier))
    return (0, False)
