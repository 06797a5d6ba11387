"""Slices of H.264 and HEVC in MP4 that were overwritten with zeros, which decoders may take for valid ones."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference_frames
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.nal import has_zeroed_slice, nal_length_size

_ENCODERS = {
    "reordered": "-c:v libx264 -g 30 -bf 2",
    "no B-pictures": "-c:v libx264 -g 30 -bf 0",
    "several slices": "-c:v libx264 -g 30 -bf 2 -x264-params slices=4",
    "hevc": "-c:v libx265 -g 30 -x265-params log-level=none",
}


def _clip(folder: Path, encoder: str) -> tuple[Path, list[tuple[int, int]]]:
    """Return a clip of large pictures, and (position, size) of its packets."""
    clip = folder / "whole.mp4"
    source = "testsrc2=s=640x480:r=25:d=2"
    ffmpeg(["-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p", *encoder.split(), str(clip)])
    with av.open(str(clip)) as file:
        return clip, [(int(packet.pos or 0), packet.size) for packet in file.demux(video=0) if packet.size]


@pytest.mark.parametrize("backend", ["pyav", "opencv"])
@pytest.mark.parametrize("encoder", _ENCODERS.values(), ids=_ENCODERS.keys())
def test_no_frame_with_zeros_inside_a_slice_is_returned(tmp_path: Path, encoder: str, backend: str) -> None:
    if backend == "opencv":
        pytest.importorskip("cv2")
    clip, packets = _clip(tmp_path, encoder)
    known = reference_frames(clip)
    for number in (0, 30, 41):
        position, size = packets[number]
        data = bytearray(clip.read_bytes())
        at = position + size // 2
        data[at : at + size // 4] = bytes(size // 4)
        frames = telecine.load(bytes(data), backend=backend)
        assert frames.report.lost, f"packet {number}"
        assert frames.info.num_frames == len(known)
        assert np.abs(frames.data.astype(int) - known[frames.indices]).max() <= 2, f"packet {number}"
        with pytest.raises(telecine.DecodeError, match="could not be decoded"):
            telecine.load(bytes(data), backend=backend, errors="strict")


def test_3000_zeros_in_an_mp4_lose_only_what_they_destroy(tmp_path: Path) -> None:
    clip, _ = _clip(tmp_path, _ENCODERS["reordered"])
    known = reference_frames(clip)
    whole = clip.read_bytes()
    for part in (0.2, 0.3, 0.4, 0.55, 0.7, 0.85):
        data, at = bytearray(whole), int(len(whole) * part)
        data[at : at + 3000] = bytes(3000)
        frames = telecine.load(bytes(data))
        assert frames.info.num_frames == len(known)
        assert len(frames) + len(frames.report.lost) == len(known)
        assert np.abs(frames.data.astype(int) - known[frames.indices]).max() <= 2, part


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi"])
@pytest.mark.parametrize(
    "name", ["h264_pyramid.mp4", "hevc.mp4", "hevc_open_gop.mp4", "vp9_altref.mp4", "av1_svt.mp4", "mpeg4.mp4"]
)
def test_zeros_from_inside_a_packet_into_the_next_ones_destroy_it_too(tmp_path: Path, name: str, suffix: str) -> None:
    """Decoders may take a packet whose end was overwritten for a whole one."""
    clip, path = CLIPS[name], tmp_path / f"clip.{suffix}"
    if suffix == "avi" and not name.startswith(("h264", "mpeg4")):
        pytest.skip("FFmpeg does not write this codec to AVI")
    ffmpeg(["-i", clip.path(), "-c", "copy", path])
    whole = telecine.load(path, errors="strict")
    with av.open(str(path)) as file:
        packets = [(int(packet.pos or 0), packet.size) for packet in file.demux(video=0) if packet.size > 200]
    for position, size in packets[1 : -4 : max(1, len(packets) // 8)]:
        data, at = bytearray(path.read_bytes()), position + size * 3 // 4
        data[at : position + size + 600] = bytes(position + size + 600 - at)
        try:
            frames = telecine.load(bytes(data))
        except telecine.DecodeError:
            continue
        except telecine.SourceError:
            assert suffix != "mp4"
            continue
        assert frames.report.lost or frames.info.num_frames < len(whole)
        if suffix == "mp4":
            assert frames.info.num_frames == len(whole)
            np.testing.assert_array_equal(frames.data, whole.data[frames.indices])


@pytest.mark.parametrize(
    "name", [name for name in CLIPS if name.startswith(("h264", "hevc")) and name.endswith(".mp4")]
)
def test_no_slice_of_an_undamaged_clip_counts_as_zeroed(name: str) -> None:
    with av.open(str(CLIPS[name].path())) as file:
        context = file.streams.video[0].codec_context
        size = nal_length_size(context.name, bytes(context.extradata or b""))
        assert size == 4
        assert not any(has_zeroed_slice(context.name, bytes(packet), size) for packet in file.demux(video=0))


def _unit(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("codec", "slice_", "message"), [("h264", b"\x65", b"\x06\x05"), ("hevc", b"\x26\x01", b"\x4e\x01")]
)
def test_only_zeros_inside_a_slice_count(codec: str, slice_: bytes, message: bytes) -> None:
    good = _unit(slice_ + b"abc\0\0\3\0\0\3\1")
    assert not has_zeroed_slice(codec, good, 4)
    assert has_zeroed_slice(codec, good + _unit(slice_ + b"abc" + bytes(16) + b"z"), 4)
    assert not has_zeroed_slice(codec, _unit(slice_ + b"abc" + bytes(3000)), 4), "padding at the end"
    assert not has_zeroed_slice(codec, _unit(message + b"abc" + bytes(16) + b"z") + good, 4), "a message"
    assert not has_zeroed_slice(codec, b"\0\0\0\1" + slice_ + b"abc" + bytes(16) + b"z", 0), "start codes"
    extradata = bytes([1, 100, 0, 40, 0xFF, 0xE0]) if codec == "h264" else bytes([1, *[0] * 20, 3, 0])
    assert AnnexBConverter(codec, extradata).convert(_unit(slice_ + b"abc" + bytes(16) + b"z"), False, False) is None
