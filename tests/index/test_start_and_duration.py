"""Start time and duration of a video, and times where the container has decoding times only, or none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import telecine
from support.ffmpeg_cli import ffmpeg, reference

_DEFAULT_DURATION = bytes.fromhex("23e38384")
"""ID and size of the Matroska element, which has four bytes of nanoseconds."""
_B_FRAMES = {"libx264": "3", "mpeg4": "2", "mpeg2video": "2"}
"""With fewer, H.264 delays pictures less than its headers announce, on which FFmpeg relies if there are no pts."""


def _encode(target: Path, *options: str, rate: int = 25) -> Path:
    source = ["-f", "lavfi", "-i", f"testsrc2=size=96x64:rate={rate}", "-frames:v", "30", "-pix_fmt", "yuv420p"]
    ffmpeg([*source, *options, str(target)])
    return target


@pytest.mark.parametrize("offset", ["0", "3"])
@pytest.mark.parametrize(
    ("codec", "container"),
    [(codec, container) for codec in ("libx264", "mpeg4") for container in ("avi", "asf", "vob", "mpegts", "matroska")]
    # of MPEG-2 in ASF, FFmpeg gives two pictures the same time
    + [("mpeg2video", "avi"), ("mpeg2video", "vob"), ("mpeg2video", "mpegts"), ("libx264", "flv")],
)
def test_start_and_times_are_those_of_ffmpeg(tmp_path: Path, codec: str, container: str, offset: str) -> None:
    file = _encode(
        tmp_path / "clip", "-c:v", codec, "-bf", _B_FRAMES[codec], "-output_ts_offset", offset, "-f", container
    )
    expected = reference(file)
    with telecine.open(file) as video:
        assert video.info.start_time == pytest.approx(float(expected.pts[0] or 0), abs=1e-6)
        assert video.timeline.seconds().tolist() == pytest.approx(expected.seconds, abs=1e-6)


@pytest.mark.parametrize("container", ["avi", "asf"])
@pytest.mark.parametrize("b_frames", ["1", "2"])
def test_packed_b_frames_behind_an_empty_chunk_have_even_times(tmp_path: Path, b_frames: str, container: str) -> None:
    file = _encode(tmp_path / "clip", "-c:v", "libxvid", "-bf", b_frames, "-f", container, rate=24)
    expected = reference(file)
    with telecine.open(file) as video:
        assert not video.info.variable_frame_rate
        assert video.info.average_fps == pytest.approx(24, rel=2e-3)
        assert video.info.start_time == pytest.approx(float(expected.pts[0] or 0), abs=2e-3)


@pytest.mark.parametrize("factor", [0.1, 3, 10])
@pytest.mark.parametrize("codec", ["libx264", "libvpx"])
def test_the_duration_is_that_of_the_packets(tmp_path: Path, codec: str, factor: float) -> None:
    data = bytearray(_encode(tmp_path / "clip.mkv", "-c:v", codec).read_bytes())
    at = data.index(_DEFAULT_DURATION) + len(_DEFAULT_DURATION)
    data[at : at + 4] = round(40_000_000 * factor).to_bytes(4, "big")
    assert telecine.probe(bytes(data)).duration == pytest.approx(1.2)


def test_a_long_last_frame_counts(tmp_path: Path) -> None:
    durations = "setts=duration=if(eq(N\\,29)\\,50*DURATION\\,DURATION)"
    file = _encode(tmp_path / "clip.mp4", "-c:v", "mjpeg", "-bsf:v", durations)
    assert telecine.probe(file).duration == pytest.approx(29 / 25 + 2)


def _telecined(stream: bytes, phase: int) -> bytes:
    """Return MPEG-2 video in which pictures last three and two fields in turn (ISO/IEC 13818-2, 6.3.10)."""
    data = bytearray(stream)
    for sequence in re.finditer(rb"\x00\x00\x01\xb5[\x10-\x1f]", stream):
        data[sequence.start() + 5] &= ~0x08  # progressive_sequence
    headers = [found.start() for found in re.finditer(rb"\x00\x00\x01\x00", stream)]
    extensions = [found.start() for found in re.finditer(rb"\x00\x00\x01\xb5[\x80-\x8f]", stream)]
    group, orders = 0, []
    for at in headers:
        group += (stream[at + 5] >> 3) & 7 == 1  # picture_coding_type
        orders.append((group, stream[at + 4] << 2 | stream[at + 5] >> 6))  # temporal_reference
    for position, picture in enumerate(sorted(range(len(orders)), key=orders.__getitem__)):
        top_first, repeats = [(1, 0), (1, 1), (0, 0), (0, 1)][(position + phase) % 4]
        at = extensions[picture]
        data[at + 6] |= 3  # picture_structure: a frame
        data[at + 7] = data[at + 7] & ~0x82 | top_first << 7 | repeats << 1
        data[at + 8] |= 0x80  # progressive_frame
    return bytes(data)


@pytest.mark.parametrize("phase", range(4))
@pytest.mark.parametrize("b_frames", ["0", "1", "2", "3"])
def test_repeated_fields_of_raw_video_have_the_times_of_ffmpeg(tmp_path: Path, b_frames: str, phase: int) -> None:
    raw = _encode(tmp_path / "film.m2v", "-c:v", "mpeg2video", "-bf", b_frames, "-g", "12", "-r", "30000/1001")
    file = tmp_path / "telecined.m2v"
    file.write_bytes(_telecined(raw.read_bytes(), phase))
    with telecine.open(file) as video:
        assert video.timeline.seconds().tolist() == pytest.approx(reference(file).seconds, abs=1e-6)
        assert video.info.start_time == 0


def _without_times(file: Path) -> bytes:
    """Return an FLV file with all timestamps 0."""
    data = bytearray(file.read_bytes())
    at = 9 + 4
    while at < len(data):
        data[at + 4 : at + 8] = bytes(4)
        at += 11 + int.from_bytes(data[at + 1 : at + 4], "big") + 4
    return bytes(data)


@pytest.mark.parametrize("rate", [10, 30, 60])
@pytest.mark.parametrize("codec", ["libx264", "libx265", "flv"])
def test_flv_without_times_has_the_rate_of_its_headers(tmp_path: Path, codec: str, rate: int) -> None:
    file = _encode(tmp_path / "clip.flv", "-c:v", codec, rate=rate)
    with telecine.open(_without_times(file)) as video:
        assert video.timeline.seconds().tolist() == pytest.approx([i / rate for i in range(30)], abs=1e-3)
        assert not video.info.variable_frame_rate
        assert video.info.notes[0].code == "times-rebuilt"
