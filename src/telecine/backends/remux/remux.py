"""Remuxing planned packets into a small container in memory, for libraries that only take files.

The file holds the packets of one or more decode ranges. The time of each packet is its position in display order, times
:data:`STEP_MILLISECONDS`. A library that knows nothing of packets then meets the rules of a backend:

- A frame is identified by its time in the file, even if the source's times are missing, repeated, uneven or hidden by
  an edit list. The rate is constant, so libraries that count frames by the rate count correctly.
- Packets that need not be decoded are not in the file. Its first packet is a random access point, and so is every one
  that is flagged as a key frame.
- The library's own demuxer only reads a file written here, never untrusted input.
- The file has no orientation; frames are turned by :mod:`telecine.pixels`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from telecine.backends.base import DecodeRequest
from telecine.bitstream.nal import SPS_TYPE, NalSplitter, has_zeroed_slice, nal_type
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import PacketIndex
from telecine.plan.packet_reader import PacketReader, with_data
from telecine.plan.ranges import DecodeRange, output_rows

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet

__all__ = ["STEP_MILLISECONDS", "RemuxedFile", "check_pictures", "remux"]

STEP_MILLISECONDS = 40
"""Time in the file from one display position to the next."""
_TIME_BASE = Fraction(1, 1000)
_BUFFER_BYTES = 1 << 20
_SUBSAMPLED = ("420", "422", "411", "410", "440", "nv12", "p010", "p210")
"""Parts of FFmpeg's names of pixel formats with less chroma than luma."""
_MATROSKA: tuple[str, dict[str, str]] = ("matroska", {})
"""Format and options for all codecs: Matroska keeps times as they are."""
_MP4 = "mp4", {"video_track_timescale": str(_TIME_BASE.denominator), "use_editlist": "0"}
"""Format and options for H.264 without reordering. A Matroska file has no decoding times; to make them up, FFmpeg
decodes seven frames when it opens the file, which takes 30 ms at 1080p."""


@dataclass(frozen=True, eq=False)
class RemuxedFile:
    """A container file in memory that holds the packets of some decode ranges."""

    ranges: tuple[DecodeRange, ...]
    data: memoryview = field(repr=False)
    positions: Mapping[int, int]
    """Display position of each packet by its ordinal: whole numbers from 0, without gaps."""
    targets: Mapping[int, tuple[int, ...]]
    """Output rows to fill by the display position of each wanted frame, ascending."""
    num_frames: int
    """Number of frames that an undamaged stream gives."""
    omitted: frozenset[int]
    """Ordinals of packets that are not in the file: corrupt ones, and those without a picture of their own."""
    has_sps_changes: bool
    """True if the SPS of H.264 or HEVC changes in the file, and with it perhaps the picture size."""

    @property
    def is_empty(self) -> bool:
        """True if the file has no packets, so that libraries refuse it."""
        return len(self.omitted) == len(self.positions)

    def packet_positions(self) -> list[int]:
        """Return the display positions of the packets that are in the file, ascending."""
        return sorted(position for packet, position in self.positions.items() if packet not in self.omitted)

    def start_milliseconds(self) -> int:
        """Return the start time that FFmpeg gives the file, for libraries that count time from there."""
        # it is the time of the first packet, or of the first frame if leading pictures of the first packet precede it
        if not self.positions[min(self.positions.keys() - self.omitted)]:
            return 0
        import av

        with av.open(io.BytesIO(self.data)) as file:
            return round((file.streams.video[0].start_time or 0) * 1000 * (file.streams.video[0].time_base or 0))

    def position_at(self, milliseconds: float) -> int | None:
        """Return the display position at a time of the file; None if there is none."""
        position = round(milliseconds / STEP_MILLISECONDS)
        is_near = abs(milliseconds - position * STEP_MILLISECONDS) < STEP_MILLISECONDS / 4
        return position if is_near and 0 <= position < len(self.positions) else None

    def missing_packets(self, decoded: Set[int]) -> set[int]:
        """Return the ordinals of packets that gave no frame, given the display positions of the decoded frames."""
        return {packet for packet, position in self.positions.items() if position not in decoded}


def remux(reader: PacketReader, ranges: tuple[DecodeRange, ...], deadline: Deadline) -> RemuxedFile:
    """Write the packets of one decode pass into a file in memory; of more if the library can be told to seek."""
    import av

    demuxer, index = reader.demuxer, reader.index
    ordinals = np.concatenate([range_.packets for range_ in ranges])
    in_display_order = index.display_positions(ordinals)
    # made-up decoding times rise evenly, and none is later than the packet's display time
    delay = max(0, int((np.arange(len(ordinals)) - in_display_order).max()))
    positions = dict(zip(ordinals.tolist(), in_display_order.tolist(), strict=True))
    omitted: set[int] = set()
    headers = b""
    splitter = NalSplitter(index.codec, demuxer.extradata) if index.codec in SPS_TYPE else None
    sps: set[tuple[bytes, ...]] = set()
    is_reordered = delay > 0 or bool(index.second_field[ordinals].any())
    is_avcc = index.codec == "h264" and demuxer.extradata[:1] == b"\1"
    name, options = _MP4 if is_avcc and not is_reordered else _MATROSKA
    target = io.BytesIO()
    with av.open(target, "w", format=name, options=options, buffer_size=_BUFFER_BYTES) as file:
        stream = _add_stream(file, demuxer)
        for number, (ordinal, packet) in enumerate(reader.read_in_band(ordinals)):
            deadline.check("reading the packets", number, len(ordinals))
            is_corrupt = _is_corrupt(index, splitter, ordinal, packet)
            if is_corrupt or not index.has_picture[ordinal]:
                # decoders may stop at a packet of headers or messages alone; they go in front of the next picture
                headers += b"" if is_corrupt else bytes(packet)
                omitted.add(ordinal)
                continue
            if headers:
                packet, headers = with_data(packet, headers + bytes(packet)), b""
            packet.stream, packet.time_base = stream, _TIME_BASE
            packet.pts = positions[ordinal] * STEP_MILLISECONDS
            packet.dts = (number - delay) * STEP_MILLISECONDS
            packet.duration = STEP_MILLISECONDS
            packet.is_keyframe = bool(index.random_access[ordinal])
            if splitter is not None and (packet.is_keyframe or index.key[ordinal]):
                sps.add(_sps(index.codec, splitter, memoryview(packet)))
            try:
                file.mux_one(packet)
            except av.error.FFmpegError:  # the muxer parses the packets of some codecs
                omitted.add(ordinal)
    return RemuxedFile(
        ranges,
        target.getbuffer(),
        positions,
        dict(sorted((positions[packet], rows) for packet, rows in output_rows(ranges).items())),
        int((index.presentable[ordinals] & ~index.second_field[ordinals]).sum()),
        frozenset(omitted),
        len(sps - {()}) > 1,
    )


def _is_corrupt(index: PacketIndex, splitter: NalSplitter | None, ordinal: int, packet: Packet[Any]) -> bool:
    return bool(index.corrupt[ordinal]) or (
        splitter is not None and has_zeroed_slice(index.codec, memoryview(packet), splitter.length_size)
    )


def check_pictures(request: DecodeRequest) -> None:
    """Raise UnsupportedVideoError if libraries that read files would crop, scale or turn pictures in another way."""
    index, info, announced = request.index, request.info, request.demuxer.stream.codec_context
    reason, picture = None, index.picture
    is_deep = info.bit_depth > 8 and any(layout in info.pixel_format for layout in _SUBSAMPLED)
    is_turned = info.rotation > 0 or info.mirrored
    if (is_deep and is_turned) or ("422" in info.pixel_format and info.rotation in (90, 270)):
        reason = f"are {info.pixel_format} and turned: these libraries convert them before they are turned"
    elif index.codec == "mjpeg" and info.interlaced:
        reason = "consist of two fields, which these libraries exchange"
    elif index.crops_left:
        reason = "are cropped on the left, which libraries that read files round to a multiple of 16 or 32 pixels"
    elif index.codec == "vp8" and picture is not None and (
        (picture.width, picture.height) != (announced.width, announced.height)
    ):  # fmt: skip
        reason = "would be scaled to the wrong size that the container announces"
    if reason is not None:
        raise UnsupportedVideoError(f"{request.demuxer.name}: its pictures {reason}; use backend='pyav'")


def _sps(codec: str, splitter: NalSplitter, packet: memoryview) -> tuple[bytes, ...]:
    """Return the sequence parameter sets in a packet of H.264 or HEVC."""
    return tuple(unit for unit in splitter.split(packet) if unit and nal_type(codec, unit) == SPS_TYPE[codec])


def _add_stream(file: OutputContainer, demuxer: Demuxer) -> Any:
    import av

    try:
        stream: Any = file.add_stream_from_template(demuxer.stream, opaque=True)
        stream.set_display_rotation(0)
        stream.time_base = _TIME_BASE
        file.start_encoding()
    except (av.error.FFmpegError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise UnsupportedVideoError(
            f"{demuxer.name}: its codec cannot be remuxed into a file ({detail}); use backend='pyav'"
        ) from None
    return stream
