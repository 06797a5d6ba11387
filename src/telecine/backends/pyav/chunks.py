"""Decoding a plan with one decoder that stays open, and handing out the frames in chunks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Decoded, DecodeRequest
from telecine.backends.pyav.decoder import DecodePass, Decoder
from telecine.backends.remux.output_buffers import allocate_frames, size_notes
from telecine.pixels.filter_graph import Converter
from telecine.plan.damage import DamageTracker
from telecine.plan.ranges import DecodeRange, split_at_closed_points, split_at_resets

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["ChunkDecoder"]

_MAX_REORDERED_PACKETS = 64
"""Packets fed after one whose picture has not come out yet, at most: 16 pictures of two fields, and a margin."""


@dataclass
class _Chunk:
    data: npt.NDArray[np.uint8]
    kept: npt.NDArray[np.bool_]
    undecided: int
    """Rows of which it is not known yet whether they can be kept."""


class _Fed(NamedTuple):
    """A packet that was fed, and is not settled."""

    number: int
    """Packets fed before it in the same pass."""
    range_number: int
    ordinal: int
    required: bool
    has_gap: bool


class ChunkDecoder:
    """Executes a plan whose frames ascend, and yields its output rows in chunks.

    A packet is *settled* when it is certain that its picture is undamaged, or will not come out. Frame threads report
    an error up to ``threads`` packets late, so a packet is settled some packets after it was fed. A chunk is handed out
    when all of its packets are settled.

    If anything is damaged, the rest of the decode pass is decoded again from the closed random access point before the
    first packet that is not settled. At each closed point a new decoder with a single thread begins, so each error
    belongs to the packet just fed. A request for all frames at once treats damage in the same way.
    """

    def __init__(self, request: DecodeRequest, threads: int, chunk_frames: int) -> None:
        self._request, self._index = request, request.index
        self._threads, self._chunk_frames = threads, chunk_frames
        self._decoder = Decoder(request)
        self._planar = request.layout == "NCHW"
        self._convert = Converter(request.geometry, planar=self._planar)
        self._chunks: dict[int, _Chunk] = {}
        self._next_chunk = 0
        self._targets: dict[int, tuple[int, ...]] = {}  # rows by ordinal, of packets that are not settled
        self._written: set[int] = set()  # ordinals of those that are in their rows
        self._window: deque[_Fed] = deque()  # packets that are not settled
        self._settled = -1  # the last one that is
        self._packets_fed = self._packets_fed_before = 0
        self._convert_seconds = 0.0

    def chunks(self) -> Generator[Decoded]:
        """Yield the output rows in chunks, in order."""
        try:
            for decode_pass in split_at_resets(self._request.plan.ranges):
                ranges = split_at_closed_points(self._index, decode_pass, keep_all=True)
                damaged = yield from self._decode(ranges, self._threads)
                rest = ranges[len(ranges) if damaged is None else damaged :]
                for independent in split_at_closed_points(self._index, rest):
                    self._decoder.discard()
                    yield from self._decode([independent], 1, is_repeated=True)
                if damaged is not None:
                    self._decoder.discard()
        finally:
            self._decoder.discard()

    def _decode(
        self, ranges: list[DecodeRange], threads: int, is_repeated: bool = False
    ) -> Generator[Decoded, None, int | None]:
        """Decode ranges in one pass, and yield the chunks that become complete.

        If something is damaged, stop and return the number of the first range that is not settled.
        """
        decode_pass = DecodePass(self._request, self._decoder, threads)
        tracker = DamageTracker(self._index)
        self._window.clear()
        fed = 0
        for number, range_ in enumerate(ranges):
            self._targets |= {packet: rows for packet, rows in range_.targets.items() if packet > self._settled}
            has_gap = self._index.has_gap_before(range_.packets).tolist()
            packets = self._request.reader.read(range_.packets)
            for (ordinal, packet), required, gap in zip(packets, range_.required.tolist(), has_gap, strict=True):
                self._request.deadline.check("decoding", self._packets_fed, self._request.plan.packets_fed)
                self._packets_fed += 1
                self._window.append(_Fed(fed, number, ordinal, required, gap))
                fed += 1
                self._write(decode_pass.feed(ordinal, packet), decode_pass)
                if not self._settle(decode_pass, tracker, fed, threads, is_repeated):
                    return self._window[0].range_number
                yield from self._complete_chunks()
        self._write(decode_pass.drain(), decode_pass)
        if not self._settle(decode_pass, tracker, math.inf, threads, is_repeated):
            return self._window[0].range_number
        yield from self._complete_chunks()
        return None

    def _settle(
        self, decode_pass: DecodePass, tracker: DamageTracker, fed: float, threads: int, is_repeated: bool
    ) -> bool:
        """Settle the packets of which all is known. Returns False if something is damaged, unless ``is_repeated``."""
        error_delay = 2 if is_repeated else threads + 2
        if not is_repeated and (decode_pass.damaged or decode_pass.gaps):
            return False
        while self._window:
            first = self._window[0]
            age = fed - first.number
            is_shown = first.required and bool(self._index.presentable[first.ordinal])
            is_missing = is_shown and first.ordinal not in decode_pass.seen
            if age <= error_delay or (is_missing and age <= threads + _MAX_REORDERED_PACKETS):
                break
            is_lost = is_missing or (first.required and first.ordinal in decode_pass.damaged)
            if not is_repeated and (is_lost or first.has_gap):
                return False
            is_unreliable = tracker.is_unreliable(
                first.ordinal, is_lost, first.has_gap, first.ordinal in decode_pass.gaps
            )
            self._window.popleft()
            decode_pass.seen.discard(first.ordinal)
            self._settle_rows(first.ordinal, not is_unreliable)
        return True

    def _settle_rows(self, ordinal: int, is_reliable: bool) -> None:
        self._settled = max(self._settled, ordinal)
        keep = is_reliable and ordinal in self._written
        self._written.discard(ordinal)
        for row in self._targets.pop(ordinal, ()):
            chunk, position = self._chunk_of(row)
            chunk.kept[position] = keep
            chunk.undecided -= 1

    def _write(self, pictures: list[VideoFrame], decode_pass: DecodePass) -> None:
        import av

        for picture in pictures:
            ordinal = picture.pts
            if ordinal not in self._targets:
                continue
            started = time.perf_counter()
            first, *others = (chunk.data[at] for chunk, at in map(self._chunk_of, self._targets[ordinal]))
            try:
                self._convert(picture, first)
            except av.error.FFmpegError:
                decode_pass.damaged.add(ordinal)
                continue
            for row in others:
                row[:] = first
            self._written.add(ordinal)
            self._convert_seconds += time.perf_counter() - started

    def _chunk_of(self, row: int) -> tuple[_Chunk, int]:
        """Return the chunk of an output row, and the row's position in it."""
        number, position = divmod(row, self._chunk_frames)
        if number not in self._chunks:
            count = min(self._chunk_frames, len(self._request.plan.frames) - number * self._chunk_frames)
            data = allocate_frames(self._request, count, self._planar)
            self._chunks[number] = _Chunk(data, np.zeros(count, np.bool_), count)
        return self._chunks[number], position

    def _complete_chunks(self) -> Iterator[Decoded]:
        while (chunk := self._chunks.get(self._next_chunk)) is not None and not chunk.undecided:
            del self._chunks[self._next_chunk]
            self._next_chunk += 1
            packets_fed, self._packets_fed_before = self._packets_fed - self._packets_fed_before, self._packets_fed
            seconds, self._convert_seconds = {"convert": self._convert_seconds}, 0.0
            notes = size_notes(self._convert.sizes)
            yield Decoded(chunk.data, chunk.kept, "cpu", notes, seconds, packets_fed=packets_fed)
            del chunk
