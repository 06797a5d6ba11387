"""Parts, splices, and the file that they are put into."""

from __future__ import annotations

import io
import types
from typing import Any

import av
import numpy as np
import pytest

from support.clips import CLIPS, read_number
from telecine.backends.deepstream import bitstream_builder as splice
from telecine.backends.deepstream.bitstream_builder import Splice, parts_of, splices
from telecine.backends.deepstream.mkv_writer import STEP, Block, matroska
from telecine.bitstream import RandomAccess
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import read_index
from telecine.limits import Limits
from telecine.plan.decode_plan import make_plan
from telecine.plan.packet_reader import PacketReader
from telecine.plan.ranges import DecodeRange
from telecine.source.source import open_source

BT709 = "colour_primaries=1:transfer_characteristics=1:matrix_coefficients=1:video_full_range_flag=1"


class Opened:
    """A clip, as far as a request knows it."""

    def __init__(self, name: str) -> None:
        self.source = open_source(CLIPS[name].path(), Limits(), Deadline())
        self.demuxer = Demuxer(self.source, Deadline())
        self.index = read_index(self.demuxer, Limits(), Deadline())

    def parts(self, *frames: int) -> list[DecodeRange]:
        return parts_of(self.index, make_plan(self.index, np.array(frames)).ranges)

    def splices(self, *frames: int) -> list[Splice]:
        request: Any = types.SimpleNamespace(
            source=self.source,
            demuxer=self.demuxer,
            reader=PacketReader(self.demuxer, self.index),
            index=self.index,
            deadline=Deadline(),
            geometry=types.SimpleNamespace(stored_width=192, stored_height=144),
        )
        return list(splices(request, self.parts(*frames), BT709))


def pictures(data: bytes) -> list[Any]:
    with av.open(io.BytesIO(data)) as file:
        return list(file.decode(video=0))


def test_the_file_is_what_another_reader_finds_in_it() -> None:
    with av.open(CLIPS["hevc_raw.hevc"].path()) as file:
        packets = [packet for packet in file.demux(video=0) if packet.size] * 5
    far = {40: 30_000, 41: 2}  # as no encoder would have it
    blocks = [Block(far.get(at, at ^ 1), packet.is_keyframe, bytes(packet)) for at, packet in enumerate(packets)]
    with av.open(io.BytesIO(matroska("hevc", 320, 200, blocks)), options={"fflags": "+noparse"}) as file:
        stream = file.streams.video[0]
        assert stream.codec_context.name == "hevc"
        found = [packet for packet in file.demux(stream) if packet.size]
    assert [bytes(packet) for packet in found] == [block.data for block in blocks]
    assert [packet.pts for packet in found] == [block.number * STEP for block in blocks]
    assert [packet.is_keyframe for packet in found] == [block.is_access for block in blocks]


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "hevc_radl.mp4", "h264.ts", "hevc_raw.hevc"])
def test_as_many_pictures_come_as_it_says_and_in_its_order(name: str) -> None:
    wanted = [0, 13, 29, 31, 59]
    (made,) = Opened(name).splices(*wanted)
    found = pictures(made.data)
    assert (len(found), made.optional) == (made.count, 0)
    numbers = {number: read_number(found[number].to_ndarray(format="rgb24")) for number in made.targets}
    assert {numbers[number]: rows for number, rows in made.targets.items()} == {
        frame: (row,) for row, frame in enumerate(wanted)
    }


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc.mp4", "h264_no_vui.mp4", "h264.ts"])
def test_it_has_the_colours_that_it_is_given(name: str) -> None:
    (made,) = Opened(name).splices(0, 40)
    tags = {(p.color_primaries, p.color_trc, p.colorspace, p.color_range) for p in pictures(made.data)}
    assert tags == {(1, 1, 1, 2)}


def test_the_decoder_is_named_after_all_that_it_is_made_for() -> None:
    names = ["h264_pyramid.mp4", "h264_no_b.mp4", "h264_many_refs.mp4", "h264_320x240.mp4", "hevc.mp4"]
    assert len({Opened(name).splices(0)[0].decoder for name in names}) == len(names)
    assert Opened(names[0]).splices(0)[0].decoder == Opened(names[0]).splices(59)[0].decoder


def test_h264_is_led_back_from_a_point_that_looks_back() -> None:
    """And runs that overlap then are one."""
    opened = Opened("h264_open_gop.mp4")
    parts = opened.parts(0, 40, 59)
    assert [opened.index.random_access[part.packets[0]] for part in parts] == [RandomAccess.CLOSED] * len(parts)
    packets = np.concatenate([part.packets for part in parts])
    assert len(set(packets.tolist())) == len(packets)
    assert sorted(row for part in parts for rows in part.targets.values() for row in rows) == [0, 1, 2]


def test_where_nothing_looks_back_at_nothing_some_pictures_may_be_left_out() -> None:
    (made,) = Opened("h264_cut.mp4").splices(0, 20)
    assert len(pictures(made.data)) in (made.count, made.count - made.optional)
    assert made.optional


@pytest.mark.parametrize("disposable", [False, True])
def test_nothing_that_is_built_on_damage_is_in_it(disposable: bool) -> None:
    opened = Opened("h264_pyramid.mp4")
    whole = opened.splices(*range(10))[0]
    ordinals = opened.parts(*range(10))[0].packets
    broken = int(ordinals[opened.index.disposable[ordinals] == disposable][2])
    packets = opened.index.packets
    assert packets is not None
    packets[broken] = av.Packet(bytes(packets[broken])[:-20])
    made = opened.splices(*range(10))[0]
    before = np.count_nonzero(ordinals < broken)
    assert len(pictures(made.data)) == made.count == (whole.count - 1 if disposable else before)


def test_what_is_too_much_for_one_call_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "_MOST_PICTURES", 6 * 192 * 144 * 3)
    made = Opened("h264_keyint4.mp4").splices(*range(24))
    assert [len(one.targets) for one in made] == [4] * 6
    assert [one.count for one in made] == [4] * 6


def test_fields_are_refused() -> None:
    with pytest.raises(UnsupportedVideoError, match="interlaced"):
        Opened("h264_paff.mp4").splices(0)
