"""The packet index from the tables of an MP4 or QuickTime file, without reading its packets.

The tables give the times, sizes and positions of the packets. What only the bitstream says, where decoding can start
and which packets can be skipped, is read for the wanted frames by :func:`complete_index`. So the cost of a request does
not depend on the length of the video.

That is exact if each packet brings one frame. The headers of the codec must say so, and the packets that are read must
agree with the headers, with the tables, and with FFmpeg's index. Otherwise all packets are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from telecine.bitstream import REORDERING_CODECS, Leading, PacketInfo, RandomAccess, scanner_for
from telecine.bitstream.bit_reader import InvalidHeader
from telecine.bitstream.hevc import max_temporal_id
from telecine.container.demuxer import Demuxer
from telecine.container.mp4_fragments import read_fragment_table
from telecine.container.mp4_index import SampleTable, read_sample_table
from telecine.deadline import Deadline
from telecine.index.display_order import PacketTimes, leading_pictures
from telecine.index.packet_index import PacketIndex, build_index, disposable_packets, read_index
from telecine.index.packet_scan import MAX_KEPT_BYTES, PacketScan, scan_packets
from telecine.limits import Limits
from telecine.notes import Note

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["complete_index", "find_index", "index_from_tables", "read_packets", "read_whole_index"]

_Scalar = TypeVar("_Scalar", bound=np.generic)
_INCOMPLETE_TABLES = ("matroska", "avi")
"""Containers with tables of key frames alone (the Cues of Matroska), or without times (AVI)."""
_IN_BAND_PARAMETER_SETS = frozenset({b"avc3", b"hev1"})
"""Sample descriptions of streams whose packets may change the parameter sets (ISO/IEC 14496-15, 5.4.2 and 8.4.1)."""
_MAX_KEY_FRAMES, _PARAMETER_SET_BYTES = 4096, 4096
"""Key frames whose parameter sets are read, and the bytes in which they are."""
_UNREAD = PacketInfo()
"""Facts of a packet that was not read."""
_NUM_SAMPLED = 64
"""Packets of the tables that are compared with FFmpeg's index at once."""
_NUM_AHEAD = 16
"""Parts of the source that are fetched while one is read, and packets of such a part in the decode."""
_NUM_FIRST = 16
"""Packets that show if a codec that can reorder frames does so: an encoder that uses B-frames uses them soon."""


def find_index(demuxer: Demuxer, limits: Limits, deadline: Deadline) -> PacketIndex:
    """Return the index of a video: from the container's tables if it is large and has them, else from its packets.

    The packets of small videos are read in any case, and kept for the decode. Args and errors are those of
    :func:`telecine.index.packet_index.read_index`.
    """
    if demuxer.size <= MAX_KEPT_BYTES or not demuxer.format.startswith(("mov", *_INCOMPLETE_TABLES)):
        return read_index(demuxer, limits, deadline)
    try:
        if demuxer.format.startswith(_INCOMPLETE_TABLES):
            raise InvalidHeader("in this container they do not have all frames with their times")
        return index_from_tables(demuxer, limits, deadline)
    except InvalidHeader as error:
        return read_whole_index(demuxer, limits, deadline, str(error))


def read_whole_index(demuxer: Demuxer, limits: Limits, deadline: Deadline, reason: str) -> PacketIndex:
    """Return the index from all packets, with a note why the tables of the container were not enough."""
    if demuxer.position:
        demuxer.rewind()
    index = read_index(demuxer, limits, deadline)
    note = Note("all-packets-read", f"every packet was read, because of the container's tables: {reason}")
    return replace(index, notes=(*index.notes, note))


def index_from_tables(demuxer: Demuxer, limits: Limits, deadline: Deadline) -> PacketIndex:
    """Return the index of an MP4 or QuickTime file from its tables and its first packets.

    Raises:
        InvalidHeader: that cannot be done exactly; the message has the reason.
        NoVideoError, LimitError: as :func:`telecine.index.packet_index.read_index` says.
    """
    if demuxer.movie is None:
        table = read_fragment_table(demuxer.read_bytes, demuxer.size, demuxer.stream.id)
    else:
        table = read_sample_table(demuxer.movie, demuxer.size, demuxer.stream.id)
    num_packets, num_known = len(table.pts), len(demuxer.stream.index_entries)
    is_same = num_known == num_packets or (table.has_fragment_index and 0 < num_known < num_packets)
    if not is_same or demuxer.stream.time_base != table.time_base:
        raise InvalidHeader("FFmpeg reads other samples from them")
    if num_packets > limits.max_packets or not table.key[0] or demuxer.stream.codec_context.pix_fmt == "pal8":
        raise InvalidHeader("there are too many packets, or the first one is no key frame, or has a palette")
    sampled = np.linspace(0, num_known - 1, _NUM_SAMPLED, dtype=np.int64)
    _compare_with_ffmpeg(demuxer, table, table.discard[sampled], sampled.tolist())
    if table.sample_entry in _IN_BAND_PARAMETER_SETS:
        _check_key_frames(demuxer, table)
    scan = _TableScan(demuxer, table, limits, deadline)
    _compare_first_packet(demuxer, table)
    times = PacketTimes(scan, demuxer.format, with_order=False)
    if not times.are_sufficient or not times.has_plausible_pts:
        raise InvalidHeader("their times may be wrong, and only the bitstream shows it")
    index = build_index(demuxer, scan, times, limits)
    if not index.exact_random_access or not index.random_access[0] or index.leading.any():
        raise InvalidHeader("the first packet is no random access point, or leading pictures follow it")
    return replace(index, offset=table.offset)


class _TableScan(PacketScan):
    """The packets of a table, of which only the first ones were scanned."""

    def __init__(self, demuxer: Demuxer, table: SampleTable, limits: Limits, deadline: Deadline) -> None:
        codec = demuxer.stream.codec_context.codec.canonical_name
        may_be_dts = codec in REORDERING_CODECS and bool((np.diff(table.pts) > 0).all())
        first = range(min(_NUM_FIRST, len(table.pts)) if may_be_dts else 1)
        scan = scan_packets(demuxer, (read_packet(demuxer, table, i) for i in first), limits, deadline, False)
        _check_scan(scan, 0, table.key[: len(first)])
        super().__init__(scan.codec, scan.extradata, keep=False)
        self.facts, self.picture = scan.facts, scan.picture
        self.interlaced, self.crops_left = scan.interlaced, scan.crops_left
        for name in ("pts", "dts", "duration", "size"):
            getattr(self, name).frombytes(getattr(table, name).tobytes())
        self.key, self.discard = bytearray(table.key.tobytes()), bytearray(table.discard.tobytes())
        self.corrupt = bytearray(len(table.pts))
        self._max_temporal_id = _max_temporal_id(demuxer)

    @property
    def max_temporal_id(self) -> int:
        return self._max_temporal_id

    def fact(self, name: str, dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
        values = np.full(len(self.pts), getattr(_UNREAD, name), dtype)
        values[: len(self.facts)] = [getattr(facts, name) for facts in self.facts]
        return values


def complete_index(
    index: PacketIndex, demuxer: Demuxer, frames: npt.NDArray[np.int64], limits: Limits, deadline: Deadline
) -> PacketIndex:
    """Return an index in which everything is known about the packets that some frames are decoded from.

    These are read, and the headers scanned. An index that comes from the packets is returned as it is.

    Args:
        index: the index of a video.
        demuxer: of the same video. Its position does not change.
        frames: ``int64 [N]`` frame indices in any order.
        limits: those with which the index was made.
        deadline: checked while reading.

    Raises:
        InvalidHeader: the packets contradict the tables; the message has the reason.
    """
    if index.offset is None:
        return index
    reader = _RegionReader(index, demuxer, limits, deadline)
    regions = list(_regions(reader.keys, np.unique(index.display_order[frames])))
    for i, region in enumerate(regions):
        # several are fetched at once, because that takes no longer than one
        for ahead in regions[i + _NUM_AHEAD : i + _NUM_AHEAD + 1] if i else regions[: _NUM_AHEAD + 1]:
            _prefetch(demuxer, index, np.arange(ahead[0], ahead[1][-1] + 1))
        reader.read_region(*region)
    return replace(
        index,
        random_access=reader.random_access,
        leading=reader.leading,
        disposable=reader.disposable,
        corrupt=reader.corrupt,
        crops_left=reader.crops_left,
        skips_leading=bool((reader.facts == int(Leading.SKIPPED)).any()),
    )


class _RegionReader:
    """Reads packets of an index that comes from tables, and completes copies of its columns."""

    def __init__(self, index: PacketIndex, demuxer: Demuxer, limits: Limits, deadline: Deadline) -> None:
        self._index, self._demuxer, self._limits, self._deadline = index, demuxer, limits, deadline
        self.keys, self.crops_left = np.flatnonzero(index.key), index.crops_left
        self.random_access, self.leading = index.random_access.copy(), index.leading.copy()
        self.disposable, self.corrupt = index.disposable.copy(), index.corrupt.copy()
        self.facts = np.zeros(index.num_packets, np.int8)
        self._first_packet, self._max_temporal_id = read_packet(demuxer, index, 0), _max_temporal_id(demuxer)
        steps = np.diff(index.pts[index.presentable])
        self._may_be_dts = index.codec in REORDERING_CODECS and bool((steps > 0).all())

    def read_region(self, start: int, targets: npt.NDArray[np.int64]) -> None:
        """Read from a key frame to the last target, and from earlier ones if decoding of a target starts there."""
        stop = int(targets[-1]) + 1
        self._read(start, stop)
        while True:
            region = slice(start, stop)
            access, pts, shown = self.random_access[region], self._index.pts[region], self._index.presentable[region]
            self.leading[region] = leading_pictures(access, self.facts[region], shown, pts, pts)
            points = start + np.flatnonzero(access)
            # a leading picture is decoded from the point before its own
            if not start or (np.searchsorted(points, targets, "right") > self.leading[targets]).all():
                break
            earlier = int(self.keys[np.searchsorted(self.keys, start) - 1])
            self._read(earlier, start)
            start = earlier
        if not start and self.leading[: [*points[1:], stop][0]].any():
            raise InvalidHeader("frames need packets before the first one")

    def _read(self, start: int, stop: int) -> None:
        demuxer, index, region = self._demuxer, self._index, slice(start, stop)
        _compare_with_ffmpeg(demuxer, index, ~index.presentable[region], range(start, stop))
        # a scanner starts with the first packet, because some headers mean something else there
        before = [self._first_packet] if start else []
        packets = (read_packet(demuxer, index, ordinal) for ordinal in range(start, stop))
        scan = scan_packets(demuxer, chain(before, packets), self._limits, self._deadline, with_order=False)
        _check_scan(scan, len(before), index.key[region])
        self.disposable[region] = disposable_packets(scan, self._max_temporal_id)[len(before) :]
        self.random_access[region] = scan.fact("random_access", np.uint8)[len(before) :]
        self.facts[region] = scan.fact("leading", np.int8)[len(before) :]
        self.crops_left |= scan.crops_left
        self.corrupt[region] = scan.fact("is_damaged", np.bool_)[len(before) :]
        if self._may_be_dts and self.disposable[region].any():
            raise InvalidHeader("their presentation times may be decoding times")


def _regions(
    keys: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the key frame before each of some packets, and the packets up to the next gap in what must be read."""
    starts = keys[np.searchsorted(keys, targets, "right") - 1]
    begins = np.flatnonzero(np.append(True, starts[1:] > targets[:-1] + 1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(targets)], strict=True):
        yield int(starts[begin]), targets[begin:end]


def read_packets(
    demuxer: Demuxer, index: PacketIndex, ordinals: npt.NDArray[np.int64]
) -> Iterator[tuple[int, Packet[Any]]]:
    """Yield (ordinal, packet) for ascending ordinals of packets whose position is known."""
    for start in range(0, len(ordinals), _NUM_AHEAD):
        part = ordinals[start : start + _NUM_AHEAD]
        _prefetch(demuxer, index, part)
        for ordinal in part.tolist():
            yield ordinal, read_packet(demuxer, index, ordinal)


def _prefetch(demuxer: Demuxer, index: PacketIndex, ordinals: npt.NDArray[np.int64]) -> None:
    """Start to read some packets and what is between them, unless that is too much."""
    assert index.offset is not None
    offset, size = index.offset[ordinals], index.size[ordinals]
    first, last = int(offset.min()), int((offset + size).max())
    if last - first < 4 * size.sum():
        demuxer.prefetch(first, last - first)


def read_packet(demuxer: Demuxer, index: PacketIndex | SampleTable, ordinal: int) -> Packet[Any]:
    """Read a packet whose position is known."""
    import av

    assert index.offset is not None
    size = int(index.size[ordinal])
    data = demuxer.read_bytes(int(index.offset[ordinal]), size)
    packet: Packet[Any] = av.Packet(data)  # type: ignore[arg-type]  # any buffer
    packet.pts, packet.dts = int(index.pts[ordinal]), int(index.dts[ordinal])
    packet.duration, packet.time_base = int(index.duration[ordinal]), index.time_base
    packet.is_keyframe = bool(index.key[ordinal])
    packet.is_corrupt = demuxer.ends_in_zeros(data, int(index.offset[ordinal]))
    return packet


def _max_temporal_id(demuxer: Demuxer) -> int:
    if demuxer.stream.codec_context.codec.canonical_name != "hevc":
        return 0
    highest = max_temporal_id(demuxer.extradata)
    if highest < 0:
        raise InvalidHeader("the number of temporal sub-layers is unknown")
    return highest


def _compare_with_ffmpeg(
    demuxer: Demuxer, table: PacketIndex | SampleTable, discard: npt.NDArray[np.bool_], ordinals: Iterable[int]
) -> None:
    """Raise if FFmpeg reads other samples from the tables. ``discard`` is that of the given ascending ordinals."""
    entries, offset = demuxer.stream.index_entries, table.offset
    assert offset is not None
    for i, is_discarded in zip(ordinals, discard.tolist(), strict=True):
        if i >= len(entries):
            break  # in a later fragment
        entry = entries[i]
        found = entry.pos, entry.size, entry.timestamp, entry.is_keyframe, entry.is_discard
        if found != (offset[i], table.size[i], table.dts[i], table.key[i], is_discarded):
            raise InvalidHeader("FFmpeg reads other samples from them")


def _compare_first_packet(demuxer: Demuxer, table: SampleTable) -> None:
    """Raise if the first packet of FFmpeg is another one; its presentation times are not in its index."""
    import av

    ours, theirs = read_packet(demuxer, table, 0), None
    with suppress(av.error.FFmpegError):
        theirs = next(demuxer.packets(), None)
    names = ("pts", "dts", "duration", "is_keyframe")
    if (
        theirs is None
        or bytes(ours) != bytes(theirs)
        or any(getattr(ours, name) != getattr(theirs, name) for name in names)
    ):
        raise InvalidHeader("FFmpeg reads another first packet")


def _check_key_frames(demuxer: Demuxer, table: SampleTable) -> None:
    """Raise if a key frame changes the parameter sets: decoding that starts at a later one would lack them."""
    keys = np.flatnonzero(table.key).tolist()
    scanner = scanner_for(demuxer.stream.codec_context.codec.canonical_name, demuxer.extradata)
    if scanner is None or len(keys) > _MAX_KEY_FRAMES:
        raise InvalidHeader("there are too many key frames that may change the parameter sets")
    for i in keys:
        size = min(int(table.size[i]), _PARAMETER_SET_BYTES)
        head = bytes(demuxer.read_bytes(int(table.offset[i]), size))
        # with zeros for the rest, so that no unit seems to be cut off
        scanner.scan(head.ljust(int(table.size[i]), b"\0"), is_key=True, with_order=False)
    if scanner.has_changed_parameter_sets:
        raise InvalidHeader("the parameter sets change in the packets")


def _check_scan(scan: PacketScan, first: int, key: npt.NDArray[np.bool_]) -> None:
    """Raise if packets, from ``first`` on, are not what the tables promise."""
    facts = scan.facts[first:]
    if not scan.has_one_frame_per_packet or not all(
        each.shown and not each.second_field and each.leading != Leading.UNDECODABLE for each in facts
    ):
        raise InvalidHeader(f"packets of this {scan.codec} stream may have no frame of their own")
    if any(scan.corrupt):
        raise InvalidHeader("packets are damaged")
    if scan.has_changed_parameter_sets or scan.has_start_codes:
        raise InvalidHeader("the parameter sets change in the packets, or packets have start codes")
    is_point = [each.random_access != RandomAccess.NONE for each in facts]
    # FFmpeg's parser of H.264 takes the flag from the bitstream
    if scan.codec == "h264" and is_point != key.tolist():
        raise InvalidHeader("other packets are random access points")
