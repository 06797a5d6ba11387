"""Conversion of container packets to the byte stream that the NVDEC parser reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clips import clips
from support.fake_driver import build
from support.fake_driver.double import (
    Double,
    engine_fixture,  # noqa: F401
)
from support.fake_driver.stream import Shape


def _packet(length_size: int, nals: Sequence[bytes]) -> bytes:
    return b"".join(len(nal).to_bytes(length_size, "big") + nal for nal in nals)


@pytest.mark.parametrize("length_size", [1, 2, 4])
def test_length_prefixed_packets_are_converted_to_annex_b(length_size: int) -> None:
    nvdec, shape = build.native(), Shape()
    nals = [b"\x06sei", b"\x65\x88slice", b"\x65\x08more"]
    code = b"\0\0\0\1"
    body = b"".join(code + nal for nal in nals)
    packet = _packet(length_size, nals)
    assert nvdec._convert_packet("h264", shape.extradata(length_size), packet, False) == (body, [len(body)], False)
    whole, pieces, damaged = nvdec._convert_packet("h264", shape.extradata(length_size), packet, True)
    assert whole == code + shape.sps() + code + b"\x68\x80" + body and pieces == [len(whole)] and not damaged


def test_annex_b_packets_stay_unchanged() -> None:
    nvdec = build.native()
    packet = b"\0\0\0\1\x09\xf0\0\0\1\x65\x88slice"
    for extradata in (b"", b"\0\0\0\1\x67sps"):
        assert nvdec._convert_packet("h264", extradata, packet, False)[0] == packet
    assert nvdec._convert_packet("h264", b"\0\0\0\1\x67sps", packet, True)[0] == b"\0\0\0\1\x67sps" + packet
    assert nvdec._convert_packet("h264", Shape().extradata(), packet, False)[0] == packet


def test_packets_with_two_fields_are_split_between_them() -> None:
    nvdec = build.native()
    first, second = b"\0\0\0\1\x65\x88top", b"\0\0\0\1\x06sei\0\0\1\x41\x88bottom"
    assert nvdec._convert_packet("h264", b"", first + second, False)[1] == [len(first), len(first + second)]


def test_vp8_and_vp9_packets_stay_unchanged() -> None:
    for codec in ("vp8", "vp9"):
        assert build.native()._convert_packet(codec, b"anything", b"frame", True) == (b"frame", [5], False)


def test_hevc_parameter_sets_are_prepended_as_annex_b() -> None:
    nvdec = build.native()
    sets = [(32, b"vps"), (33, b"sps"), (34, b"pps")]
    arrays = b"".join(bytes([kind]) + b"\0\1" + len(data).to_bytes(2, "big") + data for kind, data in sets)
    extradata = b"\1" + bytes(20) + b"\xff\3" + arrays
    packet = _packet(4, [b"\x26\1slice"])
    code = b"\0\0\0\1"
    expected_bytes = b"".join(code + data for _, data in sets) + code + b"\x26\1slice"
    assert nvdec._convert_packet("hevc", extradata, packet, True)[0] == expected_bytes


_MARKS = (b"\0\0\1", b"\0\0\0\1", b"\x65\x80", b"\0\0\1\0")


def _nal_units(data: bytes) -> list[bytes]:
    return [unit.rstrip(b"\0") for unit in data.split(b"\0\0\1") if unit.rstrip(b"\0")]


@pytest.mark.parametrize("name", ["h264", "hevc"])
def test_converted_packets_match_ffmpegs_mp4toannexb_filter(name: str) -> None:
    import av
    from av.bitstream import BitStreamFilterContext

    clip = next(clip for clip in clips(name, "mp4", "core"))
    with av.open(str(clip.path())) as container:
        stream: Any = container.streams.video[0]
        converter = BitStreamFilterContext(f"{name}_mp4toannexb", stream)
        extradata = bytes(stream.codec_context.extradata)
        packets = [packet for packet in container.demux(stream) if packet.size]
        for first, packet in zip((True, *[False] * (len(packets) - 1)), packets, strict=True):
            raw = bytes(packet)
            (reference,) = converter.filter(packet)
            data, pieces, damaged = build.native()._convert_packet(name, extradata, raw, first)
            ours, theirs = _nal_units(data), _nal_units(bytes(reference))
            assert pieces == [len(data)] and not damaged
            # parameter sets may stand in another place, or be left out where they have been said before
            kinds = {7, 8} if name == "h264" else {32, 33, 34, 39}  # and x265's message about itself
            kind = (lambda unit: unit[0] & 31) if name == "h264" else (lambda unit: unit[0] >> 1 & 63)
            assert [u for u in ours if kind(u) not in kinds] == [u for u in theirs if kind(u) not in kinds]
            if first:
                assert {kind(u) for u in ours} >= kinds - {39}


@settings(max_examples=300, deadline=None)
@given(
    codec=st.sampled_from(["h264", "hevc", "vp8", "vp9"]),
    extradata=st.one_of(st.binary(max_size=64), st.sampled_from([Shape().extradata(1), Shape().extradata(4)])),
    packet=st.lists(st.one_of(st.sampled_from(_MARKS), st.binary(max_size=12))).map(b"".join),
    with_headers=st.booleans(),
)
def test_conversion_of_random_bytes_stays_in_bounds(
    codec: str, extradata: bytes, packet: bytes, with_headers: bool
) -> None:
    data, pieces, _ = build.native()._convert_packet(codec, extradata, packet, with_headers)
    assert pieces == sorted(pieces) and pieces[-1] == len(data)
    assert len(data) <= 5 * len(packet) + 4 * len(extradata) + 8


@settings(max_examples=100, deadline=None)
@given(packets=st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_packets_of_random_bytes_give_no_frame(engine: Double, packets: list[bytes]) -> None:
    result, _ = engine.decode([*packets], list(range(len(packets))))
    assert 0 not in result.loss
