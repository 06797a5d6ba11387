"""Remuxing planned packets into a container file in memory."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from support.clips import CLIPS, Clip
from telecine.backends.remux.remux import STEP_MILLISECONDS, remux
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.plan.decode_plan import make_plan
from telecine.plan.packet_reader import PacketReader
from telecine.plan.ranges import DecodeRange, split_at_resets
from telecine.source.source import open_source

DECODABLE = [
    clip for clip in CLIPS.values() if clip.num_frames and "part" not in clip.tags and not clip.tags & {"gif", "wmv2"}
]


class Opened:
    """A clip with its index."""

    def __init__(self, name: str) -> None:
        self.source = open_source(CLIPS[name].path(), Limits(), Deadline())
        self.demuxer = Demuxer(self.source, Deadline())
        self.index: PacketIndex = read_index(self.demuxer, Limits(), Deadline())
        self.reader = PacketReader(self.demuxer, self.index)

    def ranges(self, *frames: int) -> tuple[DecodeRange, ...]:
        wanted = np.array(frames or range(self.index.num_frames), np.int64)
        return make_plan(self.index, wanted).ranges


@pytest.mark.parametrize("clip", DECODABLE, ids=str)
def test_times_in_a_remuxed_remuxedare_display_positions(clip: Clip) -> None:
    """They start at 0 and are one step apart, whatever the times of the source are."""
    opened = Opened(clip.name)
    index = opened.index
    for ranges in split_at_resets(opened.ranges()):
        remuxed = remux(opened.reader, ranges, Deadline())
        with av.open(io.BytesIO(remuxed.data)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.size]
        times = sorted(packet.pts for packet in packets)
        assert times == [at * STEP_MILLISECONDS for at in remuxed.packet_positions()]
        assert packets[0].is_keyframe
        in_order = [
            remuxed.positions[ordinal] for ordinal in index.display_order.tolist() if ordinal in remuxed.positions
        ]
        assert in_order == sorted(in_order)
        for range_ in ranges:
            for ordinal, rows in range_.targets.items():
                assert remuxed.targets[remuxed.positions[ordinal]] == rows


def test_a_remuxed_remuxedholds_only_the_planned_packets() -> None:
    opened = Opened("h264_pyramid.mp4")
    (ranges,) = split_at_resets(opened.ranges(30))
    remuxed = remux(opened.reader, ranges, Deadline())
    assert len(remuxed.packet_positions()) == sum(len(range_.packets) for range_ in ranges) < 20


@pytest.mark.parametrize(
    ("name", "is_mp4"),
    [("h264_no_b.mp4", True), ("h264_pyramid.mp4", False), ("h264_paff.ts", False), ("h264.ts", False)],
)
def test_h264_without_reordering_is_remuxed_to_mp4_with_decoding_times(name: str, is_mp4: bool) -> None:
    """FFmpeg then need not decode frames to make them up when it opens the file."""
    opened = Opened(name)
    for ranges in split_at_resets(opened.ranges()):
        remuxed = remux(opened.reader, ranges, Deadline())
        assert (bytes(remuxed.data[4:8]) == b"ftyp") is is_mp4
        with av.open(io.BytesIO(remuxed.data)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.size]
            assert file.streams.video[0].time_base == Fraction(1, 1000)
        assert sorted(packet.pts or 0 for packet in packets) == [at * STEP_MILLISECONDS for at in range(len(packets))]
        if is_mp4:
            assert [packet.dts for packet in packets] == [packet.pts for packet in packets]


def test_a_remuxed_remuxedhas_no_display_matrix() -> None:
    opened = Opened("rotated90.mp4")
    remuxed = remux(opened.reader, opened.ranges(), Deadline())
    with av.open(io.BytesIO(remuxed.data)) as file:
        assert next(file.decode(video=0)).rotation == 0


def test_a_codec_that_no_container_holds_is_refused_with_a_reason() -> None:
    opened = Opened("gif.gif")
    with pytest.raises(UnsupportedVideoError, match="cannot be remuxed into a file"):
        remux(opened.reader, opened.ranges(), Deadline())


def test_position_at_is_none_for_times_between_or_beyond_frames() -> None:
    opened = Opened("base.mp4")
    remuxed = remux(opened.reader, opened.ranges(), Deadline())
    assert [remuxed.position_at(time) for time in (0, 40.4, 59 * 40.0)] == [0, 1, 59]
    assert [remuxed.position_at(time) for time in (-40, 20, 60 * 40)] == [None, None, None]


def test_has_sps_changes_is_true_if_the_sps_changes_in_the_file() -> None:
    """A library that allocates surfaces of the first size would fail there, and some read beyond them."""
    for name, changes in {"size_change.ts": True, "h264.ts": False, "hevc_raw.hevc": False, "base.mp4": False}.items():
        opened = Opened(name)
        assert remux(opened.reader, opened.ranges(), Deadline()).has_sps_changes is changes
