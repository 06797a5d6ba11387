"""The packet index: every packet of a video stream and every frame, found in one demux pass without decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.bitstream import Leading, PictureFormat, RandomAccess
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import NO_TIME
from telecine.deadline import Deadline
from telecine.errors import LimitError, NoVideoError
from telecine.index.display_order import PacketTimes, display_positions, display_times
from telecine.index.packet_scan import PacketScan, scan_packets
from telecine.limits import Limits
from telecine.notes import Note
from telecine.timeline import Timeline

__all__ = ["PacketIndex", "build_index", "disposable_packets", "read_index"]


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """The packets of a video stream in decode order, and its frames in display order.

    P is the number of packets, T the number of presentable frames. An ordinal is the position of a packet in decode
    order, from 0. Times are in ticks of :attr:`time_base`.
    """

    codec: str
    """FFmpeg's name of the codec."""
    time_base: Fraction
    """Seconds per tick."""
    pts: npt.NDArray[np.int64]
    """``int64 [P]`` presentation times of the container, with 33-bit timestamps unwrapped;
    :data:`telecine.container.timestamps.NO_TIME` where it has none."""
    dts: npt.NDArray[np.int64]
    """``int64 [P]`` decoding times, in the same form."""
    duration: npt.NDArray[np.int64]
    """``int64 [P]`` display duration of each packet's frame; 0 if unknown."""
    size: npt.NDArray[np.int64]
    """``int64 [P]`` bytes."""
    key: npt.NDArray[np.bool_]
    """``bool [P]`` the container's key frame flag."""
    random_access: npt.NDArray[np.uint8]
    """``uint8 [P]`` kind of random access point, :class:`telecine.bitstream.RandomAccess`."""
    presentable: npt.NDArray[np.bool_]
    """``bool [P]`` True if the packet's frame is displayed."""
    has_picture: npt.NDArray[np.bool_]
    """``bool [P]`` True if the packet has a picture that can be decoded, displayed or not."""
    disposable: npt.NDArray[np.bool_]
    """``bool [P]`` True if no other picture refers to the packet's picture."""
    second_field: npt.NDArray[np.bool_]
    """``bool [P]`` True if the packet is the second field of the picture that the packet before it began."""
    leading: npt.NDArray[np.bool_]
    """``bool [P]`` True if the packet can be decoded only from the random access point before the latest one."""
    corrupt: npt.NDArray[np.bool_]
    """``bool [P]`` True if the container saw that data is missing in the packet, or between it and the next one, or if
    its headers are destroyed."""
    skips_leading: bool
    """True if leading packets can be left out when decoding starts at the random access point before them (HEVC)."""
    display_order: npt.NDArray[np.int64]
    """``int64 [T]`` the packet of each frame index."""
    timeline: Timeline
    """Display time of each frame."""
    synthetic_times: bool
    """True if presentation times were missing or contradictory, and were rebuilt."""
    exact_random_access: bool
    """True if the bitstream names the random access points; else decoding starts at the container's key frames."""
    packets: list[Any] | None = field(repr=False)
    """The packets themselves if they are small enough to be kept, for one decode; else None."""
    picture: PictureFormat | None = None
    """Format of the pictures, if the scanner reads it."""
    new_extradata: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """PyAV's side data "new_extradata" by the ordinal of the packet that it came with."""
    palettes: Mapping[int, Any] = field(default_factory=dict, repr=False)
    """PyAV's side data "palette" by the ordinal of the packet that it came with."""
    interlaced: bool = False
    """True if the bitstream says that pictures consist of two fields, although the container may not."""
    crops_left: bool = False
    """True if the bitstream crops pictures on their left side."""
    offset: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    """``int64 [P]`` position of each packet in the source, if the index comes from the container's tables. Then
    :attr:`random_access`, :attr:`leading` and :attr:`disposable` hold only for packets that
    :func:`telecine.index.table_index.complete_index` has read; for others they are 0."""
    start_tick: int = 0
    """Time of the first presentable frame on the container's clock; from decoding times if it has no other."""
    clean_gaps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Ascending ordinals of packets before which data is missing, although no packet is incomplete."""
    notes: tuple[Note, ...] = ()
    """Repairs of the packets and their times."""

    def extradata_at(self, ordinal: int, of_file: bytes) -> bytes:
        """Return the codec private data in force at a packet: the latest that came with one, or the file's own."""
        latest = max((packet for packet in self.new_extradata if packet <= ordinal), default=None)
        return of_file if latest is None else bytes(self.new_extradata[latest])

    def has_gap_before(self, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return True for each of some packets, in ascending order, if data may be missing since the one before it.

        The first packet has none before it, so it is False.
        """
        first, last = packets[0], packets[-1]  # only this section: a long video has many decode ranges
        corrupt_before = np.append(0, np.cumsum(self.corrupt[first:last]))[packets - first]
        corrupt_before += np.searchsorted(self.clean_gaps, packets, side="right")
        has_gap: npt.NDArray[np.bool_] = np.diff(corrupt_before, prepend=corrupt_before[0]) > 0
        return has_gap

    def display_positions(self, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the position in display order, from 0, of each of some packets, given in ascending order."""
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


def read_index(demuxer: Demuxer, limits: Limits, deadline: Deadline) -> PacketIndex:
    """Read every packet of the video stream and build its index.

    Packets are read or scanned a second time only if the container's times cannot be used, so that the output order
    must come from the bitstream.

    Args:
        demuxer: at the start of the file; it is at the end afterwards.
        limits: ``max_packets`` and ``max_seconds`` are enforced here.
        deadline: checked while reading.

    Raises:
        NoVideoError: the stream has no packets or no presentable frame.
        LimitError: the video has more packets or lasts longer than allowed.
    """
    demuxer.read_in_order()
    scan = scan_packets(demuxer, demuxer.packets(), limits, deadline, with_order=False)
    if not scan.facts:
        raise NoVideoError(f"{demuxer.name}: the video stream has no packets{scan.reason}")
    times = PacketTimes(scan, demuxer.format, with_order=False)
    if not times.are_sufficient:
        packets = scan.packets
        if packets is None:
            demuxer.rewind()
        scan = scan_packets(demuxer, demuxer.packets() if packets is None else packets, limits, deadline, True)
        times = PacketTimes(scan, demuxer.format, with_order=True)
    return build_index(demuxer, scan, times, limits)


def build_index(demuxer: Demuxer, scan: PacketScan, times: PacketTimes, limits: Limits) -> PacketIndex:
    """Build the index from what was found about all packets; raises as :func:`read_index` does."""
    duration, key = np.array(scan.duration), np.frombuffer(bytes(scan.key), np.bool_)
    time_base = demuxer.stream.time_base or Fraction(1, 90_000)
    exact_random_access = bool(times.random_access.any())
    _complete_random_access(demuxer, scan, times, key)
    step = _nominal_step(demuxer, duration, time_base)
    ticks, leading, are_synthetic = display_times(times, step)
    corrupt, clean_gaps = _find_missing_data(demuxer, scan, times, step)
    if demuxer.format == "ogg" and not are_synthetic:
        # FFmpeg times the first packet after a gap as if nothing were missing, and the next one by its page
        late = clean_gaps[clean_gaps + 1 < len(ticks)]
        ticks[late] = np.maximum(ticks[late], ticks[late + 1] - round(step))
    presentable = _presentable(times, leading)
    order = np.flatnonzero(presentable)
    order = order[np.argsort(ticks[order], kind="stable")]
    if not len(order):
        raise NoVideoError(f"{demuxer.name}: no presentable frame among {len(key)} packets{scan.reason}")
    timeline = _timeline(ticks[order], duration[order], key[order], time_base, step)
    if timeline.duration > limits.max_seconds:
        raise LimitError(
            f"{demuxer.name}: lasts {timeline.duration:.0f} s; limits.max_seconds is {limits.max_seconds:g}"
        )
    first_pts = times.pts[order[0]]
    return PacketIndex(
        codec=scan.codec,
        time_base=time_base,
        pts=times.pts,
        dts=times.dts,
        duration=duration,
        size=np.array(scan.size),
        key=key,
        random_access=times.random_access,
        presentable=presentable,
        has_picture=scan.fact("has_picture", np.bool_) & (times.leading != int(Leading.UNDECODABLE)),
        disposable=disposable_packets(scan, scan.max_temporal_id),
        second_field=scan.fact("second_field", np.bool_),
        leading=leading,
        skips_leading=bool((times.leading == int(Leading.SKIPPED)).any()),
        display_order=order,
        timeline=timeline,
        synthetic_times=are_synthetic,
        picture=scan.picture,
        exact_random_access=exact_random_access,
        interlaced=scan.interlaced,
        crops_left=scan.crops_left,
        notes=tuple(_notes(scan, are_synthetic)),
        packets=scan.packets,
        # a time that the container has is kept, also if it contradicts others; FFmpeg makes up those of raw MPEG video
        start_tick=0 if demuxer.format == "mpegvideo" else int(ticks[order[0]] if first_pts == NO_TIME else first_pts),
        corrupt=corrupt | (times.uncertain & are_synthetic),
        clean_gaps=clean_gaps,
        new_extradata=scan.new_extradata,
        palettes=scan.palettes,
    )


def _complete_random_access(demuxer: Demuxer, scan: PacketScan, times: PacketTimes, key: npt.NDArray[np.bool_]) -> None:
    """Add a random access point if the bitstream names none, or not the first packet because it is destroyed."""
    access = times.random_access.copy()
    if not access.any():
        # start where the container says, and let the decoder mark damaged frames
        access[np.argmax(key)] = int(RandomAccess.OPEN)  # the first packet if there is no key frame
    elif (key[0] or scan.facts[0].is_damaged) and not access[0] and not demuxer.format.startswith("mpeg"):
        # a destroyed key frame: the pictures that need it are lost, but they count
        access[0] = int(RandomAccess.OPEN)
    if not np.array_equal(access, times.random_access):
        times.set_random_access(access)


def _presentable(times: PacketTimes, leading: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    access = times.random_access > 0
    first = int(np.argmax(access))
    presentable: npt.NDArray[np.bool_] = times.shown & (times.leading != int(Leading.UNDECODABLE))
    presentable[:first] = False
    # leading pictures of the first random access point need packets that are not in the file
    latest_access = np.maximum.accumulate(np.where(access, np.arange(len(access)), 0))
    presentable &= ~(leading & (latest_access == first))
    return presentable


def _notes(scan: PacketScan, are_times_synthetic: bool) -> Iterator[Note]:
    if are_times_synthetic:
        text = "presentation times were missing or contradictory; they were rebuilt from decoding order and rate"
        yield Note("times-rebuilt", text)
    if scan.damage:
        yield Note("truncated", scan.damage)
    if scan.has_start_codes:
        yield Note("start-codes", "packets have start codes where the container announces lengths; they were replaced")


def _find_missing_data(
    demuxer: Demuxer, scan: PacketScan, times: PacketTimes, step: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return :attr:`PacketIndex.corrupt` and :attr:`PacketIndex.clean_gaps`."""
    corrupt: npt.NDArray[np.bool_] = np.array(scan.corrupt, np.bool_)
    gaps: set[int] = set()
    if demuxer.format == "mpegts":
        for ordinal in np.flatnonzero(corrupt).tolist():
            found = demuxer.find_clean_gaps(scan.position[ordinal : ordinal + 3].tolist())
            corrupt[ordinal] = not found
            # segments of one stream that were joined again: the counters start anew, but no time is missing
            gaps.update(
                gap
                for gap in (ordinal + number for number in found)
                if not 0 < int(times.dts[gap]) - int(times.dts[gap - 1]) < 1.5 * step
            )
        # FFmpeg's parsers end a picture at the start of the next one, and give it the flag of that packet
        corrupt[1:] |= corrupt[:-1].copy()
    elif demuxer.format == "ogg":
        for gap in demuxer.find_ogg_gaps(scan.position):
            first = int(np.searchsorted(np.array(scan.position), gap.position))
            corrupt[max(0, first - 1)] |= gap.cuts_packet
            if first < len(corrupt):
                gaps.add(first)
            corrupt[-1] |= first == len(corrupt) - 1  # no packet after it has a time of its own
    return corrupt | scan.fact("is_damaged", np.bool_), np.array(sorted(gaps), np.int64)


def disposable_packets(scan: PacketScan, max_temporal_id: int) -> npt.NDArray[np.bool_]:
    """Return which packets no other one refers to, given the highest temporal id of the stream."""
    # the container's own flags are not believed: a false one would skip pictures that others refer to
    temporal_id = scan.fact("temporal_id", np.int8)
    # a sub-layer non-reference picture may still be referred to from a higher temporal sub-layer
    disposable: npt.NDArray[np.bool_] = scan.fact("disposable", np.bool_) & (temporal_id == max_temporal_id)
    disposable &= np.append(scan.fact("resets_decoder_state", np.bool_)[1:], True)
    return disposable


def _nominal_step(demuxer: Demuxer, duration: npt.NDArray[np.int64], time_base: Fraction) -> float:
    """Return the ticks between two frames: the packets' median duration, or the header's rate if they have none.

    A rate of the header that agrees with the durations is more exact than they are.
    """
    median = float(np.median(duration[duration > 0])) if (duration > 0).any() else None
    for rate in (demuxer.stream.guessed_rate, demuxer.stream.average_rate):
        if rate and (median is None or abs(1 / (rate * time_base) - median) < 1):
            return max(1.0, float(1 / (rate * time_base)))
    return median or max(1.0, float(1 / (25 * time_base)))


def _timeline(
    times: npt.NDArray[np.int64],
    durations: npt.NDArray[np.int64],
    key: npt.NDArray[np.bool_],
    time_base: Fraction,
    step: float,
) -> Timeline:
    ticks = times - times[0]
    last_duration = int(durations[-1])
    if len(ticks) > 1 and durations.all() and not 0.5 <= durations[:-1].sum() / int(ticks[-1]) <= 1.5:
        last_duration = 0  # the header's default (Matroska's DefaultDuration) is wrong for the other frames
    if last_duration <= 0:
        last_duration = round(int(ticks[-1]) / (len(ticks) - 1)) if len(ticks) > 1 else round(step)
    return Timeline(ticks, time_base, int(ticks[-1]) + max(1, last_duration), key)
