"""The CPU backend: FFmpeg's decoders through PyAV, fed with the planned packets only."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.bitstream import Access
from telecine.convert import Converter
from telecine.cores import usable_cores
from telecine.errors import OptionsError
from telecine.plan import Run

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

__all__ = ["PyAVBackend"]

_DECODER_OPTIONS = {
    # damage inside an HEVC picture mostly decodes to something, and nothing tells; where the stream carries hashes of
    # its pictures, compare them
    "hevc": {"err_detect": "crccheck+explode"},
}
_SINGLE_THREADED = frozenset({"mpeg4"})
"""With several threads FFmpeg hands out a frame of these before it knows whether it was damaged."""
_MAX_THREADS = 16
_EXTRA_THREADS = 2
"""Frame threads wait for each other's rows; two more than cores keep the cores busy (docs/performance.md)."""


class PyAVBackend:
    """Executes a plan on the CPU.

    Options: ``threads``, the decoder threads of one request; from the cores of this process when omitted. The count
    is always explicit, and threads work on whole frames: FFmpeg's own choice starts up to 16 slice threads for each of
    many decoders, which has been seen to hang.
    """

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
        try:
            import av
        except ImportError as error:
            return BackendStatus("pyav", False, f"PyAV cannot be imported ({error}): pip install av", None)
        return BackendStatus("pyav", True, None, av.__version__)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.Backend`."""
        threads = _checked_threads(request)
        count = len(request.plan.frames)
        data = np.empty((count, request.geometry.height, request.geometry.width, 3), np.uint8)
        kept = np.zeros(count, np.bool_)
        convert = Converter(request.geometry)
        feeder = _Feeder(request, convert, data, kept)
        segments = _segments(request.plan.runs)
        for segment in segments:
            if not feeder.decode(segment, threads):
                # errors of frame threads surface late, and in company: alone, each packet answers for itself
                feeder.decode(segment, threads=1)
        notes = []
        if len(convert.sizes) > 1:
            sizes = ", ".join(f"{width}x{height}" for height, width in sorted(convert.sizes))
            notes.append(f"the picture size changes in mid-stream ({sizes}): all frames are scaled to the first size")
        return Decoded(data, kept, "cpu", tuple(notes), {"convert": feeder.convert_seconds})


def _checked_threads(request: DecodeRequest) -> int:
    unknown = set(request.options) - {"threads"}
    if unknown:
        raise OptionsError(f"pyav has no option {', '.join(sorted(unknown))}; its options are: threads")
    threads = request.options.get("threads")
    if request.index.codec in _SINGLE_THREADED:
        return 1
    if threads is None:
        return min(_MAX_THREADS, usable_cores() + _EXTRA_THREADS)
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 64:
        raise OptionsError(f"threads is {threads!r}; it must be a whole number from 1 to 64")
    return threads


def _segments(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs between two restarts of the decoder."""
    segments: list[list[Run]] = []
    for run in runs:
        if run.restart:
            segments.append([])
        segments[-1].append(run)
    return segments


class _Feeder:
    """Feeds packets and collects the wanted frames of one request."""

    def __init__(
        self, request: DecodeRequest, convert: Converter, data: npt.NDArray[np.uint8], kept: npt.NDArray[np.bool_]
    ) -> None:
        self._request = request
        self._index = request.index
        self._convert = convert
        self._data = data
        self._kept = kept
        self._context: VideoCodecContext | None = None
        self._threads = 0
        self._fed = 0
        self._to_feed = request.plan.packets_fed
        self.convert_seconds = 0.0

    def decode(self, segment: list[Run], threads: int) -> bool:
        """Decode the runs of a segment without restarting in between; say whether all of it was sound."""
        import av

        context = self._ready(threads)
        targets = {packet: rows for run in segment for packet, rows in run.targets.items()}
        self._kept[[row for rows in targets.values() for row in rows]] = False
        seen: set[int] = set()
        damaged: set[int] = set()
        for run in segment:
            for ordinal, packet in self._request.demuxer.read(self._index, run.packets):
                self._request.deadline.check("decoding", self._fed, self._to_feed)
                self._fed += 1
                # the frame carries its packet's pts: with the ordinal in it, the container's times cannot mislead
                packet.pts = ordinal
                if packet.is_corrupt:  # cut off, or a gap in a transport stream
                    damaged.add(ordinal)
                try:
                    self._take(context.decode(packet), targets, seen, damaged)
                except av.error.FFmpegError:
                    damaged.add(ordinal)
        try:
            self._take(context.decode(None), targets, seen, damaged)
        except av.error.FFmpegError:
            pass  # whatever did not come out is missing from `seen`
        return self._judge(segment, targets, seen, damaged)

    def _ready(self, threads: int) -> VideoCodecContext:
        """A decoder in its first state."""
        if self._context is not None and self._threads == threads:
            self._context.flush_buffers()
            return self._context
        import av

        template: Any = self._request.demuxer.stream.codec_context
        context: Any = av.CodecContext.create(template.codec, "r")
        context.extradata = template.extradata
        context.width, context.height = template.width, template.height
        context.codec_tag = template.codec_tag
        context.options = _DECODER_OPTIONS.get(self._index.codec, {})
        context.thread_type = "FRAME"
        context.thread_count = threads
        self._context, self._threads = context, threads
        return self._context

    def _take(
        self, pictures: list[Any], targets: dict[int, tuple[int, ...]], seen: set[int], damaged: set[int]
    ) -> None:
        for picture in pictures:
            ordinal = picture.pts
            if ordinal is None or ordinal in seen:
                continue
            seen.add(ordinal)
            if picture.is_corrupt:
                damaged.add(ordinal)
            elif ordinal in targets:
                started = time.perf_counter()
                first, *others = targets[ordinal]
                self._convert(picture, self._data[first])
                for row in others:
                    self._data[row] = self._data[first]
                self._kept[list(targets[ordinal])] = True
                self.convert_seconds += time.perf_counter() - started

    def _judge(
        self, segment: list[Run], targets: dict[int, tuple[int, ...]], seen: set[int], damaged: set[int]
    ) -> bool:
        """Withdraw the frames that were built on damaged ones; say whether there were none."""
        index, sound = self._index, True
        broken = False
        for run in segment:
            for ordinal, must_be_sound in zip(run.packets.tolist(), run.sound.tolist(), strict=True):
                if index.access[ordinal] == Access.CLOSED:
                    broken = False
                bad = (must_be_sound and ordinal not in seen) or (ordinal in damaged and must_be_sound)
                sound &= not bad
                if ordinal in targets and (bad or broken):
                    self._kept[list(targets[ordinal])] = False
                broken |= bad and not index.disposable[ordinal] and index.exact_start
        return sound
