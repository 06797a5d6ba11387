"""Destroyed packets keep their place: damage never renumbers frames."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from telecine.bitstream.nal import nal_length_size, split_length_prefixed


def packet_positions(data: bytes) -> list[tuple[int, int]]:
    """Return (offset, size) of each video packet, in decode order."""
    with av.open(io.BytesIO(data)) as container:
        return [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]


def with_start_codes(data: bytes, container: str, code: bytes) -> bytes:
    """Mux the packets of an MP4 file anew, with start codes in place of the lengths, and the same extradata."""
    target = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(target, "w", container) as muxer:
        stream = source.streams.video[0]
        size = nal_length_size(stream.codec_context.name, bytes(stream.codec_context.extradata or b""))
        copied = muxer.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.size:
                changed = av.Packet(b"".join(code + unit for unit in split_length_prefixed(bytes(packet), size) or []))
                changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
                changed.duration, changed.is_keyframe, changed.stream = packet.duration, packet.is_keyframe, copied
                muxer.mux(changed)
    return target.getvalue()


ZEROED = [
    "base.mp4",
    "h264_long_gop.mp4",
    "hevc.mp4",
    "hevc_open_gop.mp4",
    "av1_svt.mp4",
    "vp9_altref.mp4",
    "mpeg4.mp4",
]


@pytest.mark.parametrize("name", ZEROED)
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_zeroed_packets_of_a_file_with_sample_tables_are_lost_and_do_not_renumber_others(
    name: str, part: float
) -> None:
    """Three neighbours at 40 % are zeroed, wholly or in their first half."""
    clip = CLIPS[name]
    data = bytearray(clip.path().read_bytes())
    packets = packet_positions(bytes(data))
    for position, size in packets[len(packets) * 2 // 5 :][:3]:
        data[position : position + int(size * part)] = bytes(int(size * part))
    frames = telecine.load(bytes(data))
    assert frames.info.num_frames == clip.num_frames
    reference, indices = clip.reference().frames, frames.indices
    assert [read_number(frame) for frame in frames.data] == [clip.numbers[index] for index in indices]
    assert np.abs(frames.data.astype(int) - reference[indices]).max() <= 2
    assert sorted([*indices.tolist(), *frames.report.lost]) == list(range(clip.num_frames))
    assert 1 <= len(frames.report.lost) < clip.num_frames


def test_a_zeroed_vp8_packet_is_lost_and_does_not_renumber_others() -> None:
    clip = CLIPS["vp8_plain.webm"]
    data = bytearray(clip.path().read_bytes())
    with av.open(io.BytesIO(bytes(data))) as container:
        payload = [bytes(packet) for packet in container.demux(video=0) if packet.size][20]
    at = data.index(payload)
    data[at : at + len(payload)] = bytes(len(payload))
    frames = telecine.load(bytes(data))
    assert frames.info.num_frames == clip.num_frames and 20 in frames.report.lost
    assert [read_number(frame) for frame in frames.data] == frames.indices.tolist()


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska"])
@pytest.mark.parametrize("name", ["base.mp4", "h264_pyramid.mp4", "hevc.mp4", "hevc_open_gop.mp4"])
@pytest.mark.parametrize("code", [b"\0\0\0\1", b"\0\0\1"], ids=["4 bytes", "3 bytes"])
@pytest.mark.parametrize("backend", ["pyav", "opencv"])
def test_start_codes_in_place_of_lengths_lose_no_frame(backend: str, code: bytes, name: str, container: str) -> None:
    clip = CLIPS[name]
    frames = telecine.load(with_start_codes(clip.path().read_bytes(), container, code), backend=backend)
    assert frames.indices.tolist() == list(range(clip.num_frames)) and frames.report.lost == ()
    assert np.abs(frames.data.astype(int) - clip.reference().frames).max() <= 2
    assert [note.code for note in frames.report.notes] == ["start-codes"]
