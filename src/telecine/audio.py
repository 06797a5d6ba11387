"""Decode the audio of a source, aligned to its video: sample k is heard ``k / sample_rate`` after the window begins.

FFmpeg removes what is no sound of the recording: priming, padding and what edit lists leave out. Each section without a
gap is resampled by itself, on a grid that begins with the first frame of the video. So a window has the samples that
the whole track has there, wherever decoding started.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import MPEG_CLOCK_TICKS, NO_TIME
from telecine.deadline import Deadline
from telecine.errors import DecodeError, LimitError, NoVideoError, SourceError
from telecine.index.packet_index import PacketIndex
from telecine.index.table_index import find_index
from telecine.limits import Limits
from telecine.sampling.select import Sampling
from telecine.source.source import Source
from telecine.validation import check_int

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.container import InputContainer

__all__ = ["Audio", "AudioRequest", "find_first_frame", "first_frame_time", "read_audio"]

Samples = npt.NDArray[np.float32]

_MAX_RATE, _MAX_CHANNELS = 768_000, 8
_MIN_RATE = 1000
_MIN_GAP = Fraction(1, 10)
"""Seconds by which times must jump to be a gap or an overlap; as in FFmpeg's ``aresample=async=1``."""
_MAX_GAP = 10
"""Seconds of a jump above which the clock was set anew, and nothing is missing; as in the ffmpeg command line."""
_PREROLL = 2
"""Seconds that are decoded before a window: decoders overlap packets, and keep a state."""
_CHUNK_SAMPLES = 1 << 14
"""Samples that are resampled at once."""
_FULL_SCALE = {"u8": 1 << 7, "s16": 1 << 15, "s32": 1 << 31, "s64": 1 << 63, "flt": 1, "dbl": 1}
"""Largest value of each sample format of FFmpeg."""


class Audio(NamedTuple):
    """Decoded audio; unpacks as ``data, sample_rate``."""

    data: Samples
    """``float32 [samples, channels]``, full scale from -1 to 1."""
    sample_rate: int
    """Samples per second."""


@dataclass(frozen=True)
class AudioRequest:
    """The checked options of :func:`telecine.load_audio`."""

    start: Fraction
    end: Fraction | None
    sample_rate: int | None
    channels: int | None
    limits: Limits

    @classmethod
    def of(
        cls,
        start: SupportsFloat | None,
        end: SupportsFloat | None,
        sample_rate: SupportsIndex | None,
        channels: SupportsIndex | None,
        limits: Limits | None,
    ) -> AudioRequest:
        """Check the options and return the request."""
        window = Sampling(start=start, end=end)
        return cls(
            Fraction(window.start or 0),
            None if window.end is None else Fraction(window.end),
            None if sample_rate is None else check_int("sample_rate", sample_rate, _MIN_RATE, _MAX_RATE),
            None if channels is None else check_int("channels", channels, 1, _MAX_CHANNELS),
            Limits.of(limits),
        )


def first_frame_time(index: PacketIndex) -> Fraction | None:
    """Return the time of the first frame on the container's clock, seconds; None if the container has none."""
    ticks = int(index.pts[index.display_order[0]])
    return None if index.synthetic_times or ticks == NO_TIME else ticks * index.time_base


def find_first_frame(source: Source, limits: Limits, deadline: Deadline) -> Fraction | None:
    """Return the time of the first frame as :func:`first_frame_time`; None if there is no video."""
    try:
        with Demuxer(source, deadline, limits.max_pixels) as demuxer:
            return first_frame_time(find_index(demuxer, limits, deadline))
    except NoVideoError:
        return None


def read_audio(source: Source, zero: Fraction | None, request: AudioRequest, deadline: Deadline) -> Audio:
    """Decode the audio of a window.

    Args:
        source: the open source.
        zero: time on the container's clock from which the window counts; that of the first sample if None.
        request: the window, and the form of the result.
        deadline: checked while reading.

    Raises:
        SourceError: there is no audio, or FFmpeg has no decoder for it.
        DecodeError: the audio is damaged, and nothing of it could be decoded.
        LimitError: the result is larger than the limits allow.
    """
    with Demuxer(source, deadline, request.limits.max_pixels, _choose_audio) as demuxer:
        earliest = None if zero is None else zero + request.start - _PREROLL
        blocks = _place(demuxer, _decode(demuxer, earliest), zero)
        output: _Output | None = None
        section: _Section | None = None
        for position, rate, layout, samples in blocks:
            deadline.check("decoding the audio")
            if output is None:
                output = _Output(source, request, rate, layout)
            output.check(Fraction(position + samples.shape[1], rate))
            if section is None or not section.continues(position, rate, layout):
                if section is not None:
                    section.end()
                section = _Section(output, position, rate, layout)
            section.add(samples)
            if output.last is not None and section.next_row >= output.last:
                break
        if output is None or section is None:
            raise DecodeError(f"{source.name}: nothing of its audio could be decoded")
        section.end()
    return Audio(output.data(), output.rate)


def _choose_audio(container: InputContainer, name: str) -> Any:
    """Return the stream that a player would choose."""
    chosen = container.streams.best("audio")
    if chosen is None:
        kinds = ", ".join(stream.type for stream in container.streams)
        raise SourceError(f"{name}: no audio stream (streams: {kinds or 'none'})")
    if chosen.codec_context is None:
        raise SourceError(f"{name}: this build of FFmpeg has no decoder for its audio")
    return chosen


def _decode(demuxer: Demuxer, earliest: Fraction | None) -> Iterator[AudioFrame]:
    """Yield the frames of a stream, those that are damaged left out, from ``earliest`` or from before it on."""
    # in other containers times are rounded, or guessed after a seek
    if earliest is not None and earliest > 0 and demuxer.format.startswith("mov"):
        time_base: Any = demuxer.stream.time_base
        demuxer.seek(math.floor(earliest / time_base))
    from av.error import FFmpegError

    context: Any = demuxer.stream.codec_context
    packets = demuxer.packets()
    while True:
        try:
            packet = next(packets, None)
        except FFmpegError:  # the file is cut off: the rest of the decoder's frames follows
            packet = None
        try:
            yield from context.decode(packet)
        except FFmpegError:
            pass
        if packet is None:
            return


def _place(
    demuxer: Demuxer, frames: Iterator[AudioFrame], zero: Fraction | None
) -> Iterator[tuple[int, int, str, Samples]]:
    """Yield position, rate, layout and ``float32 [channels, samples]`` of the frames, without overlaps.

    Positions count samples from ``zero`` on. Small errors of the times are ignored: the samples follow each other.
    """
    wrap = Fraction(MPEG_CLOCK_TICKS, 90_000) if demuxer.format in ("mpegts", "mpeg") else None
    position: Fraction | None = None  # seconds
    clock = Fraction(0)
    for frame, following in pairwise(chain(frames, [None])):
        assert frame is not None
        samples, rate = _to_float(frame), frame.sample_rate
        if following is None and demuxer.format.startswith("mov"):
            samples = samples[:, : _count_before_end(frame, demuxer.stream)]
        if frame.pts is not None and frame.time_base is not None:
            seconds = frame.pts * frame.time_base
            zero = seconds if zero is None else zero
            seconds -= zero
            if wrap is not None:
                seconds = (seconds + wrap / 2) % wrap - wrap / 2
            position = Fraction(round(seconds * rate), rate) if position is None else position
            jump = seconds + clock - position
            if abs(jump) > _MAX_GAP:
                clock -= jump
            elif jump > _MIN_GAP:
                position += Fraction(round(jump * rate), rate)
            elif jump < -_MIN_GAP:
                samples = samples[:, round(-jump * rate) :]
        position = position or Fraction(0)
        if samples.size:
            yield round(position * rate), rate, _layout_name(frame), samples
            position += Fraction(samples.shape[1], rate)


def _count_before_end(frame: AudioFrame, stream: Any) -> int:
    """Return how many samples of the last frame are before the end of an MP4 track; before version 9, FFmpeg has all.

    The rest is padding of the encoder. All are counted if none is before the end, for the header is wrong then.
    """
    if frame.pts is None or not stream.duration:
        return frame.samples
    left = ((stream.start_time or 0) + stream.duration - frame.pts) * stream.time_base * frame.sample_rate
    return round(left) if round(left) > 0 else frame.samples


def _layout_name(frame: AudioFrame) -> str:
    """Return FFmpeg's name of the layout, that of the usual one if only the number of channels is known."""
    name = frame.layout.name
    return f"{frame.layout.nb_channels}c" if name.endswith(" channels") else name


def _to_float(frame: AudioFrame) -> Samples:
    """Return the samples of a frame, ``float32 [channels, samples]``, as FFmpeg converts them."""
    values, kind = frame.to_ndarray(), frame.format.name.removesuffix("p")
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    offset = 128 if kind == "u8" else 0
    return ((values.astype(np.float64) - offset) / _FULL_SCALE[kind]).astype(np.float32)


class _Output:
    """The rows of the result, collected in parts."""

    def __init__(self, source: Source, request: AudioRequest, rate: int, layout: str) -> None:
        from av import AudioLayout

        self.rate = request.sample_rate or rate
        self.layout = layout if request.channels is None else f"{request.channels}c"
        self.channels = AudioLayout(self.layout).nb_channels
        self.first = round(request.start * self.rate)
        self.last = None if request.end is None else max(self.first, round(request.end * self.rate))
        self._name, self._max_bytes = source.name, request.limits.output_bytes(source.size)
        self._parts: list[tuple[int, Samples]] = []

    def check(self, until: Fraction) -> None:
        """Raise LimitError if the result, up to a time in seconds or to the end of the window, is too large."""
        last = math.ceil(until * self.rate) if self.last is None else self.last
        needed = (last - self.first) * self.channels * 4
        if needed > self._max_bytes:
            raise LimitError(
                f"{self._name}: {needed} bytes of audio or more; limits.max_output_bytes is {self._max_bytes}. "
                "Ask for a shorter window, a lower sample_rate or fewer channels"
            )

    def add(self, row: int, part: Samples) -> None:
        """Add ``float32 [samples, channels]`` that begins at a row counted from the zero of times."""
        part = part[max(0, self.first - row) : None if self.last is None else max(0, self.last - row)]
        if len(part):
            self._parts.append((max(0, row - self.first), part))

    def data(self) -> Samples:
        """Return the result: silence where there is no audio before its end."""
        data = np.zeros((max((row + len(part) for row, part in self._parts), default=0), self.channels), np.float32)
        for row, part in self._parts:
            data[row : row + len(part)] = part
        return data


class _Section:
    """Audio without a gap, of one rate and layout, on its way through FFmpeg's resampler."""

    def __init__(self, output: _Output, position: int, rate: int, layout: str) -> None:
        from av import AudioLayout, AudioResampler

        # silence up to a sample that both rates have: the samples of the result are then on one grid
        early = position % (rate // math.gcd(rate, output.rate))
        self._output, self._rate, self._layout = output, rate, layout
        self.next_row = (position - early) * output.rate // rate
        """Row of the result at which the next samples begin."""
        is_same = (rate, layout) == (output.rate, output.layout)
        self._resampler = None if is_same else AudioResampler("flt", output.layout, output.rate)
        self._blocks = [np.zeros((AudioLayout(layout).nb_channels, early), np.float32)]
        self._position, self._waiting = position, early

    def continues(self, position: int, rate: int, layout: str) -> bool:
        """Return True if samples at a position follow without a gap."""
        return (position, rate, layout) == (self._position, self._rate, self._layout)

    def add(self, samples: Samples) -> None:
        """Add ``float32 [channels, samples]``."""
        self._blocks.append(samples)
        self._position += samples.shape[1]
        self._waiting += samples.shape[1]
        if self._waiting >= _CHUNK_SAMPLES:
            self._convert()

    def end(self) -> None:
        """Convert what waits."""
        if self._waiting:
            self._convert()
        if self._resampler is not None:
            self._keep(self._resampler.resample(None))

    def _convert(self) -> None:
        from av import AudioFrame

        samples = np.ascontiguousarray(np.concatenate(self._blocks, axis=1))
        self._blocks, self._waiting = [], 0
        if self._resampler is None:
            self._add(samples.T)
            return
        frame = AudioFrame.from_ndarray(samples, "fltp", self._layout)
        frame.sample_rate = self._rate
        self._keep(self._resampler.resample(frame))

    def _keep(self, frames: list[AudioFrame]) -> None:
        for frame in frames:
            self._add(frame.to_ndarray().reshape(-1, self._output.channels).astype(np.float32, copy=False))

    def _add(self, rows: Samples) -> None:
        self._output.add(self.next_row, rows)
        self.next_row += len(rows)
