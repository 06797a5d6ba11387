"""The planned packets in a container of our own, for libraries that want a whole file.

A reel is what a projectionist would hand over: one stretch of film, cut to what is needed and numbered frame by frame.
It holds the packets of the plan, or of the part of it between two restarts of the decoder, in a file made in memory.
The time of each packet in it is its *position* in the order of presentation, times :data:`STEP`. That is how a library
that knows nothing of packets is made to keep the contract:

- A frame that comes out is known by its time, whatever the times in the source were worth: missing, repeated, uneven,
  hidden by an edit list. The rate is constant, so that a library that counts by the rate counts right.
- What need not be decoded is not in it. Its first packet is a random access point, and so is every packet that is
  flagged as a key frame.
- The library's own demuxers never see the bytes of a stranger, only a file that was written here.
- It has no orientation: turning is done here, by the rule.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from telecine.bitstream.nal import SPS_TYPE, NalSplitter, nal_type
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import UnsupportedVideoError
from telecine.plan.packet_reader import PacketReader
from telecine.plan.ranges import DecodeRange

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet

__all__ = ["STEP", "Reel", "make_reel"]

STEP = 40
"""Milliseconds from one position to the next."""
_CLOCK = Fraction(1, 1000)
_BUFFER_BYTES = 1 << 20
_MATROSKA: tuple[str, dict[str, str]] = ("matroska", {})
"""Takes any codec, and times as they are."""
_MP4 = "mp4", {"video_track_timescale": str(_CLOCK.denominator), "use_editlist": "0"}
"""For H.264 that never reorders: before FFmpeg takes a Matroska file of that as open, it decodes seven frames to make
up decoding times, which such a file has none of. That takes 30 ms of 1080p."""


@dataclass(frozen=True, eq=False)
class Reel:
    """A file in memory and what is in it."""

    ranges: tuple[DecodeRange, ...]
    """That it was made from."""
    data: memoryview = field(repr=False)
    """The file."""
    position: Mapping[int, int]
    """The position of each packet, by its ordinal. Positions are whole numbers from 0, without gaps."""
    targets: Mapping[int, tuple[int, ...]]
    """For each position that is wanted, ascending, the rows of the output that its frame fills."""
    expected: int
    """Frames that an undamaged stream brings."""
    corrupt: frozenset[int]
    """Ordinals of packets that were cut off or make no sense. They are not in the file."""
    keys: frozenset[int]
    """Ordinals of the packets at which decoding can start."""
    changes: bool
    """Whether the parameter sets of H.264 or HEVC change in it, and with them perhaps the size of the pictures."""

    def present(self) -> dict[int, bool]:
        """The positions that have a packet in the file, ascending, and whether that is flagged as a key frame."""
        return {
            position: ordinal in self.keys
            for position, ordinal in sorted((at, ordinal) for ordinal, at in self.position.items())
            if ordinal not in self.corrupt
        }

    def start(self) -> int:
        """Milliseconds that FFmpeg takes for the start of the file, for libraries that count time from there.

        It is that of the first packet, or of the first frame, where an open point of access stands in front.
        """
        first = min(self.position.items())[1]
        if not first:
            return 0
        import av

        with av.open(io.BytesIO(self.data)) as file:
            return round((file.streams.video[0].start_time or 0) * 1000 * (file.streams.video[0].time_base or 0))

    def missing(self, seen: Set[int]) -> set[int]:
        """Ordinals of the packets that brought no frame.

        Args:
            seen: positions of the frames that came out.
        """
        return {ordinal for ordinal, position in self.position.items() if position not in seen} | self.corrupt

    def at(self, milliseconds: float) -> int | None:
        """The position that a time of the file means; None where it is none of its."""
        position = round(milliseconds / STEP)
        near = abs(milliseconds - position * STEP) < STEP / 4
        return position if near and 0 <= position < len(self.position) else None


def make_reel(reader: PacketReader, runs: tuple[DecodeRange, ...], deadline: Deadline) -> Reel:
    """Write a reel.

    Args:
        reader: of the video.
        runs: that need no restart in between, unless the library can be told to seek there.
        deadline: checked while packets are read.

    Raises:
        UnsupportedVideoError: no such container can hold this codec.
    """
    import av

    demuxer, index = reader.demuxer, reader.index
    ordinals = np.concatenate([run.packets for run in runs])
    position = dict(zip(ordinals.tolist(), index.display_positions(ordinals).tolist(), strict=True))
    corrupt: set[int] = set()
    # decoding times are made up: steady, and early enough that none is behind its presentation time
    late = max(0, max(at - position[ordinal] for at, ordinal in enumerate(ordinals.tolist())))
    target = io.BytesIO()
    parameters = _Parameters(index.codec, demuxer.extradata)
    in_order = late == 0 and not index.second_field[ordinals].any()
    name, options = _MP4 if index.codec == "h264" and in_order and demuxer.extradata[:1] == b"\1" else _MATROSKA
    with av.open(target, "w", format=name, options=options, buffer_size=_BUFFER_BYTES) as file:
        stream = _only_stream(file, demuxer)
        for at, (ordinal, packet) in enumerate(reader.read_in_band(ordinals)):
            deadline.check("reading the packets", at, len(ordinals))
            packet.stream, packet.time_base = stream, _CLOCK
            packet.pts, packet.dts = position[ordinal] * STEP, (at - late) * STEP
            packet.duration = STEP
            packet.is_keyframe = bool(index.random_access[ordinal])
            if packet.is_keyframe or index.key[ordinal]:
                parameters.look(packet)
            try:
                if index.corrupt[ordinal]:
                    corrupt.add(ordinal)
                else:
                    file.mux_one(packet)
            except av.error.FFmpegError:  # the writer parses some codecs
                corrupt.add(ordinal)
    rows = {position[ordinal]: where for run in runs for ordinal, where in run.targets.items()}
    keys = frozenset(ordinals[index.random_access[ordinals] > 0].tolist())
    expected = int((index.presentable[ordinals] & ~index.second_field[ordinals]).sum())
    return Reel(
        runs,
        target.getbuffer(),
        position,
        dict(sorted(rows.items())),
        expected,
        frozenset(corrupt),
        keys,
        parameters.change,
    )


class _Parameters:
    """Notices when sequence parameter sets change along a stream."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self._units = NalSplitter(codec, extradata) if codec in SPS_TYPE else None
        self._seen: list[bytes] = []
        self.change = False
        """Whether they did."""

    def look(self, packet: Packet[Any]) -> None:
        """Look at a key frame: no other packet brings new ones."""
        if self._units is None:
            return
        kind = SPS_TYPE[self._codec]
        sets = [unit for unit in self._units.split(memoryview(packet)) if unit and nal_type(self._codec, unit) == kind]
        self.change |= bool(sets and self._seen and sets != self._seen)
        self._seen = sets or self._seen


def _only_stream(file: OutputContainer, demuxer: Demuxer) -> Any:
    import av

    try:
        stream: Any = file.add_stream_from_template(demuxer.stream, opaque=True)
        stream.set_display_rotation(0)
        stream.time_base = _CLOCK
        file.start_encoding()
    except (av.error.FFmpegError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise UnsupportedVideoError(
            f"{demuxer.name}: its codec cannot be handed over in a file ({detail}); use backend='pyav'"
        ) from None
    return stream
