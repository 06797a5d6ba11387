"""The packet index: one demux pass, no decoding, and every count, time and rate comes from it."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.bitstream import (
    CONTAINER_DISPOSABLE_CODECS,
    REORDERING_CODECS,
    Leading,
    PacketInfo,
    PictureFormat,
    RandomAccess,
    UpdatableScanner,
    scanner_for,
)
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import NO_TIME, unwrapped
from telecine.deadline import Deadline
from telecine.errors import LimitError, NoVideoError
from telecine.index.display_order import PacketTimes, display_positions, display_times, output_positions
from telecine.index.scan_lock import Baton
from telecine.limits import Limits
from telecine.timeline import Timeline

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["PACKET_BYTES", "PacketIndex", "read_index"]

_KEEP_BYTES = 32 << 20
"""Packets are kept for the decode when all of them fit in this; a longer video is read a second time instead."""

PACKET_BYTES = 1024
"""What a kept packet takes beside its data."""

_baton = Baton()


def _take_turns_anew() -> None:
    """In the child of a fork: the thread that holds it is not there."""
    global _baton
    _baton = Baton()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_turns_anew)

_SHORT_CLOCK = frozenset({"mpegts", "mpeg"})
"""FFmpeg's names of the containers whose clock runs over after a day."""


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """Every packet of a video stream, in decoding order, and the frames they bring, in presentation order.

    P is the number of packets, T of presentable frames. Times are in ticks of :attr:`time_base`.
    """

    codec: str
    """FFmpeg's name of the codec."""
    time_base: Fraction
    """Seconds per tick."""
    pts: npt.NDArray[np.int64]
    """``int64 [P]`` presentation times as the container has them, but going on where its clock ran over;
    :data:`telecine.container.timestamps.NO_TIME` where it has none."""
    dts: npt.NDArray[np.int64]
    """``int64 [P]`` decoding times, likewise."""
    duration: npt.NDArray[np.int64]
    """``int64 [P]`` how long the packet's frame is shown; 0 where unknown."""
    size: npt.NDArray[np.int64]
    """``int64 [P]`` bytes."""
    key: npt.NDArray[np.bool_]
    """``bool [P]`` the container's key frame flag."""
    random_access: npt.NDArray[np.uint8]
    """``uint8 [P]`` :class:`telecine.bitstream.RandomAccess`: whether decoding can start here."""
    presentable: npt.NDArray[np.bool_]
    """``bool [P]`` whether a viewer sees the packet's frame."""
    disposable: npt.NDArray[np.bool_]
    """``bool [P]`` whether no other picture refers to it."""
    second_field: npt.NDArray[np.bool_]
    """``bool [P]`` whether it is the other half of the picture that the packet before it began."""
    leading: npt.NDArray[np.bool_]
    """``bool [P]`` whether it can be decoded only from the random access point before the one in front of it."""
    corrupt: npt.NDArray[np.bool_]
    """``bool [P]`` whether the container saw that something is missing in it, or from there on up to the next one."""
    skips_leading: bool
    """Whether leading packets can be left out when decoding starts at the point in front of them (HEVC)."""
    display_order: npt.NDArray[np.int64]
    """``int64 [T]`` the packet of each frame index."""
    timeline: Timeline
    """When each frame is shown."""
    synthetic_times: bool
    """Whether presentation times were missing or nonsense, and were rebuilt."""
    exact_random_access: bool
    """Whether the points of access are known to be exact; else decoding begins where the container says it can."""
    damage: str | None
    """Why reading stopped before the end of the file, or None."""
    packets: list[Any] | None = field(repr=False)
    """The packets themselves where they are few enough to be kept, for one decode; else None."""
    picture: PictureFormat | None = None
    """How pictures are stored, where the scanner reads that."""
    new_extradata: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """By ordinal, PyAV's side data "new_extradata" of packets with which the container brings other headers."""
    palettes: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """By ordinal, PyAV's side data "palette" of packets with which the container brings another one."""

    def extradata_at(self, ordinal: int, of_file: bytes) -> bytes:
        """The codec private data that holds for a packet: of the file's header, or what came with a packet since."""
        latest = max((at for at in self.new_extradata if at <= ordinal), default=None)
        return of_file if latest is None else bytes(self.new_extradata[latest])

    def has_gap_before(self, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """In front of which packets others may be missing.

        Args:
            packets: ``int64 [N]`` ordinals, ascending, at least one.

        Returns:
            ``bool [N]``; what is in front of the first one does not count.
        """
        first, last = packets[0], packets[-1]  # a long video has many runs: the whole column is not for each of them
        before = np.append(0, np.cumsum(self.corrupt[first:last]))[packets - first]
        torn: npt.NDArray[np.bool_] = np.diff(before, prepend=0) > 0
        return torn

    def display_positions(self, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the position of each packet in display order among those given.

        Args:
            packets: ``int64 [N]`` ordinals, ascending.

        Returns:
            ``int64 [N]``, from 0 and without repeats.
        """
        frames = np.full(self.num_packets, -1, np.int64)
        frames[self.display_order] = np.arange(self.num_frames)
        frames = frames[packets]
        pts = self.pts[packets]
        has_time = (pts != NO_TIME) & (not self.synthetic_times)
        ticks = np.where(has_time, pts - self.pts[self.display_order[0]], NO_TIME)
        ticks = np.where(frames >= 0, self.timeline.ticks[frames], ticks)
        return display_positions(ticks, frames >= 0, self.second_field[packets])

    @property
    def num_packets(self) -> int:
        """P, the number of packets."""
        return len(self.pts)

    @property
    def num_frames(self) -> int:
        """T, the number of presentable frames."""
        return len(self.display_order)


# What can be said of a packet that no scanner looks into; the same objects for all, for there may be a great many.
# Where pictures build on others, the container's flag of a key frame proves nothing: only the first one starts afresh.
_STARTS = PacketInfo(random_access=RandomAccess.CLOSED, leading=Leading.DECODABLE)
_FOLLOWS = PacketInfo(random_access=RandomAccess.NONE, leading=Leading.DECODABLE)


class _Rows:
    """The columns of the index while they grow, one row a packet: two hours of video are 200 000 rows."""

    def __init__(self, codec: str, headers: bytes, keep: bool) -> None:
        self.codec = codec
        self.pts, self.dts, self.duration, self.size = array("q"), array("q"), array("q"), array("q")
        self.key, self.discard, self.disposable, self.corrupt = bytearray(), bytearray(), bytearray(), bytearray()
        # scanners hand out the same few objects again and again, so this holds little more than references
        self.facts: list[PacketInfo] = []
        self.scanned = True
        self.picture: PictureFormat | None = None
        self.packets: list[Any] | None = [] if keep else None
        self.headers = headers
        self.new_extradata: dict[int, Any] = {}
        self.palettes: dict[int, Any] = {}
        self.bytes = 0
        self.damage: str | None = None

    def add(self, packet: Packet[Any], facts: PacketInfo) -> None:
        pts, dts, size = packet.pts, packet.dts, packet.size
        self.pts.append(NO_TIME if pts is None else pts)
        self.dts.append(NO_TIME if dts is None else dts)
        self.duration.append(packet.duration or 0)
        self.size.append(size)
        self.key.append(packet.is_keyframe)
        self.discard.append(packet.is_discard)
        self.disposable.append(packet.is_disposable)
        self.corrupt.append(packet.is_corrupt)
        self.facts.append(facts)
        if self.packets is not None:
            self.bytes += size + PACKET_BYTES
            if self.bytes > _KEEP_BYTES:
                self.packets = None
            else:
                self.packets.append(packet)

    def renew(self, packet: Packet[Any]) -> bool:
        """Note the headers that come with the packet that is next; say whether that is worth anything.

        Once they have changed it is, even where they are the same again: decoding can start at such a packet.
        """
        found = packet.get_sidedata("new_extradata")
        if not self.new_extradata and bytes(found) == self.headers:
            return False
        self.headers = bytes(found)
        self.new_extradata[len(self.pts)] = found
        return True

    def flags(self, name: str) -> npt.NDArray[np.bool_]:
        """A column of facts that are yes or no."""
        return np.fromiter(map(attrgetter(name), self.facts), np.bool_, len(self.facts))

    def numbers(self, name: str) -> npt.NDArray[np.int8]:
        """A column of facts that are small numbers."""
        return np.fromiter(map(attrgetter(name), self.facts), np.int8, len(self.facts))

    def times(self, container: str, ordered: bool) -> PacketTimes:
        """Return times and output order of all packets.

        Args:
            container: FFmpeg's name of the format.
            ordered: True if the scanner was asked for the output order.
        """
        pts, dts = np.array(self.pts), np.array(self.dts)
        if container in _SHORT_CLOCK:
            pts, dts = unwrapped(pts, dts)
        shown = self.flags("shown") & ~np.frombuffer(bytes(self.discard), np.bool_)
        positions: npt.NDArray[np.int64] | None = None
        if self.codec not in REORDERING_CODECS:
            positions = np.arange(np.count_nonzero(shown))
        elif ordered:
            positions = output_positions([self.facts[packet].display_order for packet in np.flatnonzero(shown)])
        return PacketTimes(
            pts=pts,
            dts=dts,
            shown=shown,
            random_access=self.numbers("random_access").astype(np.uint8),
            leading=self.numbers("leading"),
            unreferenced=self.flags("disposable"),
            pts_belong_to_others=any(facts.has_packed_b_frame for facts in self.facts),
            output_positions=positions,
        )


def read_index(demuxer: Demuxer, limits: Limits, deadline: Deadline) -> PacketIndex:
    """Read every packet of the video stream once, and say what each is.

    A second pass is made only where the container's times cannot be used and the output order must come from the
    bitstream.

    Args:
        demuxer: standing at the start of the file; it stands at the end afterwards.
        limits: ``max_packets`` and ``max_seconds`` are enforced here.
        deadline: checked while reading.

    Raises:
        NoVideoError: the stream has no packets or no presentable frame.
        LimitError: the video has more packets or lasts longer than allowed.
    """
    rows = _scan(demuxer, demuxer.packets(), limits, deadline, with_order=False)
    if not rows.facts:
        raise NoVideoError(f"{demuxer.name}: the video stream has no packets{_because(rows)}")
    told = rows.times(demuxer.format, ordered=False)
    if not told.are_sufficient:
        packets = rows.packets
        if packets is None:
            demuxer.rewind()
        rows = _scan(demuxer, demuxer.packets() if packets is None else packets, limits, deadline, with_order=True)
        told = rows.times(demuxer.format, ordered=True)
    return _assemble(demuxer, rows, told, limits)


def _scan(demuxer: Demuxer, packets: Iterable[Any], limits: Limits, deadline: Deadline, with_order: bool) -> _Rows:
    import av

    context = demuxer.stream.codec_context
    codec = context.codec.canonical_name
    scanner = scanner_for(codec, bytes(context.extradata or b""))
    intra_only = scanner is None and bool(context.codec.intra_only)
    # a source that is larger has more than fits, but for its sound: memory that is filled for nothing costs time
    rows = _Rows(codec, bytes(context.extradata or b""), keep=demuxer.size <= _KEEP_BYTES)
    rows.scanned = scanner is not None and codec not in CONTAINER_DISPOSABLE_CODECS
    paletted = context.pix_fmt == "pal8"
    try:
        with _baton.held(deadline, "waiting to read the packets") as hold:
            for packet in packets:
                if len(rows.pts) >= limits.max_packets:
                    raise LimitError(f"{demuxer.name}: more than {limits.max_packets} packets (limits.max_packets)")
                if len(rows.pts) % 16 == 0:  # packets that were kept are not read, and reading is what checks otherwise
                    hold.step()
                    deadline.check("reading the packets")
                renewed = packet.has_sidedata("new_extradata") and rows.renew(packet)
                if renewed and isinstance(scanner, UpdatableScanner):
                    scanner.update_extradata(rows.headers)
                if scanner is not None:
                    facts = scanner.scan(memoryview(packet), packet.is_keyframe, with_order)
                else:
                    facts = _STARTS if intra_only or not rows.pts else _FOLLOWS
                if rows.new_extradata and not renewed and not isinstance(scanner, UpdatableScanner):
                    # its headers came with a packet before, and are not those that a decoder knows which begins here
                    facts = facts._replace(random_access=RandomAccess.NONE)
                if paletted and packet.has_sidedata("palette"):
                    rows.palettes[len(rows.pts)] = packet.get_sidedata("palette")
                rows.add(packet, facts)
    except av.error.FFmpegError as error:
        rows.damage = f"the file is damaged or cut off ({error.strerror})"
    deadline.check("reading the packets")
    rows.picture = scanner.picture if scanner is not None else None
    return rows


def _assemble(demuxer: Demuxer, rows: _Rows, told: PacketTimes, limits: Limits) -> PacketIndex:
    """Turn the columns into the index: what is presentable, when, and what can be skipped."""
    duration, access = np.array(rows.duration), told.random_access
    key = np.frombuffer(bytes(rows.key), np.bool_)
    time_base = demuxer.stream.time_base or Fraction(1, 90_000)
    exact_random_access = bool(access.any())
    if not exact_random_access:
        # no point is known to be exact: begin where the container says, and let the decoder mark what is damaged
        access = access.copy()
        access[int(np.argmax(key)) if key.any() else 0] = RandomAccess.OPEN
        told = replace(told, random_access=access)
    step = _nominal_step(demuxer, duration, time_base)
    display = display_times(told, step)
    times, leading = display.ticks, display.leading
    first = int(np.argmax(access > 0))
    presentable = told.shown & (told.leading != Leading.UNDECODABLE)
    presentable[:first] = False
    # what the first point of access would need from before it is not in the file
    presentable &= ~(leading & (np.maximum.accumulate(np.where(access > 0, np.arange(len(access)), 0)) == first))
    order = np.flatnonzero(presentable)
    order = order[np.argsort(times[order], kind="stable")]
    if not len(order):
        raise NoVideoError(f"{demuxer.name}: no presentable frame among {len(key)} packets{_because(rows)}")
    timeline = _timeline(times[order], int(duration[order[-1]]), key[order], time_base, step)
    if timeline.duration > limits.max_seconds:
        raise LimitError(
            f"{demuxer.name}: lasts {timeline.duration:.0f} s; limits.max_seconds is {limits.max_seconds:g}"
        )
    return PacketIndex(
        codec=rows.codec,
        time_base=time_base,
        pts=told.pts,
        dts=told.dts,
        duration=duration,
        size=np.array(rows.size),
        key=key,
        random_access=access,
        presentable=presentable,
        disposable=_disposable(rows),
        second_field=rows.flags("second_field"),
        leading=leading,
        skips_leading=bool((told.leading == Leading.SKIPPED).any()),
        display_order=order,
        timeline=timeline,
        synthetic_times=display.are_synthetic,
        picture=rows.picture,
        exact_random_access=exact_random_access,
        damage=rows.damage,
        packets=rows.packets,
        corrupt=_corrupt(demuxer, rows),
        new_extradata=rows.new_extradata,
        palettes=rows.palettes,
    )


def _because(rows: _Rows) -> str:
    return f": {rows.damage}" if rows.damage else ""


def _corrupt(demuxer: Demuxer, rows: _Rows) -> npt.NDArray[np.bool_]:
    corrupt: npt.NDArray[np.bool_] = np.array(rows.corrupt, np.bool_)
    if demuxer.format != "mpegts":
        return corrupt
    # FFmpeg's parsers let go of a picture when they see the next one begin, and give it the flag of what they see then
    corrupt[1:] |= corrupt[:-1].copy()
    return corrupt


def _disposable(rows: _Rows) -> npt.NDArray[np.bool_]:
    if not rows.scanned:
        return np.frombuffer(bytes(rows.disposable), np.bool_)
    temporal_id = rows.numbers("temporal_id")
    # a sub-layer non-reference picture may still be referred to from a higher temporal sub-layer
    disposable: npt.NDArray[np.bool_] = rows.flags("disposable") & (temporal_id == temporal_id.max())
    disposable &= np.append(rows.flags("resets_decoder_state")[1:], True)
    return disposable


def _nominal_step(demuxer: Demuxer, duration: npt.NDArray[np.int64], time_base: Fraction) -> int:
    """Ticks between frames as the header has it; only where packets do not say."""
    if (duration > 0).any():
        return max(1, int(np.median(duration[duration > 0])))
    rate = demuxer.stream.average_rate or demuxer.stream.guessed_rate or Fraction(25)
    return max(1, round(1 / (rate * time_base)))


def _timeline(
    times: npt.NDArray[np.int64], last_duration: int, key: npt.NDArray[np.bool_], time_base: Fraction, step: int
) -> Timeline:
    ticks = times - times[0]
    if last_duration <= 0:
        last_duration = round(int(ticks[-1]) / (len(ticks) - 1)) if len(ticks) > 1 else step
    return Timeline(ticks, time_base, int(ticks[-1]) + max(1, last_duration), key)
