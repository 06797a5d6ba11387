"""Ogg files that were joined into a chain (RFC 3533, section 4)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import telecine
from support.ffmpeg_cli import ffmpeg, reference

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
