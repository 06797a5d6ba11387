"""An opened video: its packets are indexed once, then it answers many requests."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, SupportsFloat, SupportsIndex, Unpack, overload

import numpy as np
import numpy.typing as npt

from telecine.audio import Audio, AudioRequest, first_frame_time, read_audio
from telecine.backends.base import DecodeRequest
from telecine.backends.registry import get_backend
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline, ForwardingDeadline, Timeout
from telecine.errors import Cancelled, OptionsError, SourceError
from telecine.frames import Frame, Frames
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.pipeline import StageTimer, label_frames, memory_errors, plan_request, read_index_and_info, run_chunks
from telecine.request import LoadOptions, OpenOptions, Request, SamplingOptions, SourceLike, show_options
from telecine.source.source import Source, file_version, open_source
from telecine.timeline import Timeline
from telecine.validation import check_int, to_int

__all__ = ["FrameChunks", "Video"]

_MAX_IDLE_DEMUXERS = 4
"""Demuxers kept for later requests. Each holds the tables of the container."""


class Video:
    """A video whose packets are indexed once, for many requests. A context manager.

    Made by :func:`telecine.open`, which takes the same arguments.

    ``len(video)`` is the number of presentable frames. ``video[i]`` is a :class:`Frame`; ``video[a:b:c]`` and
    ``video[[i, j, ...]]`` are :class:`Frames`. Each of them decodes from a random access point. Iteration over the
    video yields every :class:`Frame` in order and in bounded memory, and decodes each packet once.

    Thread-safe: requests of several threads run at the same time.
    """

    info: VideoInfo
    """Facts about the video."""
    closed = False
    """True if the video was closed."""

    @show_options(OpenOptions)
    def __init__(self, source: SourceLike, *, timeout: Timeout = None, **options: Unpack[OpenOptions]) -> None:
        if sampling := options.keys() & SamplingOptions.__annotations__.keys():
            raise OptionsError(f"{min(sampling)} chooses frames; give it to load() or iterate(), not to open()")
        limits = Request.of(source, **options).limits
        self._options: OpenOptions = options
        self._timeout, self._max_pixels = timeout, limits.max_pixels
        self._lock = threading.Condition()
        self._in_use: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._iterators: weakref.WeakSet[FrameChunks] = weakref.WeakSet()
        self._file = source if _is_local_file(source) else None
        self._file_version = None if self._file is None else file_version(self._file)
        slot = _Slot(Deadline.of(timeout))
        self._source = open_source(source, limits, slot.deadline)
        try:
            self._idle.append(slot)
            demuxer = slot.open(self._source, self._max_pixels)
            self._index, self.info = read_index_and_info(demuxer, self._source, limits, slot.deadline)
            demuxer.take_bytes_read()  # the reports of requests count their own
        except BaseException:
            self.close()
            raise

    @property
    def timeline(self) -> Timeline:
        """Times of all frames."""
        return self._index.timeline

    def __len__(self) -> int:
        return self._index.num_frames

    def __repr__(self) -> str:
        info = self.info
        size = f"{info.num_frames} x {info.height}x{info.width}"
        return f"Video({self._source.name}, {size}, {info.codec}{', closed' if self.closed else ''})"

    @show_options(LoadOptions)
    def load(self, *, timeout: Timeout = None, **options: Unpack[LoadOptions]) -> Frames:
        """Decode the frames asked for.

        Args:
            timeout: seconds, or a :class:`telecine.Deadline`; that of the video when omitted.
            **options: sampling, ``size`` and other options of :func:`telecine.load`.

        Raises:
            OptionsError: an option is wrong, or the video is closed.
            SourceError: the file was changed after the video was opened.
            Cancelled: the video was closed by another thread.
            TelecineError: as :func:`telecine.load` says.
        """
        request, timer = self._request(options), StageTimer()
        with self._lease(timeout) as slot:
            with timer.measure("plan"):
                decode = self._plan(request, slot)
            with timer.measure("decode"), memory_errors(self._source.name):
                decoded = get_backend(request.backend).decode(decode)
        return label_frames(request, decode, decoded, timer.seconds)

    @show_options(LoadOptions)
    def iterate(
        self, *, chunk_frames: SupportsIndex = 64, timeout: Timeout = None, **options: Unpack[LoadOptions]
    ) -> FrameChunks:
        """Return an iterator over the frames asked for, in chunks of bounded size.

        Memory does not grow with the length of the video. Each packet is decoded once, and the decoder stays open from
        chunk to chunk.

        Args:
            chunk_frames: largest number of frames of a chunk. A chunk has fewer at the end of the video, if frames were
                lost, and on some backends at the end of a group of pictures.
            timeout: seconds for each chunk, or a :class:`telecine.Deadline` for all; that of the video when omitted.
            **options: sampling, ``size`` and other options of :func:`telecine.load`. If the frame indices do not
                ascend, each chunk is decoded by itself, which takes longer.

        Returns:
            An iterator of :class:`Frames`. The report of each is that of its chunk. ``close()`` ends it early.

        Raises:
            OptionsError: an option is wrong, or the video is closed.
            TelecineError: during the iteration, as :meth:`load` says.
        """
        count = check_int("chunk_frames", chunk_frames, 1)
        request = self._request(options)
        if request.pad is not None:
            raise OptionsError("pad does not go with iterate(), whose chunks may have fewer frames; leave it out")
        chunks = FrameChunks(self, request, count, timeout)
        with self._lock:
            self._check_open()
            self._iterators.add(chunks)
        return chunks

    def audio(
        self,
        *,
        start: SupportsFloat | None = None,
        end: SupportsFloat | None = None,
        sample_rate: SupportsIndex | None = None,
        channels: SupportsIndex | None = None,
        timeout: Timeout = None,
    ) -> Audio:
        """Decode the audio, aligned to the frames; the arguments and errors are those of :func:`telecine.load_audio`.

        ``timeout`` is that of the video when omitted.
        """
        request = AudioRequest.of(start, end, sample_rate, channels, self._options.get("limits"))
        with self._lease(timeout) as slot, memory_errors(self._source.name):
            return read_audio(self._source, first_frame_time(slot.index), request, slot.deadline)

    def __iter__(self) -> Iterator[Frame]:
        for chunk in self.iterate():
            yield from chunk

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Frame: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Frames: ...

    def __getitem__(self, key: Any) -> Frame | Frames:
        if (number := to_int(key)) is not None:
            return self.load(indices=[range(len(self))[number]])[0]
        chosen = key if isinstance(key, slice) else np.asarray(key, None if len(key) else np.int64)
        indices = np.arange(len(self))[chosen]
        if len(indices):
            return self.load(indices=indices)
        return self.load(indices=[0])[:0]  # decoded for the shape and the device of an empty result

    def close(self) -> None:
        """Close the source and everything that reads it. A second call does nothing.

        Requests that run in other threads raise :class:`telecine.Cancelled`; this waits until they have ended.
        """
        with self._lock:
            self.closed = True
            iterators = list(self._iterators)
            for slot in self._in_use:
                slot.deadline.closed = True
        for chunks in iterators:
            chunks.close()
        this_thread = threading.get_ident()
        with self._lock:
            self._lock.wait_for(lambda: all(slot.thread == this_thread for slot in self._in_use))
            self._close_if_unused()

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, options: LoadOptions) -> Request:
        every: Any = {**self._options, **options}
        return Request.of("", **every)

    def _plan(self, request: Request, slot: _Slot, max_chunk_frames: int | None = None) -> DecodeRequest:
        demuxer = slot.open(self._source, self._max_pixels)
        index, info = slot.index, self.info
        decode = plan_request(request, demuxer, self._source, index, info, slot.deadline, max_chunk_frames)
        if decode.info is not info:  # the packets have contradicted the tables from which the index was made
            self._index, self.info = decode.index, decode.info
        return decode

    def _check_open(self) -> None:
        if self.closed:
            raise OptionsError(f"{self._source.name}: the video is closed; open it again")

    def _check_unchanged(self) -> None:
        """Raise if the mapped file was written to. Another file in its place does no harm."""
        if (before := self._file_version) is None or (now := file_version(self._file)) is None:
            return
        # another name for the file changes ctime, the last value, but not the bytes
        if now[:4] != before[:4] and now[:2] == before[:2]:
            raise SourceError(f"{self._source.name}: the file was changed after it was opened; open it again")

    @contextmanager
    def _lease(self, timeout: Timeout) -> Iterator[_Slot]:
        """Lend a demuxer that no other request uses, and the kept packets unless another request uses them."""
        deadline = self._deadline(timeout)
        with self._lock:
            self._check_open()
            slot = self._idle.pop() if self._idle else _Slot(deadline)
            slot.deadline.current, slot.thread = deadline, threading.get_ident()
            # a decode writes into the packets
            is_first = not any(other.index.packets is not None for other in self._in_use)
            slot.index = self._index if is_first else replace(self._index, packets=None)
            self._in_use.append(slot)
        try:
            self._check_unchanged()
            yield slot
        except BaseException:
            slot.close()  # its position is not known
            raise
        finally:
            with self._lock:
                self._in_use.remove(slot)
                slot.deadline.current = Deadline()
                if slot.demuxer is not None and len(self._idle) < _MAX_IDLE_DEMUXERS:
                    self._idle.append(slot)
                else:
                    slot.close()
                if self.closed:
                    self._close_if_unused()
                self._lock.notify_all()

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.of(self._timeout if timeout is None else timeout)

    def _close_if_unused(self) -> None:
        if not self._in_use:
            while self._idle:
                self._idle.pop().close()
            self._source.close()


class FrameChunks(Iterator[Frames]):
    """Iterator over the chunks of a request; see :meth:`Video.iterate`. A context manager.

    If several threads ask for the next chunk, one of them gets it and the others wait.
    """

    def __init__(self, video: Video, request: Request, chunk_frames: int, timeout: Timeout) -> None:
        self._video, self._timeout = video, timeout
        self._lock = threading.RLock()
        self._slots: list[_Slot] = []
        self._generator = _generate(video, request, chunk_frames, timeout, self._slots)
        self._has_ended = False

    def __next__(self) -> Frames:
        video = self._video
        with self._lock:
            if not self._has_ended:
                video._check_open()
                video._check_unchanged()
            for slot in self._slots:
                slot.deadline.current, slot.thread = video._deadline(self._timeout), threading.get_ident()
                slot.deadline.check("decoding")
            try:
                return next(self._generator)
            except BaseException:
                self._has_ended = True
                raise

    def close(self) -> None:
        """End the iteration and free the decoder."""
        with self._lock, suppress(ValueError):  # raised if a progress callback of this iteration calls it
            self._generator.close()
            self._has_ended |= not self._video.closed

    def __enter__(self) -> FrameChunks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _generate(
    video: Video, request: Request, chunk_frames: int, timeout: Timeout, slots: list[_Slot]
) -> Generator[Frames]:
    with video._lease(timeout) as slot:
        decode = video._plan(request, slot, chunk_frames)
        slots.append(slot)
        try:
            with closing(run_chunks(request, decode, chunk_frames)) as chunks:
                yield from chunks
        finally:
            slots.clear()


class _Slot:
    """A demuxer that one request uses at a time."""

    index: PacketIndex

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = _SlotDeadline(deadline)
        self.thread = 0
        self.demuxer: Demuxer | None = None

    def open(self, source: Source, max_pixels: int) -> Demuxer:
        """Return the demuxer, opened on first use."""
        if self.demuxer is None:
            self.demuxer = Demuxer(source, self.deadline, max_pixels)
        return self.demuxer

    def close(self) -> None:
        """Close the demuxer."""
        if self.demuxer is not None:
            self.demuxer.close()
        self.demuxer = None


class _SlotDeadline(ForwardingDeadline):
    """Deadline of a demuxer: that of the request which uses it now, or the closing of the video."""

    closed = False

    @property
    def cancelled(self) -> bool:
        return self.closed or super().cancelled

    def check(self, doing: str, done: int = 0, total: int = 0) -> None:
        if self.closed:
            raise Cancelled(f"the video was closed while {doing}")
        super().check(doing, done, total)


def _is_local_file(source: Any) -> bool:
    """Return True if a source is mapped from a local file."""
    if isinstance(source, str):
        return source[:5].lower() not in ("http:", "https", "data:", "file:")
    return isinstance(source, (os.PathLike, io.FileIO, io.BufferedReader))
