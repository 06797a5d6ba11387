"""The files that the DeepStream backend builds, and the pictures that another decoder finds in them."""

from __future__ import annotations

import io
import types
from typing import Any

import av
import numpy as np
import pytest

from support.clips import CLIPS, read_number
from telecine.backends.deepstream import bitstream_builder
from telecine.backends.deepstream.bitstream_builder import (
    STEP_MS,
    Block,
    InputFile,
    build_files,
    plan_ranges,
    write_mkv,
)
from telecine.bitstream import RandomAccess
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import read_index
from telecine.limits import Limits
from telecine.plan.packet_reader import PacketReader
from telecine.plan.ranges import DecodeRange
from telecine.source.source import open_source

BT709 = "colour_primaries=1:transfer_characteristics=1:matrix_coefficients=1:video_full_range_flag=1"


class Opened:
    """A clip with its packet index."""

    def __init__(self, name: str) -> None:
        self.source = open_source(CLIPS[name].path(), Limits(), Deadline())
        self.demuxer = Demuxer(self.source, Deadline())
        self.index = read_index(self.demuxer, Limits(), Deadline())

    def ranges(self, *frames: int) -> list[DecodeRange]:
        return plan_ranges(self.index, np.array(frames))

    def files(self, *frames: int) -> list[InputFile]:
        request: Any = types.SimpleNamespace(
            source=self.source,
            demuxer=self.demuxer,
            reader=PacketReader(self.demuxer, self.index),
            index=self.index,
            deadline=Deadline(),
            geometry=types.SimpleNamespace(stored_width=192, stored_height=144),
            max_pixels=Limits.max_pixels,
        )
        return list(build_files(request, self.ranges(*frames), BT709))


def pictures(data: bytes) -> list[Any]:
    with av.open(io.BytesIO(data)) as file:
        return list(file.decode(video=0))


def test_ffmpeg_reads_the_written_matroska_file_back() -> None:
    with av.open(CLIPS["hevc_raw.hevc"].path()) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size] * 5
    far = {40: 30_000, 41: 2}  # no encoder writes this
    blocks = [Block(far.get(i, i ^ 1), packet.is_keyframe, bytes(packet)) for i, packet in enumerate(packets)]
    with av.open(io.BytesIO(write_mkv("hevc", 320, 200, blocks)), options={"fflags": "+noparse"}) as file:
        stream = file.streams.video[0]
        assert stream.codec_context.name == "hevc"
        found = [packet for packet in file.demux(stream) if packet.size]
    assert [bytes(packet) for packet in found] == [block.data for block in blocks]
    assert [packet.pts for packet in found] == [block.number * STEP_MS for block in blocks]
    assert [packet.is_keyframe for packet in found] == [block.is_random_access for block in blocks]


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "hevc_radl.mp4", "h264.ts", "hevc_raw.hevc"])
def test_a_decoder_returns_the_announced_pictures_in_the_announced_order(name: str) -> None:
    wanted = [0, 13, 29, 31, 59]
    (file,) = Opened(name).files(*wanted)
    found = pictures(file.data)
    assert (len(found), file.num_optional) == (file.num_pictures, 0)
    numbers = {number: read_number(found[number].to_ndarray(format="rgb24")) for number in file.targets}
    assert {numbers[number]: rows for number, rows in file.targets.items()} == {
        frame: (row,) for row, frame in enumerate(wanted)
    }


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc.mp4", "h264_no_vui.mp4", "h264.ts"])
def test_color_metadata_is_written_into_the_parameter_sets(name: str) -> None:
    (file,) = Opened(name).files(0, 40)
    tags = {(p.color_primaries, p.color_trc, p.colorspace, p.color_range) for p in pictures(file.data)}
    assert tags == {(1, 1, 1, 2)}


def test_streams_with_other_parameter_sets_have_another_decoder_key() -> None:
    names = ["h264_pyramid.mp4", "h264_no_b.mp4", "h264_many_refs.mp4", "h264_320x240.mp4", "hevc.mp4"]
    assert len({Opened(name).files(0)[0].decoder_key for name in names}) == len(names)
    assert Opened(names[0]).files(0)[0].decoder_key == Opened(names[0]).files(59)[0].decoder_key


def test_h264_ranges_are_extended_back_to_closed_random_access_points() -> None:
    """Ranges that overlap after that are merged."""
    opened = Opened("h264_open_gop.mp4")
    ranges = opened.ranges(0, 40, 59)
    assert [opened.index.random_access[range_.packets[0]] for range_ in ranges] == [RandomAccess.CLOSED] * len(ranges)
    packets = np.concatenate([range_.packets for range_ in ranges])
    assert len(set(packets.tolist())) == len(packets)
    assert sorted(row for range_ in ranges for rows in range_.targets.values() for row in rows) == [0, 1, 2]


def test_leading_pictures_are_optional_in_h264_without_a_closed_random_access_point() -> None:
    (file,) = Opened("h264_cut.mp4").files(0, 20)
    assert len(pictures(file.data)) in (file.num_pictures, file.num_pictures - file.num_optional)
    assert file.num_optional


@pytest.mark.parametrize("disposable", [False, True])
def test_a_file_ends_before_a_corrupt_packet_that_others_refer_to(disposable: bool) -> None:
    opened = Opened("h264_pyramid.mp4")
    whole = opened.files(*range(10))[0]
    ordinals = opened.ranges(*range(10))[0].packets
    corrupt = int(ordinals[opened.index.disposable[ordinals] == disposable][2])
    packets = opened.index.packets
    assert packets is not None
    packets[corrupt] = av.Packet(bytes(packets[corrupt])[:-20])
    file = opened.files(*range(10))[0]
    before = np.count_nonzero(ordinals < corrupt)
    assert len(pictures(file.data)) == file.num_pictures == (whole.num_pictures - 1 if disposable else before)


def test_ranges_whose_frames_take_too_much_memory_get_several_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bitstream_builder, "_MAX_FRAME_BYTES", 6 * 192 * 144 * 3)
    files = Opened("h264_keyint4.mp4").files(*range(24))
    assert [len(file.targets) for file in files] == [4] * 6
    assert [file.num_pictures for file in files] == [4] * 6


def test_h264_stored_as_fields_is_refused() -> None:
    with pytest.raises(UnsupportedVideoError, match="interlaced"):
        Opened("h264_paff.mp4").files(0)
