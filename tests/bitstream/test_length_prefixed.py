"""Bytes behind the last NAL unit of a length-prefixed packet: padding, or damage as FFmpeg sees it."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.nal import split_length_prefixed

_UNITS = [b"\x65abc", b"\x41de"]
_PADDING = [b"", b"\0", b"\0\0", b"\0\0\0", b"\xff\xff\xff"]
_DAMAGE = [bytes(4), bytes(5), bytes(500), b"\0\0\0\x05A", b"\xff" * 20]


def _packet(rest: bytes) -> bytes:
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in _UNITS) + rest


@pytest.mark.parametrize("rest", _PADDING)
def test_bytes_that_are_fewer_than_a_length_are_padding(rest: bytes) -> None:
    assert split_length_prefixed(_packet(rest), 4) == _UNITS


@pytest.mark.parametrize("rest", _DAMAGE)
def test_a_length_of_zero_or_beyond_the_packet_is_damage(rest: bytes) -> None:
    assert split_length_prefixed(_packet(rest), 4) is None


@pytest.mark.parametrize(
    ("rest", "is_sound"), [*((rest, True) for rest in _PADDING), *((rest, False) for rest in _DAMAGE)]
)
@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc.mp4"])
def test_packets_that_ffmpeg_decodes_are_the_ones_that_are_converted(name: str, rest: bytes, is_sound: bool) -> None:
    packets = []
    with av.open(str(CLIPS[name].path())) as source:
        stream = source.streams.video[0]
        extradata = bytes(stream.codec_context.extradata or b"")
        changed = io.BytesIO()
        with av.open(changed, "w", format="mp4") as target:
            output = target.add_stream_from_template(stream)
            for number, packet in enumerate(source.demux(video=0)):
                data = bytes(packet) + (rest if number == 9 else b"")
                if packet.size:
                    packets.append(data)
                    copy = av.Packet(data)
                    copy.pts, copy.dts, copy.duration = packet.pts, packet.dts, packet.duration
                    copy.time_base, copy.is_keyframe, copy.stream = packet.time_base, packet.is_keyframe, output
                    target.mux(copy)
    converter = AnnexBConverter(name.partition("_")[0].partition(".")[0], extradata)
    assert [converter.convert(data, i == 0, i == 0) is not None for i, data in enumerate(packets)].count(False) == (
        0 if is_sound else 1
    )
    known = telecine.load(CLIPS[name].path())
    frames = telecine.load(changed.getvalue())
    assert bool(frames.report.lost) is not is_sound
    assert np.array_equal(frames.data, known.data[frames.indices])
