"""The CPU backend: FFmpeg's decoders through PyAV, fed with the planned packets only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import check_gpu, upload
from telecine.backends.pyav.decoder import DecodePass, Decoder
from telecine.backends.pyav.parallel_ranges import Progress, shares, two_at_a_time
from telecine.pixels.filter_graph import Converter
from telecine.plan.damage import required_losses, unreliable_targets
from telecine.plan.ranges import DecodeRange, output_rows, split_at_closed_points, split_at_resets
from telecine.system import usable_cores
from telecine.validation import Option

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["PyAVBackend"]

_SINGLE_THREADED = frozenset({"mpeg4"})
"""With several threads FFmpeg hands out a frame of these before it knows whether it was damaged."""
_MAX_THREADS = 16
_EXTRA_THREADS = 2
"""Frame threads wait for each other's rows; two more than cores keep the cores busy (docs/performance.md)."""


class PyAVBackend(Backend):
    """Executes a plan on the CPU.

    The count of threads is always explicit, and threads work on whole frames: FFmpeg's own choice starts up to 16 slice
    threads for each of many decoders, which has been seen to hang.
    """

    name = "pyav"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "threads": Option(int, None, "decoder threads of one request; from the cores when omitted", 1, 64),
    }

    def status(self) -> BackendStatus:
        """See :meth:`telecine.backends.Backend.status`."""
        try:
            import av
        except ImportError as error:
            return self.make_status(None, f"PyAV cannot be imported ({error}): pip install av")
        return self.make_status(av.__version__)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        """See :meth:`telecine.backends.Backend.check_device`."""
        super().check_device(device, options)
        if device != "cpu":
            check_gpu(device, "auto")

    def decodes_on_cpu(self, device: str) -> bool:
        """See :meth:`telecine.backends.Backend.decodes_on_cpu`. Frames for a GPU are uploaded."""
        return True

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """See :meth:`telecine.backends.Backend.memory_cost`."""
        uploaded = 0 if request.device == "cpu" else request.output_bytes
        return request.cpu_cost(_threads(request)) + MemoryCost(0, uploaded)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :meth:`telecine.backends.Backend.decode`."""
        threads = _threads(request)
        count = len(request.plan.frames)
        height, width = request.geometry.height, request.geometry.width
        planar = request.layout == "NCHW"
        if planar:
            data = np.empty((count, 3, height, width), np.uint8).transpose(0, 2, 3, 1)
        else:
            data = np.empty((count, height, width, 3), np.uint8)
        kept = np.zeros(count, np.bool_)
        progress = Progress(request.deadline, request.plan.packets_fed)
        feeder, second = (
            _Feeder(request, Converter(request.geometry, planar=planar), data, kept, progress) for _ in range(2)
        )
        with ExitStack() as end:
            for each in (feeder, second):
                end.callback(each.forget)
            _execute(request, threads, (feeder, second), progress)
        notes = []
        if len(met := feeder.sizes | second.sizes) > 1:
            sizes = ", ".join(f"{width}x{height}" for height, width in sorted(met))
            notes.append(f"the picture size changes in mid-stream ({sizes}): all frames are scaled to the first size")
        seconds = {"convert": feeder.convert_seconds + second.convert_seconds}
        if request.device == "cpu":
            return Decoded(data, kept, "cpu", tuple(notes), seconds)
        started = time.perf_counter()
        on_gpu, device = upload(np.ascontiguousarray(data), request.device, "auto")
        return Decoded(on_gpu, kept, device, tuple(notes), seconds | {"copy": time.perf_counter() - started})


def _execute(request: DecodeRequest, threads: int, feeders: tuple[_Feeder, _Feeder], progress: Progress) -> None:
    feeder, second = feeders
    ranges = request.plan.ranges
    intact: dict[int, bool] = {}
    if (share := shares(request, threads)) is not None:
        decoders = partial(_alone, feeder, share[0]), partial(_alone, second, share[1])
        intact = {id(range_): ok for range_, ok in zip(ranges, two_at_a_time(ranges, decoders, progress), strict=True)}
    for decode_pass in split_at_resets(ranges):
        if all(intact.get(id(range_)) for range_ in decode_pass):
            continue
        if not feeder.decode(decode_pass, threads):
            # Errors of frame threads surface late, and in company: alone, each packet answers for itself. And a
            # damaged packet may have left wrong parameter sets, which a decoder keeps through a flush: each stretch
            # that needs nothing from before it gets a new one, as if it were the only one asked for.
            for range_ in decode_pass:
                for independent in split_at_closed_points(request.index, range_):
                    feeder.forget()
                    feeder.decode((independent,), threads=1)


def _threads(request: DecodeRequest) -> int:
    threads: int | None = request.options.get("threads")
    if request.index.codec in _SINGLE_THREADED:
        return 1
    if threads is None:
        cores = request.cores or usable_cores()
        # one of many decodes that share the cores loses nothing by waiting for itself
        return 1 if request.cores == 1 else min(_MAX_THREADS, cores + _EXTRA_THREADS)
    return threads


def _alone(feeder: _Feeder, threads: int, run: DecodeRange) -> bool:
    return feeder.decode((run,), threads)


class _Feeder:
    """Feeds packets and collects the wanted frames of one request."""

    def __init__(
        self,
        request: DecodeRequest,
        convert: Converter,
        data: npt.NDArray[np.uint8],
        kept: npt.NDArray[np.bool_],
        progress: Progress,
    ) -> None:
        self._request = request
        self._index = request.index
        self._decoder = Decoder(request)
        self._convert = convert
        self._data = data
        self._kept = kept
        self._progress = progress
        self.convert_seconds = 0.0
        self.forget = self._decoder.discard

    @property
    def sizes(self) -> set[tuple[int, int]]:
        """(height, width) of the pictures that were converted."""
        return self._convert.sizes

    def decode(self, segment: tuple[DecodeRange, ...], threads: int) -> bool:
        """Decode the ranges of one decode pass. Returns True if nothing in it was damaged."""
        decode_pass = DecodePass(self._request, self._decoder.restart(threads))
        targets = output_rows(segment)
        self._kept[[row for rows in targets.values() for row in rows]] = False
        for run in segment:
            for ordinal, packet in self._request.reader.read(run.packets):
                self._progress.step()
                self._write(decode_pass.feed(ordinal, packet), targets, decode_pass.damaged)
        self._write(decode_pass.drain(), targets, decode_pass.damaged)
        return self._judge(segment, targets, decode_pass.seen, decode_pass.damaged, decode_pass.gaps)

    def _write(self, pictures: list[VideoFrame], targets: dict[int, tuple[int, ...]], damaged: set[int]) -> None:
        import av

        for picture in pictures:
            if picture.pts not in targets:
                continue
            started = time.perf_counter()
            first, *others = targets[picture.pts]
            try:
                self._convert(picture, self._data[first])
            except av.error.FFmpegError:
                damaged.add(picture.pts)
                continue
            for row in others:
                self._data[row] = self._data[first]
            self._kept[list(targets[picture.pts])] = True
            self.convert_seconds += time.perf_counter() - started

    def _judge(
        self,
        segment: tuple[DecodeRange, ...],
        targets: dict[int, tuple[int, ...]],
        seen: set[int],
        damaged: set[int],
        gaps: set[int],
    ) -> bool:
        """Withdraw the frames that were built on damaged ones; say whether there were none."""
        lost = {packet for run in segment for packet in run.packets.tolist()} - seen | damaged
        for ordinal in unreliable_targets(self._index, segment, lost, gaps):
            self._kept[list(targets[ordinal])] = False
        return not required_losses(segment, lost)
