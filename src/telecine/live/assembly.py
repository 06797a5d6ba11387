"""Assembly of segments: frames of the output size, with their times, facts and counters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends.cuda_output import upload
from telecine.bitstream.h273 import MATRICES, RANGES
from telecine.container.timestamps import has_variable_rate
from telecine.errors import LimitError
from telecine.frames import Frames, Report
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.live.segments import Clock, Segment
from telecine.live.slices import Received, Slice
from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Geometry, Size, fit_size
from telecine.timeline import Timeline

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["Assembler", "SegmentFacts"]

_MICROSECOND = Fraction(1, 1_000_000)
_MAX_SENDER_AGE, _MAX_SENDER_AHEAD = 60.0, 2.0
"""Seconds by which a plausible clock of a sender differs from the time of arrival; many cameras have none set."""
_MIN_RATE_FRAMES, _RATE_CHANGE = 5, 1.2
"""Frames from which a rate is measured, and the ratio of two rates from which on it has changed."""


@dataclass
class SegmentFacts:
    """Gaps, discontinuities and counts since the last segment."""

    gap: bool = False
    reasons: dict[str, None] | None = None
    """Reasons of discontinuities, in order."""
    dropped_packets: int = 0
    dropped_frames: int = 0
    packets_fed: int = 0
    reconnects: int = 0

    def add_reason(self, reason: str) -> None:
        """Record a discontinuity."""
        self.reasons = {**(self.reasons or {}), reason: None}


class Assembler:
    """Converts pictures and makes segments of them. Not thread-safe.

    Args:
        size: requested size.
        device: device of the frames.
        limits: upper bounds.
        window: seconds of arrival time that a slice covers at most.
    """

    def __init__(self, size: Size, device: str, limits: Limits, window: float) -> None:
        self._size, self._device, self._limits, self._window = size, device, limits, window
        self._stored: tuple[int, int] | None = None
        self._shape = (0, 0, 3)
        self._received: deque[Received] = deque()
        self._sequence = 0
        self._rate = 0.0
        self._wall_start = self._wall_end = 0.0
        self._picture: dict[str, Any] = {}

    @property
    def fps(self) -> float:
        """Measured rate of the last segment."""
        return self._rate

    def add_received(self, received: Received) -> None:
        """Record a received frame for the timeline."""
        self._received.append(received)
        # the last slice is complete some time after its end
        while self._received[0].arrival < received.arrival - self._window - 5:
            self._received.popleft()

    def is_reshaped_by(self, picture: VideoFrame) -> bool:
        """Return True if frames of a picture have another size than those before it."""
        size = *fit_size(self._size, picture.height, picture.width), 3
        return self._stored is not None and size != self._shape

    def set_stored_size(self, picture: VideoFrame) -> bool:
        """Prepare for the size of a picture. Returns True if it is another one than before."""
        stored = picture.height, picture.width
        if stored == self._stored:
            return False
        is_change, self._stored = self._stored is not None, stored
        height, width = fit_size(self._size, *stored)
        self._shape = height, width, 3
        self._converter = Converter(Geometry(*stored, 0, False, height, width))
        return is_change

    def check_memory(self, num_frames: int) -> None:
        """Raise LimitError if so many frames would take too much memory."""
        nbytes, allowed = num_frames * self._shape[0] * self._shape[1] * 3, self._limits.output_bytes(0)
        if nbytes > allowed:
            raise LimitError(
                f"{num_frames} frames of {self._shape[1]}x{self._shape[0]} take {nbytes} bytes, more than the "
                f"{allowed} of limits.max_output_bytes; ask for fewer frames or a smaller size"
            )

    def convert(self, picture: VideoFrame) -> npt.NDArray[np.uint8]:
        """Return a picture as ``uint8 [H, W, 3]`` RGB of the output size."""
        row = np.empty(self._shape, np.uint8)
        self._converter(picture, row)
        self._picture = {
            "pixel_format": picture.format.name,
            "bit_depth": max((component.bits for component in picture.format.components), default=0),
            "color_space": MATRICES.get(int(picture.colorspace), "unknown"),
            "color_range": RANGES.get(int(picture.color_range), "unknown"),
            "color_primaries": int(picture.color_primaries),
            "color_trc": int(picture.color_trc),
            "interlaced": bool(picture.interlaced_frame),
        }
        return row

    def make(self, slice_: Slice, facts: SegmentFacts, stream: VideoStream, container: str) -> Segment:
        """Return the segment of a slice that has pictures."""
        times = np.array(sorted(slice_.pictures), np.int64)
        received = [each for each in self._received if each.arrival >= slice_.start and each.time <= times[-1]]
        # pictures that waited for a slow decoder may be older than the records
        ticks = np.unique(np.concatenate([np.array([each.time for each in received], np.int64), times]))
        first = int(ticks[0])
        end = int(ticks[-1] - first + (np.median(np.diff(ticks)) if len(ticks) > 1 else 1_000_000))
        timeline = Timeline(ticks - first, _MICROSECOND, end, np.zeros(len(ticks), np.bool_))
        data: Any = np.stack([slice_.pictures[time] for time in times.tolist()])
        device = "cpu"
        if self._device != "cpu":
            data, device = upload(data, self._device, "auto")
        report = Report("pyav", device, len(ticks), facts.packets_fed)
        info = self._info(timeline, stream, container, first)
        indices = np.searchsorted(ticks, times).astype(np.int64)
        mask = np.ones(len(times), np.bool_)
        frames = Frames(data, indices, timeline.seconds(indices), mask, info, report, timeline)
        self._note_rate(timeline, facts)
        wall_offset, clock = self._wall_offset(received)
        start, stop = first / 1e6, int(times[-1]) / 1e6
        self._wall_start = max(self._wall_start, start + wall_offset)
        self._wall_end = max(self._wall_end, stop + wall_offset, self._wall_start)
        segment = Segment(
            frames,
            self._sequence,
            start,
            stop,
            self._wall_start,
            self._wall_end,
            clock,
            0.0,
            facts.gap,
            ", ".join(facts.reasons) if facts.reasons else None,
            facts.dropped_packets,
            facts.dropped_frames,
            0,
            facts.reconnects,
        )
        self._sequence += 1
        return segment

    def _note_rate(self, timeline: Timeline, facts: SegmentFacts) -> None:
        if timeline.num_frames < _MIN_RATE_FRAMES:
            return
        # the median is not moved by a gap
        rate = 1e6 / float(np.median(np.diff(timeline.ticks)))
        if self._rate and not 1 / _RATE_CHANGE < rate / self._rate < _RATE_CHANGE:
            facts.add_reason("rate")
        self._rate = rate

    def _wall_offset(self, received: list[Received]) -> tuple[float, Clock]:
        """Return the difference of wall-clock time and stream time, seconds, and its source."""
        # the packet with the least delay; after an overload the records may be gone
        records = received or list(self._received)
        offset = min(each.wall - each.time / 1e6 for each in records)
        newest = records[-1]
        if newest.sender_wall is not None:
            age = newest.wall - newest.sender_wall
            if -_MAX_SENDER_AHEAD < age < _MAX_SENDER_AGE:
                return newest.sender_wall - newest.time / 1e6, "sender"
        return offset, "arrival"

    def _info(self, timeline: Timeline, stream: VideoStream, container: str, first: int) -> VideoInfo:
        height, width = self._stored or (0, 0)
        context: Any = stream.codec_context
        return VideoInfo(
            width=width,
            height=height,
            rotation=0,
            mirrored=False,
            codec=context.codec.canonical_name,
            sample_aspect_ratio=stream.sample_aspect_ratio or Fraction(1),
            num_frames=timeline.num_frames,
            average_fps=timeline.average_fps,
            duration=timeline.duration,
            start_time=first / 1e6,
            variable_frame_rate=has_variable_rate(timeline.ticks),
            stream_index=stream.index,
            container=container,
            **self._picture,
        )
