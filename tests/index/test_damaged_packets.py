"""Destroyed packets keep their place: damage never renumbers frames."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from support.ffmpeg_cli import ffmpeg
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


@pytest.mark.parametrize("container", ["webm", "ivf", "avi"])
@pytest.mark.parametrize("backend", ["pyav", "opencv"])
@pytest.mark.parametrize("damage", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_a_destroyed_hidden_frame_costs_what_refers_to_it_and_renumbers_nothing(
    damage: bytes, backend: str, container: str, tmp_path: Path
) -> None:
    """VP8: FFmpeg's decoder refuses the packet, and decodes what follows from the wrong reference."""
    clip, path = CLIPS["vp8_altref.webm"], tmp_path / f"clip.{container}"
    ffmpeg(["-i", clip.path(), "-c", "copy", path])
    with av.open(str(path)) as source:
        packets = [bytes(packet) for packet in source.demux(video=0) if packet.size]
    hidden = [number for number, packet in enumerate(packets) if not packet[0] & 0x10]
    assert len(hidden) > 4
    for number in hidden[:3]:
        data = path.read_bytes()
        assert data.count(packets[number]) == 1
        data = data.replace(packets[number], damage * len(packets[number]))
        frames = telecine.load(data, backend=backend)
        assert frames.info.num_frames == clip.num_frames
        assert sorted([*frames.indices.tolist(), *frames.report.lost]) == list(range(clip.num_frames))
        assert 3 < len(frames.report.lost) < 30
        assert np.abs(frames.data.astype(int) - clip.reference().frames[frames.indices]).max() <= 2
        with pytest.raises(telecine.DecodeError):
            telecine.load(data, backend=backend, errors="strict")


@pytest.mark.parametrize("name", ["base.mp4", "hevc.mp4", "vp9_altref.mp4", "mpeg4.mp4", "av1_svt.mp4"])
@pytest.mark.parametrize("damage", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_a_destroyed_packet_that_an_edit_list_hides_costs_what_refers_to_it(
    damage: bytes, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "trimmed.mp4"
    ffmpeg(["-ss", "0.35", "-i", CLIPS[name].path(), "-c", "copy", path])
    data = path.read_bytes()
    whole = telecine.load(data)
    packets = packet_positions(data)
    assert len(packets) - len(whole) > 5  # hidden ones
    position, size = packets[2]
    frames = telecine.load(data[:position] + damage * size + data[position + size :])
    assert frames.info.num_frames == len(whole) and frames.report.lost
    np.testing.assert_array_equal(frames.data, whole.data[frames.indices])


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


# flags and times of the container


@pytest.mark.parametrize("codec", ["h263", "flv1", "svq1", "qtrle", "rpza", "cinepak", "mpeg4", "h264"])
def test_false_disposable_flags_of_the_container_skip_nothing(tmp_path: Path, codec: str) -> None:
    """A ``sdtp`` box that says of every second sample that no other depends on it."""
    encoders = {"h264": "libx264", "h263": "h263", "flv1": "flv"}
    path = tmp_path / "clip.mov"
    size, pixels = (
        "352x288" if codec == "h263" else "160x96",
        {"qtrle": "rgb24", "rpza": "rgb555le"}.get(codec, "yuv420p"),
    )
    pixels = {"svq1": "yuv410p", "cinepak": "rgb24"}.get(codec, pixels)
    source = f"-f lavfi -i testsrc2=size={size}:rate=25:duration=1 -c:v {encoders.get(codec, codec)}"
    ffmpeg([*source.split(), "-pix_fmt", pixels, "-g", "12", "-bf", "0", path])
    data = path.read_bytes()
    plain = telecine.load(data)
    flags = struct.pack(">I4sI", 12 + 25, b"sdtp", 0) + b"".join(bytes([0x08 if i % 2 else 0x10]) for i in range(25))
    frames = telecine.load(with_box_in(data, b"stbl", flags), indices=[5, 10, 20])
    np.testing.assert_array_equal(frames.data, plain.data[[5, 10, 20]])


def with_box_in(data: bytes, kind: bytes, box: bytes) -> bytes:
    """Append a box to the first one of a kind; the movie box is the last in the file."""
    edited, at = bytearray(data), data.index(kind, data.index(b"moov")) - 4
    end = at + int.from_bytes(data[at : at + 4], "big")
    edited[end:end] = box
    for parent in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        start = data.index(parent, data.index(b"moov")) - 4
        edited[start : start + 4] = (int.from_bytes(data[start : start + 4], "big") + len(box)).to_bytes(4, "big")
    return bytes(edited)


def test_a_destroyed_first_packet_of_vp9_with_layers_does_not_make_later_frames_wrong() -> None:
    clip = CLIPS["vp9_layers.webm"]
    data = bytearray(clip.bytes())
    with av.open(io.BytesIO(bytes(data))) as container:
        first = next(bytes(packet) for packet in container.demux(video=0))
    data[data.index(first)] = 0
    for options in ({}, {"indices": [20, 26, 31]}):
        frames = telecine.load(bytes(data), **options)
        assert [read_number(frame) for frame in frames.data] == frames.indices.tolist()
        assert 20 in frames.report.lost and 26 in frames.indices


@pytest.mark.parametrize("start", [1 << 63, (1 << 63) - 1, 1 << 62])
def test_absurd_times_of_a_fragment_are_damage(start: int, tmp_path: Path) -> None:
    """``tfdt`` of 64 bits: no negative time, no overflow."""
    path = tmp_path / "fragments.mp4"
    ffmpeg(["-i", CLIPS["h264_no_b.mp4"].path(), "-c", "copy", "-movflags", "frag_keyframe+empty_moov", path])
    data = bytearray(path.read_bytes())
    at = data.index(b"tfdt")
    assert data[at + 4] == 1  # version: 64 bits
    data[at + 8 : at + 16] = start.to_bytes(8, "big")
    try:
        frames = telecine.load(bytes(data))
    except telecine.SourceError:
        return  # FFmpeg refuses some of these files
    # FFmpeg drops packets whose time it cannot represent
    assert len(frames) >= 36 and (np.diff(frames.timestamps) > 0).all()
    assert frames.timestamps[0] == 0 and frames.info.duration < 100 and abs(frames.info.start_time) < 1e10
    assert telecine.load(bytes(data), timestamps=[0.5]).indices.tolist() == [15]
