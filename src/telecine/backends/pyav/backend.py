"""The CPU backend: FFmpeg's decoders through PyAV, fed with the planned packets only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from telecine.backends.base import SINGLE_THREADED_CODECS, Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import check_gpu, upload
from telecine.backends.pyav.chunks import ChunkDecoder
from telecine.backends.pyav.decoder import DecodePass, Decoder
from telecine.backends.pyav.parallel_ranges import DecodeProgress, decode_in_parallel, split_threads
from telecine.backends.remux.output_buffers import HostOutput
from telecine.plan.damage import lost_packets, unreliable_rows
from telecine.plan.ranges import DecodeRange, output_rows, split_at_closed_points, split_at_resets
from telecine.validation import Option

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["PyAVBackend"]

_EXTRA_THREADS = 2
"""Frame threads beyond one per core: they wait for each other's rows (docs/performance.md)."""


class PyAVBackend(Backend):
    """Executes a plan on the CPU.

    The number of threads is always explicit, and threads work on whole frames. FFmpeg's default is up to 16 slice
    threads for each of many decoders, which has been seen to hang.
    """

    name = "pyav"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {"threads": Option(int, low=1, high=64)}  # from the cores when omitted

    def status(self) -> BackendStatus:
        try:
            import av
        except ImportError as error:
            return self.make_status(None, f"PyAV cannot be imported ({error}): pip install av")
        return self.make_status(av.__version__)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        super().check_device(device, options)
        if device != "cpu":
            check_gpu(device, "auto")

    def decodes_on_cpu(self, device: str) -> bool:
        return True  # frames for a GPU are uploaded

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        uploaded = 0 if request.device == "cpu" else request.output_bytes
        return request.cpu_cost(_threads(request)) + MemoryCost(0, uploaded)

    def decode(self, request: DecodeRequest) -> Decoded:
        buffer = HostOutput(request, planar=request.layout == "NCHW")
        progress = DecodeProgress(request.deadline, request.plan.packets_fed)
        first, second = (_RangeDecoder(request, each, progress) for each in (buffer, buffer.share()))
        try:
            _decode_plan(request, first, second, _threads(request), progress)
        finally:
            first.close()
        seconds = {"convert": first.convert_seconds + second.convert_seconds}
        return _move_to_device(replace(buffer.decoded(), seconds=seconds), request)

    def decode_chunks(self, request: DecodeRequest, chunk_frames: int) -> Iterator[Decoded]:
        if (np.diff(request.plan.frames) < 0).any():
            yield from super().decode_chunks(request, chunk_frames)
            return
        with closing(ChunkDecoder(request, _threads(request), chunk_frames).chunks()) as chunks:
            for decoded in chunks:
                yield _move_to_device(decoded, request)
                del decoded  # only the caller keeps the frames of a chunk


def _move_to_device(decoded: Decoded, request: DecodeRequest) -> Decoded:
    if request.device == "cpu":
        return decoded
    started = time.perf_counter()
    data, device = upload(np.ascontiguousarray(decoded.data), request.device, "auto")
    seconds = {**decoded.seconds, "copy": time.perf_counter() - started}
    return replace(decoded, data=data, device=device, seconds=seconds)


def _threads(request: DecodeRequest) -> int:
    requested: int | None = request.options.get("threads")
    if request.index.codec in SINGLE_THREADED_CODECS or (requested is None and request.cores == 1):
        return 1  # with one core per request, other requests use the time in which frame threads wait
    return request.decoder_threads(requested, _EXTRA_THREADS)


def _decode_plan(
    request: DecodeRequest, first: _RangeDecoder, second: _RangeDecoder, threads: int, progress: DecodeProgress
) -> None:
    ranges = request.plan.ranges
    intact = [False] * len(ranges)
    if (split := split_threads(request, threads)) is not None:
        decoders = partial(first.decode_range, split[0]), partial(second.decode_range, split[1])
        intact = decode_in_parallel(ranges, decoders, progress, second.close)
    is_intact = iter(intact)
    for decode_pass in split_at_resets(ranges):
        if all([next(is_intact) for _ in decode_pass]) or first.decode(threads, decode_pass):
            continue
        # Frame threads report errors late and for several packets: with one thread, each packet has its own. A damaged
        # packet may have left wrong parameter sets, which a flush does not remove: each independent range gets a new
        # decoder.
        for independent in split_at_closed_points(request.index, decode_pass):
            first.close()
            first.decode_range(1, independent)


class _RangeDecoder:
    """Decodes ranges of one request and writes the wanted frames. Not thread-safe: one per thread."""

    def __init__(self, request: DecodeRequest, buffer: HostOutput, progress: DecodeProgress) -> None:
        self._request, self._buffer, self._progress = request, buffer, progress
        self._decoder = Decoder(request)
        self.convert_seconds = 0.0
        self.close = self._decoder.discard

    def decode_range(self, threads: int, range_: DecodeRange) -> bool:
        """Decode a range in a decode pass of its own; see :meth:`decode`."""
        return self.decode(threads, (range_,))

    def decode(self, threads: int, ranges: tuple[DecodeRange, ...]) -> bool:
        """Decode the ranges of one decode pass. Returns True if no picture was lost."""
        kept = self._buffer.kept
        decode_pass = DecodePass(self._request, self._decoder, threads)
        targets = output_rows(ranges)
        kept[[row for rows in targets.values() for row in rows]] = False
        for range_ in ranges:
            for ordinal, packet in self._request.reader.read(range_.packets):
                self._progress.step()
                self._write(decode_pass.feed(ordinal, packet), targets, decode_pass.damaged)
        self._write(decode_pass.drain(), targets, decode_pass.damaged)
        missing = {packet for range_ in ranges for packet in range_.packets.tolist()} - decode_pass.seen
        damaged = decode_pass.damaged
        kept[unreliable_rows(self._request.index, ranges, missing, damaged, decode_pass.gaps)] = False
        return not lost_packets(self._request.index, ranges, missing, damaged)

    def _write(self, pictures: list[VideoFrame], targets: dict[int, tuple[int, ...]], damaged: set[int]) -> None:
        import av

        for picture in pictures:
            if picture.pts in targets:
                started = time.perf_counter()
                try:
                    self._buffer.write_frame(targets[picture.pts], picture)
                except av.error.FFmpegError:
                    damaged.add(picture.pts)
                self.convert_seconds += time.perf_counter() - started
