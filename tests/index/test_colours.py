"""Colours of bitstream and container that agree, contradict each other or are missing, by codec and container.

Pixels are compared with the ffmpeg command line, and the tags that :func:`telecine.probe` tells with those of the
decoder's first picture, by which pixels are converted.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.ffmpeg_cli import ffmpeg, reference_frames
from telecine.bitstream.h273 import MATRICES, RANGES
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.limits import Limits
from telecine.source.source import open_source

_REST = "colour_primaries=2:transfer_characteristics=2"
ENCODERS = {
    "h264": ("libx264", f"h264_metadata=matrix_coefficients={{code}}:{_REST}:video_full_range_flag={{full}}"),
    "hevc": (
        "libx265 -x265-params log-level=error",
        f"hevc_metadata=matrix_coefficients={{code}}:{_REST}:video_full_range_flag={{full}}",
    ),
    "vp8": ("libvpx -cpu-used 8 -deadline realtime", None),
    "vp9": ("libvpx-vp9 -cpu-used 8 -deadline realtime", "vp9_metadata=color_space={vp9}:color_range={range}"),
    "av1": (
        "libsvtav1 -preset 12",
        f"av1_metadata=matrix_coefficients={{code}}:{_REST.replace('colour', 'color')}:color_range={{range}}",
    ),
    "mpeg2": ("mpeg2video", f"mpeg2_metadata=matrix_coefficients={{code}}:{_REST}"),
    "mpeg4": ("mpeg4", None),
    "prores": ("prores_ks", None),
    "mjpeg": ("mjpeg", None),
    "ffv1": ("ffv1", None),
}
"""Encoder, and the filter that writes colours into the bitstream; None if there is no such filter."""
PIXELS = {"prores": "yuv422p10le", "mjpeg": "yuvj420p"}
CODES = {"bt709": {"code": 1, "vp9": "bt709"}, "bt470bg": {"code": 5, "vp9": "bt601"}}
CONTAINERS = {
    "mp4": "h264 hevc vp9 av1 mpeg2 mpeg4 mjpeg",
    "mov": "h264 hevc mpeg2 mpeg4 prores mjpeg",
    "mkv": "h264 hevc vp8 vp9 av1 mpeg2 mpeg4 prores mjpeg ffv1",
    "webm": "vp8 vp9 av1",
    "avi": "mpeg2 mpeg4 mjpeg ffv1 vp8",
    "ts": "h264 hevc mpeg2",
    "nut": "h264 vp8 vp9 mpeg4 ffv1",
}
TAGS = [(inside, outside) for inside in (None, "bt709", "bt470bg") for outside in (None, "bt709", "bt470bg")]
CASES = [
    (codec, container, inside, outside)
    for container, codecs in CONTAINERS.items()
    for codec in codecs.split()
    for inside, outside in TAGS
    if inside is None or ENCODERS[codec][1] is not None
]


@cache
def encoded(codec: str, folder: Path) -> Path:
    """Return a clip without colours."""
    path = folder / f"{codec}.mkv"
    source = f"-f lavfi -i testsrc2=size=96x64:rate=25:duration=0.12 -pix_fmt {PIXELS.get(codec, 'yuv420p')}"
    ffmpeg([*source.split(), "-c:v", *ENCODERS[codec][0].split(), path])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("colours")


def first_picture(path: Path) -> Any:
    """Return the first picture of the decoder that the package makes."""
    deadline = Deadline()
    with open_source(str(path), Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        decoder = demuxer.new_decoder(Limits.max_pixels)
        for packet in demuxer.packets():
            if pictures := decoder.decode(packet):
                return pictures[0]
        return decoder.decode(None)[0]


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize(("codec", "container", "inside", "outside"), CASES)
def test_pixels_and_probe_use_the_same_colours(
    folder: Path, codec: str, container: str, inside: str | None, outside: str | None, full: bool
) -> None:
    """``inside`` are those of the bitstream, ``outside`` those that the muxer is told."""
    arguments: list[str] = []
    levels = "pc" if full else "tv"
    if inside is not None:
        filter_options = str(ENCODERS[codec][1]).format(**CODES[inside], full=int(full), range=levels)
        arguments += ["-bsf:v", filter_options]
    if outside is not None:
        arguments += ["-colorspace:v", outside, "-color_range:v", levels]
    path = folder / f"{codec}_{inside}_{outside}_{levels}.{container}"
    ffmpeg(["-i", encoded(codec, folder), "-c", "copy", *arguments, path])
    frames = telecine.load(path)
    assert np.abs(frames.data.astype(int) - reference_frames(path)).max() <= 2
    picture = first_picture(path)
    decoded = MATRICES.get(int(picture.colorspace), "unknown"), RANGES.get(int(picture.color_range), "unknown")
    assert (frames.info.color_space, frames.info.color_range) == decoded
