"""A reel: the planned packets in a container of our own."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from support.clips import CLIPS, Clip
from telecine.backends.remux.remux import STEP, make_reel
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

    def runs(self, *frames: int) -> tuple[DecodeRange, ...]:
        wanted = np.array(frames or range(self.index.num_frames), np.int64)
        return make_plan(self.index, wanted).ranges


@pytest.mark.parametrize("clip", DECODABLE, ids=str)
def test_times_in_it_are_positions(clip: Clip) -> None:
    """Whatever the times of the source are: from 0, one step apart, and every target is where its row says."""
    opened = Opened(clip.name)
    index = opened.index
    for runs in split_at_resets(opened.runs()):
        reel = make_reel(opened.reader, runs, Deadline())
        with av.open(io.BytesIO(reel.data)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.size]
        times = sorted(packet.pts for packet in packets)
        assert times == [at * STEP for at in reel.present()]
        assert packets[0].is_keyframe
        in_order = [reel.position[ordinal] for ordinal in index.display_order.tolist() if ordinal in reel.position]
        assert in_order == sorted(in_order)
        for run in runs:
            for ordinal, rows in run.targets.items():
                assert reel.targets[reel.position[ordinal]] == rows


def test_only_what_is_needed_is_in_it() -> None:
    opened = Opened("h264_pyramid.mp4")
    (runs,) = split_at_resets(opened.runs(30))
    reel = make_reel(opened.reader, runs, Deadline())
    assert len(reel.present()) == sum(len(run.packets) for run in runs) < 20


@pytest.mark.parametrize(
    ("name", "is_mp4"),
    [("h264_no_b.mp4", True), ("h264_pyramid.mp4", False), ("h264_paff.ts", False), ("h264.ts", False)],
)
def test_h264_in_order_has_decoding_times(name: str, is_mp4: bool) -> None:
    """Readers need not decode a few frames first, to make them up."""
    opened = Opened(name)
    for runs in split_at_resets(opened.runs()):
        reel = make_reel(opened.reader, runs, Deadline())
        assert (bytes(reel.data[4:8]) == b"ftyp") is is_mp4
        with av.open(io.BytesIO(reel.data)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.size]
            assert file.streams.video[0].time_base == Fraction(1, 1000)
        assert sorted(packet.pts or 0 for packet in packets) == [at * STEP for at in range(len(packets))]
        if is_mp4:
            assert [packet.dts for packet in packets] == [packet.pts for packet in packets]


def test_it_has_no_orientation() -> None:
    opened = Opened("rotated90.mp4")
    reel = make_reel(opened.reader, opened.runs(), Deadline())
    with av.open(io.BytesIO(reel.data)) as file:
        assert next(file.decode(video=0)).rotation == 0


def test_a_codec_that_does_not_fit_is_refused_with_a_reason() -> None:
    opened = Opened("gif.gif")
    with pytest.raises(UnsupportedVideoError, match="cannot be handed over in a file"):
        make_reel(opened.reader, opened.runs(), Deadline())


def test_times_that_are_nobodys() -> None:
    opened = Opened("base.mp4")
    reel = make_reel(opened.reader, opened.runs(), Deadline())
    assert [reel.at(time) for time in (0, 40.4, 59 * 40.0)] == [0, 1, 59]
    assert [reel.at(time) for time in (-40, 20, 60 * 40)] == [None, None, None]


def test_parameter_sets_that_change_are_noticed() -> None:
    """A library that makes room for the first size would go wrong there, and some read beyond it."""
    for name, changes in {"size_change.ts": True, "h264.ts": False, "hevc_raw.hevc": False, "base.mp4": False}.items():
        opened = Opened(name)
        assert make_reel(opened.reader, opened.runs(), Deadline()).changes is changes
