"""Formats of cameras that are read, and formats that are refused by their name."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference

_DAHUA_CODECS = {"h264": 4, "hevc": 12, "mjpeg": 3}


def _encode(target: Path, *options: str, size: str = "192x144") -> Path:
    source = ["-f", "lavfi", "-i", f"testsrc2=size={size}:rate=25", "-frames:v", "20", "-pix_fmt", "yuv420p"]
    ffmpeg([*source, *options, str(target)])
    return target


def _dahua(packets: Sequence[av.Packet], codec: int) -> bytes:
    """Return a DHAV file, the recordings of Dahua's cameras, at 25 fps and 192x144, as FFmpeg's demuxer reads it."""
    file = b""
    for number, packet in enumerate(packets):
        extensions = bytes([0x81, 0, codec, 25, 0x80, 0, 192 // 8, 144 // 8])
        length = 24 + len(extensions) + packet.size + 8
        file += b"DHAV" + bytes([0xFD if packet.is_keyframe else 0xFC, 0, 0, 0])
        file += struct.pack("<III", number, length, 0x5A000000)  # date: seconds, minutes and more in bit fields
        file += struct.pack("<HBB", 40 * number, len(extensions), 0) + extensions
        file += bytes(packet) + b"dhav" + struct.pack("<I", length)
    return file


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("h264", ["-c:v", "libx264", "-bf", "0", "-g", "8"]),
        ("hevc", ["-c:v", "libx265", "-x265-params", "log-level=error:bframes=0"]),
        ("mjpeg", ["-c:v", "mjpeg"]),
    ],
)
def test_dahua_recordings_are_read(tmp_path: Path, codec: str, options: list[str]) -> None:
    with av.open(_encode(tmp_path / f"raw.{codec}", *options)) as raw:
        packets = [packet for packet in raw.demux(video=0) if packet.size]
    file = tmp_path / "camera.dav"
    file.write_bytes(_dahua(packets, _DAHUA_CODECS[codec]))
    expected = reference(file)
    frames = telecine.load(file)
    assert len(frames) == len(expected.frames) == 20 and frames.info.container == "dhav"
    assert np.abs(frames.data.astype(int) - expected.frames).max() <= 2
    assert frames.timestamps.tolist() == pytest.approx(expected.seconds)
    assert np.array_equal(telecine.load(file, indices=[13]).data[0], frames.data[13])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("WebP", ["-c:v", "libwebp_anim", "-f", "webp"]),
        ("RealMedia", ["-c:v", "rv20", "-f", "rm"]),
        ("GXF", ["-c:v", "mpeg2video", "-f", "gxf"]),
        ("multipart MJPEG", ["-c:v", "mjpeg", "-f", "mpjpeg"]),
        ("JPEG", ["-c:v", "mjpeg", "-frames:v", "1", "-f", "image2", "-update", "1"]),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, name: str, options: list[str]) -> None:
    file = _encode(tmp_path / "file", *options, size="720x576")
    with pytest.raises(telecine.SourceError, match=f"{name} is not read; convert it"):
        telecine.probe(file)


def test_raw_vvc_is_refused_by_name() -> None:
    with pytest.raises(telecine.SourceError, match="raw VVC is not read"):
        telecine.probe(bytes.fromhex("00000001 0079 000d 0200 8000") + bytes(range(1, 200)))


def test_a_motion_photo_is_refused_with_the_position_of_its_video(tmp_path: Path) -> None:
    options = ["-c:v", "mjpeg", "-frames:v", "1", "-f", "image2", "-update", "1"]
    photo = _encode(tmp_path / "photo.jpg", *options).read_bytes()
    video = CLIPS["h264_pyramid.mp4"].path().read_bytes()
    with pytest.raises(telecine.SourceError, match=f"motion photo.* give the bytes from {len(photo)} on"):
        telecine.probe(photo + video)
    assert telecine.probe((photo + video)[len(photo) :]).num_frames == 60
