"""Malformed data that no picture needs costs no frame; damage of pictures is still found."""

from __future__ import annotations

import io
from collections.abc import Callable

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.bitstream.nal import (
    extradata_units,
    join_annex_b,
    join_length_prefixed,
    nal_length_size,
    split_length_prefixed,
)

T35 = "b5003c0001040100" + "ff" * 5  # the beginning of HDR10+ metadata
UNITS = {
    "hevc": {
        "SEI cut off": "4e0105ff",
        "SEI longer than its unit": "4e01014080",
        "SEI without a message": "4e01",
        "SEI of one byte": "4e",
        "broken T.35 message": f"4e0104{len(T35) // 2:02x}{T35}80",
        "broken picture hash": "5001841100ff",
        "unused broken PPS": "440110ff",
        "unused broken SPS": "42010fffff",
        "unused broken VPS": "4001f000",
        "PPS without content": "4401",
        "SPS without content": "4201",
        "VPS without content": "4001",
        "reserved type 41": "5201aabb80",
        "reserved picture type 10": "1401aabb80",
        "reserved picture type 22": "2c01aabb80",
        "reserved picture type 24": "3001aabb80",
        "unspecified type 48": "6001aabb80",
        "unspecified type 63": "7e01aabb80",
        "delimiter without content": "4601",
        "filler": "4c01ffffff80",
        "another layer": "0209aabb80",
    },
    "h264": {
        "SEI cut off": "0605ff",
        "SEI longer than its unit": "06014080",
        "SEI of one byte": "06",
        "broken T.35 message": "060420b500314741393480",
        "unused broken PPS": "6801",
        "unused broken SPS": "676400",
        "PPS without content": "68",
        "SPS without content": "67",
        "reserved type 16": "10aabb80",
        "unspecified type 24": "18aabb80",
        "unspecified type 31": "1faabb80",
        "type 0": "00aabb",
        "filler": "0cffff80",
        "another view": "74aabbcc80",
    },
}
CASES = [(codec, name) for codec, units in UNITS.items() for name in units]
CLIP_OF = {"hevc": "hevc_open_gop.mp4", "h264": "h264_pyramid.mp4"}
Change = Callable[[int, list[bytes]], list[bytes]]


def changed(codec: str, container: str, change: Change) -> bytes:
    """Mux a clip anew with changed NAL units: ``change(number of the packet, its units)``."""
    target = io.BytesIO()
    with av.open(str(CLIPS[CLIP_OF[codec]].path())) as source, av.open(target, "w", container) as muxer:
        stream = source.streams.video[0]
        own = bytes(stream.codec_context.extradata or b"")
        size = nal_length_size(codec, own)
        copied = muxer.add_stream_from_template(stream, opaque=container != "mpegts")
        if container == "mpegts":
            copied.codec_context.extradata = join_annex_b(extradata_units(codec, own))
        packets = [packet for packet in source.demux(stream) if packet.size]
        for number, packet in enumerate(packets):
            units = change(number, split_length_prefixed(bytes(packet), size) or [])
            if container == "mpegts" and packet.is_keyframe:
                units = [*extradata_units(codec, own), *units]
            new = av.Packet(join_annex_b(units) if container == "mpegts" else join_length_prefixed(units, size))
            new.pts, new.dts, new.time_base, new.duration = packet.pts, packet.dts, packet.time_base, packet.duration
            new.is_keyframe, new.stream = packet.is_keyframe, copied
            muxer.mux_one(new)
    return target.getvalue()


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("where", ["in front of every picture", "behind every picture", "in the first packet"])
@pytest.mark.parametrize(("codec", "name"), CASES, ids=[f"{codec}: {name}" for codec, name in CASES])
def test_a_unit_that_no_picture_needs_costs_no_frame(codec: str, name: str, where: str, container: str) -> None:
    unit = bytes.fromhex(UNITS[codec][name])

    def add(number: int, units: list[bytes]) -> list[bytes]:
        if where == "in the first packet" and number:
            return units
        return [*units, unit] if where == "behind every picture" else [unit, *units]

    clip = CLIPS[CLIP_OF[codec]]
    frames = telecine.load(changed(codec, container, add), errors="strict")
    assert frames.indices.tolist() == list(range(clip.num_frames))
    assert np.abs(frames.data.astype(int) - clip.reference().frames).max() <= 2
    some = telecine.load(changed(codec, container, add), indices=[7, 31, 50], errors="strict")
    np.testing.assert_array_equal(some.data, frames.data[[7, 31, 50]])


@pytest.mark.parametrize("backend", ["pyav", "opencv"])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize(
    ("codec", "unit"),
    [("hevc", "4e0104 01ff80"), ("hevc", "4601"), ("h264", "060401ff80"), ("h264", "0910")],
    ids=["HEVC message", "HEVC delimiter", "H.264 message", "H.264 delimiter"],
)
def test_a_packet_of_units_that_no_picture_needs_costs_no_frame(
    codec: str, unit: str, container: str, backend: str
) -> None:
    """FFmpeg's decoders stop at a packet without a picture, or at the empty one that remains of it."""
    clip = CLIPS[CLIP_OF[codec]]
    target = io.BytesIO()
    with av.open(str(clip.path())) as source, av.open(target, "w", container) as muxer:
        stream = source.streams.video[0]
        copied = muxer.add_stream_from_template(stream, opaque=True)
        for number, packet in enumerate(source.demux(stream)):
            if not packet.size:
                continue
            pts, dts = packet.pts, packet.dts
            packet.stream = copied
            muxer.mux_one(packet)
            if number == 20:
                extra = av.Packet(join_length_prefixed([bytes.fromhex(unit)], 4))
                extra.pts, extra.dts, extra.time_base, extra.stream = (
                    (pts or 0) + 3,
                    (dts or 0) + 1,
                    stream.time_base,
                    copied,
                )
                muxer.mux_one(extra)
    frames = telecine.load(target.getvalue(), backend=backend, errors="strict")
    assert frames.indices.tolist() == list(range(clip.num_frames))
    assert np.abs(frames.data.astype(int) - clip.reference().frames).max() <= 2


@pytest.mark.parametrize("missing", [(32,), (32, 33), (32, 33, 34)], ids=["VPS", "VPS and SPS", "all"])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_parameter_sets_may_be_in_the_first_packet_instead_of_the_extradata(
    container: str, missing: tuple[int, ...]
) -> None:
    """HEVC; those in the extradata refer to the missing ones."""
    clip = CLIPS[CLIP_OF["hevc"]]
    with av.open(str(clip.path())) as source:
        sets = extradata_units("hevc", bytes(source.streams.video[0].codec_context.extradata or b""))
    moved = [unit for unit in sets if unit[0] >> 1 in missing]
    data = changed("hevc", container, lambda number, units: units if number else [*moved, *units])
    with av.open(io.BytesIO(data)) as written:
        own = bytes(written.streams.video[0].codec_context.extradata or b"")
    sets = extradata_units("hevc", own)
    arrays = b"".join(
        bytes([unit[0] >> 1, 0, 1]) + len(unit).to_bytes(2, "big") + unit for unit in sets if unit not in moved
    )
    record = own[:22] + bytes([len(sets) - len(moved)]) + arrays
    # the rest of the record becomes an array of a type that decoders ignore
    rest = len(own) - len(record) - 5
    record = (
        record[:22] + bytes([record[22] + 1]) + record[23:] + bytes([41, 0, 1]) + rest.to_bytes(2, "big") + bytes(rest)
    )
    assert data.count(own) == 1 and len(record) == len(own)
    frames = telecine.load(data.replace(own, record), errors="strict")
    assert frames.indices.tolist() == list(range(clip.num_frames))
    assert np.abs(frames.data.astype(int) - clip.reference().frames).max() <= 2


def test_a_broken_parameter_set_that_pictures_refer_to_costs_them() -> None:
    """The decoder would take an earlier one of the same number, whose content may differ."""
    clip = CLIPS[CLIP_OF["hevc"]]
    broken = bytes.fromhex("440180")  # picture parameter set 0, cut off

    def add(number: int, units: list[bytes]) -> list[bytes]:
        return [broken, *units] if number == 20 else units

    frames = telecine.load(changed("hevc", "mp4", add))
    assert frames.report.lost and set(frames.indices.tolist()) | set(frames.report.lost) == set(range(clip.num_frames))
    assert np.abs(frames.data.astype(int) - clip.reference().frames[frames.indices]).max() <= 2


OBUS = {
    "metadata without a type": "2a00",
    "light levels cut off": "2a020100",
    "HDR10+ cut off": "2a0904b5003c0001040140",
    "unknown metadata": "2a037f7a7a",
    "reserved type 9": "4a03616263",
    "reserved type 14": "7203616263",
    "padding": "7a0400000000",
}
USER_DATA = {
    "text": b"\0\0\1\xb2garbage",
    "nothing": b"\0\0\1\xb2",
    "active format cut off": b"\0\0\1\xb2DTG1\x41",
    "captions cut off": b"\0\0\1\xb2GA94\x03\xff",
}


@pytest.mark.parametrize("where", ["in front of every picture", "behind every picture", "in the first packet"])
@pytest.mark.parametrize("unit", OBUS.values(), ids=OBUS)
@pytest.mark.parametrize("name", ["av1_svt.mp4", "av1_aom.mp4", "av1_svt.webm"])
def test_an_obu_that_no_picture_needs_costs_no_frame(name: str, unit: str, where: str) -> None:
    check_with(name, bytes.fromhex(unit), where)


@pytest.mark.parametrize("where", ["in front of every picture", "in the first packet"])
@pytest.mark.parametrize("data", USER_DATA.values(), ids=USER_DATA)
@pytest.mark.parametrize("name", ["mpeg4.mp4", "mpeg4.avi", "mpeg2_open_gop.ts", "mpeg2.mp4"])
def test_user_data_that_is_malformed_costs_no_frame(name: str, data: bytes, where: str) -> None:
    check_with(name, data, where)


def test_user_data_behind_the_last_picture_is_no_frame() -> None:
    check_with("mpeg2_open_gop.ts", USER_DATA["text"], "behind every picture")


def check_with(name: str, added: bytes, where: str) -> None:
    """Compare a clip whose packets have more data with the clip."""
    target, clip = io.BytesIO(), CLIPS[name]
    with av.open(str(clip.path())) as source:
        formats = {"mov,mp4,m4a,3gp,3g2,mj2": "mp4", "matroska,webm": "webm"}
        with av.open(target, "w", formats.get(source.format.name, source.format.name)) as muxer:
            copied = muxer.add_stream_from_template(source.streams.video[0], opaque=True)
            for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
                data = bytes(packet)
                if where != "in the first packet" or not number:
                    data = data + added if where == "behind every picture" else added + data
                new = av.Packet(data)
                new.pts, new.dts, new.time_base, new.duration = (
                    packet.pts,
                    packet.dts,
                    packet.time_base,
                    packet.duration,
                )
                new.is_keyframe, new.stream = packet.is_keyframe, copied
                muxer.mux_one(new)
    frames = telecine.load(target.getvalue(), errors="strict")
    assert frames.indices.tolist() == list(range(clip.num_frames))
    assert np.abs(frames.data.astype(int) - clip.reference().frames).max() <= 2
