"""Ogg files that were joined into a chain (RFC 3533, section 4), or that lack pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import telecine
from support.ffmpeg_cli import ffmpeg, reference
from telecine.container.ogg_pages import find_ogg_gaps

_THEORA = ["-c:v", "libtheora", "-g", "6", "-q:v"]
_VP8 = ["-c:v", "libvpx", "-g", "6", "-auto-alt-ref", "0", "-crf"]


def _link(folder: Path, *options: str, size: str = "192x144") -> bytes:
    target = folder / "link.ogg"
    source = ["-f", "lavfi", "-i", f"testsrc2=size={size}:rate=25", "-frames:v", "20", "-pix_fmt", "yuv420p"]
    ffmpeg([*source, *options, "-f", "ogg", str(target)])
    return target.read_bytes()


@pytest.mark.parametrize("size", ["192x144", "128x96"])
@pytest.mark.parametrize("quality", ["4", "7"])
@pytest.mark.parametrize("codec", [_THEORA, _VP8], ids=["theora", "vp8"])
def test_headers_of_a_chained_ogg_file_are_no_frames(tmp_path: Path, codec: list[str], quality: str, size: str) -> None:
    first, second = _link(tmp_path, *codec, "7"), _link(tmp_path, *codec, quality, size=size)
    file = tmp_path / "chain.ogg"
    file.write_bytes(first + second + first)
    expected = reference(file).frames
    frames = telecine.load(file)
    assert len(expected) == len(frames) == frames.info.num_frames == 60
    assert frames.report.lost == ()
    assert np.abs(frames.data.astype(int) - expected).max() <= 2
    assert frames.timestamps.tolist() == pytest.approx([i / 25 for i in range(60)])
    for index in (47, 8, 33, 21, 5):  # each alone, so that decoding starts in every link
        picture = telecine.load(file, indices=[index]).data[0]
        assert np.abs(picture.astype(int) - expected[index]).max() <= 2, index


def _pages(data: bytes) -> list[tuple[int, int]]:
    """Return (start, end) of each page."""
    found, at = [], 0
    while at < len(data):
        num_segments = data[at + 26]
        end = at + 27 + num_segments + sum(data[at + 27 : at + 27 + num_segments])
        found.append((at, end))
        at = end
    return found


@pytest.mark.parametrize("damage", ["checksum", "removed"])
@pytest.mark.parametrize("size", ["192x144", "640x480"])
@pytest.mark.parametrize("codec", [_THEORA, _VP8], ids=["theora", "vp8"])
def test_frames_after_a_damaged_ogg_page_have_their_own_time(
    tmp_path: Path, codec: list[str], size: str, damage: str
) -> None:
    data = _link(tmp_path, *codec, "9", "-page_duration", "100000", size=size)
    whole = telecine.load(data)
    known = {round(1000 * time): picture for time, picture in zip(whole.timestamps, whole.data, strict=True)}
    num_lost = 0
    for start, end in _pages(data)[3::3]:  # behind the headers
        wrong = bytearray(data)
        if damage == "removed":
            del wrong[start:end]
        else:
            wrong[start + 22] ^= 1
        frames = telecine.load(bytes(wrong))
        num_lost += len(whole) - len(frames)
        for time, picture in zip(frames.timestamps, frames.data, strict=True):
            np.testing.assert_array_equal(picture, known[round(1000 * (time + frames.info.start_time))])
    assert num_lost


def test_an_ogg_file_of_false_page_headers_is_read_quickly() -> None:
    header = b"OggS" + bytes(22) + b"\xff" + b"\xff" * 255
    data = memoryview(header * 20_000)
    checks: list[int] = []
    assert find_ogg_gaps(data, [0], lambda: checks.append(1)) == []
