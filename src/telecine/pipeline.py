"""One request, from a source to labelled frames: :func:`run_request` shows every step. Read this first."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import numpy as np

from telecine.backends.base import Backend, Decoded, DecodeRequest
from telecine.backends.registry import get_backend
from telecine.bitstream.bit_reader import InvalidHeader
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import DecodeError, LimitError, OverloadedError
from telecine.frames import Frames, Report, permuted
from telecine.index.packet_index import PacketIndex
from telecine.index.table_index import complete_index, find_index, read_whole_index
from telecine.index.video_info import VideoInfo, make_video_info
from telecine.limits import Limits
from telecine.pixels.geometry import Geometry, Size, fit_size
from telecine.plan.decode_plan import make_plan
from telecine.request import Request
from telecine.source.source import Source, open_source
from telecine.validation import format_value

__all__ = [
    "IndexAndInfo",
    "RequestHooks",
    "StageTimer",
    "label_frames",
    "memory_errors",
    "plan_request",
    "read_index_and_info",
    "run_chunks",
    "run_request",
]


IndexAndInfo: TypeAlias = tuple[PacketIndex, VideoInfo]
"""The facts of a video that are read before anything is decoded."""


class RequestHooks:
    """Hooks by which a pool shares the machine among requests. These defaults run a request alone."""

    def hold_cpu_slot(self, source: Source) -> AbstractContextManager[object]:
        """Return a context that is held from the first packet read to the last frame decoded."""
        return nullcontext()

    def get_index(self, source: Source, limits: Limits, read: Callable[[], IndexAndInfo]) -> IndexAndInfo:
        """Return the index and the facts of a source: those that ``read`` reads, or those of an earlier request."""
        return read()

    def reserve_memory(self, decode: DecodeRequest, backend: Backend) -> AbstractContextManager[DecodeRequest]:
        """Return a context that holds memory during the decode; it gives the request with its share of the cores."""
        return nullcontext(decode)


_NO_HOOKS = RequestHooks()


def run_request(request: Request, deadline: Deadline, hooks: RequestHooks = _NO_HOOKS) -> Frames:
    """Run a request in this thread, from the source to the labelled frames."""
    timer, limits = StageTimer(), request.limits
    with timer.measure("source"):
        source = open_source(request.source, limits, deadline)
    with (
        source,
        hooks.hold_cpu_slot(source),
        timer.measure("index"),
        Demuxer(source, deadline, limits.max_pixels) as demuxer,
    ):
        index, info = hooks.get_index(source, limits, lambda: read_index_and_info(demuxer, source, limits, deadline))
        with timer.measure("plan"):
            decode = plan_request(request, demuxer, source, index, info, deadline)
        backend = get_backend(request.backend)
        with hooks.reserve_memory(decode, backend) as granted, timer.measure("decode"), memory_errors(source.name):
            decoded = backend.decode(granted)
    return label_frames(request, decode, decoded, timer.seconds)


def read_index_and_info(demuxer: Demuxer, source: Source, limits: Limits, deadline: Deadline) -> IndexAndInfo:
    """Read the packet index and the facts of a video."""
    index = find_index(demuxer, limits, deadline)
    return index, make_video_info(source, demuxer, index, limits)


def plan_request(
    request: Request,
    demuxer: Demuxer,
    source: Source,
    index: PacketIndex,
    info: VideoInfo,
    deadline: Deadline,
    max_chunk_frames: int | None = None,
) -> DecodeRequest:
    """Select the frames, check the limits, and plan which packets to decode.

    At most ``max_chunk_frames`` frames are in memory at a time; all of them if it is None. If the packets contradict
    tables of the container from which the index was made, the result has a new index and new facts.
    """
    frames, size = request.choose(index, info)
    geometry = _fit_geometry(info, size)
    count = request.output_count(len(frames)) if max_chunk_frames is None else min(len(frames), max_chunk_frames)
    _check_output_limits(source, count, geometry, request.limits)
    try:
        index = complete_index(index, demuxer, frames, request.limits, deadline)
    except InvalidHeader as error:
        index = read_whole_index(demuxer, request.limits, deadline, str(error))
        info = make_video_info(source, demuxer, index, request.limits)
        return plan_request(request, demuxer, source, index, info, deadline, max_chunk_frames)
    plan, max_pixels = make_plan(index, frames), request.limits.max_pixels
    device, options = request.device, request.options
    return DecodeRequest(
        source, demuxer, index, info, plan, geometry, deadline, device, options, max_pixels, layout=request.layout
    )


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn a MemoryError into an :class:`OverloadedError` that names the source."""
    try:
        yield
    except MemoryError as error:
        raise OverloadedError(
            f"{name}: there was not enough memory for it; ask for fewer frames or a smaller size"
        ) from error


def run_chunks(request: Request, decode: DecodeRequest, chunk_frames: int) -> Generator[Frames]:
    """Decode the planned frames and yield them in chunks, with one report each. Raises if none could be decoded."""
    chunks = get_backend(request.backend).decode_chunks(decode, chunk_frames)
    start, is_any_decoded = 0, False
    while True:
        timer = StageTimer()
        with timer.measure("decode"), memory_errors(decode.source.name):
            decoded = next(chunks, None)
        if decoded is None:
            break
        stop = start + len(decoded.kept)
        is_any_decoded |= bool(decoded.kept.any())
        yield label_frames(request, decode, decoded, timer.seconds, slice(start, stop))
        del decoded  # only the caller keeps the frames of a chunk
        start = stop
    if not is_any_decoded:
        raise _nothing_decoded(decode, request.backend)


def label_frames(
    request: Request, decode: DecodeRequest, decoded: Decoded, seconds: Mapping[str, float], rows: slice | None = None
) -> Frames:
    """Return the decoded frames with indices, times and report, without those that could not be decoded, and padded.

    ``rows`` are the rows of the output that were decoded, if they are one chunk of several.
    """
    backend = decoded.backend or request.backend
    wanted, kept = decode.plan.frames if rows is None else decode.plan.frames[rows], decoded.kept
    if rows is None and not kept.any():
        raise _nothing_decoded(decode, backend)
    lost = np.unique(wanted[~kept]).tolist()
    if lost and request.errors == "strict":
        first = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
        raise DecodeError(f"{decode.source.name}: {len(lost)} wanted frames could not be decoded: {first}")
    report = Report(
        backend=backend,
        device=decoded.device,
        packets_total=decode.plan.packets_total,
        packets_fed=decode.plan.packets_fed if decoded.packets_fed is None else decoded.packets_fed,
        lost=tuple(lost),
        fallback_reason=decoded.fallback_reason,
        notes=(*decode.info.notes, *decoded.notes),
        seconds={**seconds, **decoded.seconds},
        bytes_read=decode.demuxer.take_bytes_read(),
        damage_checked=get_backend(backend).detects_damage,
    )
    data = permuted(decoded.data, (0, 3, 1, 2)) if request.layout == "NCHW" else decoded.data
    data, indices = (data, wanted) if kept.all() else (data[kept], wanted[kept])
    timeline, mask = decode.index.timeline, np.ones(len(indices), np.bool_)
    frames = Frames(data, indices, timeline.seconds(indices), mask, decode.info, report, timeline, request.layout)
    return frames.pad_to(request.output_count(len(frames)))


def _nothing_decoded(decode: DecodeRequest, backend: str) -> DecodeError:
    return DecodeError(
        f"{decode.source.name}: none of {len(decode.plan.frames)} wanted frames could be decoded "
        f"({decode.info.codec}, {backend})"
    )


class StageTimer:
    """Wall time of the stages of a request. A stage inside another does not count twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds by the name of the stage."""

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the ``with`` block to a stage."""
        started, inner = time.perf_counter(), sum(self.seconds.values())
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            elapsed -= sum(self.seconds.values()) - inner
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed


def _fit_geometry(info: VideoInfo, size: Size) -> Geometry:
    height, width = fit_size(size, info.height, info.width)
    turns = info.rotation // 90
    stored = (info.height, info.width) if turns % 2 == 0 else (info.width, info.height)
    return Geometry(*stored, turns, info.mirrored, height, width)


def _check_output_limits(source: Source, count: int, geometry: Geometry, limits: Limits) -> None:
    name, max_bytes = source.name, limits.output_bytes(source.size)
    if count > limits.max_frames:
        raise LimitError(f"{name}: {count} frames asked for; limits.max_frames is {limits.max_frames}")
    if geometry.height * geometry.width > limits.max_pixels:
        raise LimitError(
            f"{name}: frames of {format_value(geometry.width)}x{format_value(geometry.height)} pixels; "
            f"limits.max_pixels is {limits.max_pixels}"
        )
    needed = count * geometry.height * geometry.width * 3
    if needed > max_bytes:
        raise LimitError(
            f"{name}: {count} frames of {geometry.width}x{geometry.height} are {needed} bytes; "
            f"limits.max_output_bytes is {max_bytes}. Ask for fewer frames or a smaller size"
        )
