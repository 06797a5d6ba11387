"""Pictures that OpenCV and TorchCodec convert in another way than FFmpeg are refused; all others are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg


def load(backend: str, path: Path) -> telecine.Frames:
    pytest.importorskip({"opencv": "cv2", "torchcodec": "torchcodec"}[backend])
    return telecine.load(path, backend=backend)


@pytest.mark.parametrize("turn", [0, 90, 180])
@pytest.mark.parametrize(
    "pixel_format", "yuv420p yuvj420p yuv422p yuv444p yuv420p10le yuv422p10le yuv444p10le gray".split()
)
@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_turned_pictures_are_right_or_refused(backend: str, pixel_format: str, turn: int, tmp_path: Path) -> None:
    stored, path = tmp_path / "stored.mp4", tmp_path / "turned.mp4"
    source = "-f lavfi -i testsrc2=size=190x142:rate=10:duration=0.3 -c:v libx264 -preset ultrafast -pix_fmt"
    ffmpeg([*source.split(), pixel_format, stored])
    ffmpeg(["-display_rotation", str(turn), "-i", stored, "-c", "copy", path])
    is_deep = pixel_format in ("yuv420p10le", "yuv422p10le")
    if (is_deep and (backend == "opencv" or turn)) or (pixel_format == "yuv422p" and turn == 90):
        with pytest.raises(telecine.UnsupportedVideoError, match="use backend='pyav'"):
            load(backend, path)
    else:
        difference = load(backend, path).data.astype(int) - telecine.load(path).data
        assert np.abs(difference).max() <= 2


@pytest.mark.parametrize("primaries", [1, 2, 5, 6, 9, 11, 12])
@pytest.mark.parametrize("transfer", [1, 2, 14, 16, 18])
@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_wide_gamut_and_hdr_are_right_or_refused(backend: str, transfer: int, primaries: int, tmp_path: Path) -> None:
    path = tmp_path / "tagged.mp4"
    tags = f"h264_metadata=colour_primaries={primaries}:transfer_characteristics={transfer}:matrix_coefficients=2"
    ffmpeg(["-i", CLIPS["base.mp4"].path(), "-t", "0.3", "-c", "copy", "-bsf:v", tags, path])
    if backend == "opencv" and (primaries > 7 or transfer in (16, 18)):
        with pytest.raises(telecine.UnsupportedVideoError, match="HDR or wide-gamut"):
            load(backend, path)
    else:
        difference = load(backend, path).data.astype(int) - telecine.load(path).data
        assert np.abs(difference).max() <= 2


@pytest.mark.parametrize("matrix", ["bt709", "bt470bg", "bt2020nc"])
@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [("ffv1", "yuv420p"), ("libvpx-vp9", "yuv444p"), ("libx264", "yuv444p10le"), ("libx264", "yuv420p")],
)
@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_full_range_is_right_or_refused(
    backend: str, codec: str, pixel_format: str, matrix: str, tmp_path: Path
) -> None:
    path, tags = tmp_path / "full.mkv", ["-color_range", "pc", "-colorspace", matrix]
    source = "-f lavfi -i testsrc2=size=192x144:rate=10:duration=0.3".split()
    ffmpeg([*source, "-pix_fmt", pixel_format, *tags, "-c:v", codec, *tags, path])
    assert telecine.probe(path).color_range == "pc"
    if backend == "torchcodec" and not telecine.probe(path).pixel_format.startswith("yuvj"):
        with pytest.raises(telecine.UnsupportedVideoError, match="full range"):
            load(backend, path)
    else:
        difference = load(backend, path).data.astype(int) - telecine.load(path).data
        assert np.abs(difference).max() <= 2
