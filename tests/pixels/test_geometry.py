"""From decoded pictures to RGB at the final size: sizes, and pixels held against the ffmpeg command line."""

from __future__ import annotations

import io
import math
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg
from telecine.errors import OptionsError
from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Fit, Geometry, fit_size

SIDE = st.integers(1, 5000)


@given(SIDE, SIDE, st.integers(1, 64), st.integers(1, 4_000_000))
def test_fit_stays_within_max_pixels_in_multiples(height: int, width: int, unit: int, most: int) -> None:
    """For any shape; no side is zero."""
    assume(most >= unit * unit)
    tall, wide = Fit(most, multiple_of=unit)(height, width)
    assert tall >= unit and wide >= unit
    assert tall % unit == 0 and wide % unit == 0
    assert tall * wide <= most


@example(height=66, width=2272, unit=7, most=147_689)
@given(SIDE, SIDE, st.integers(1, 32), st.integers(10_000, 1_000_000))
def test_fit_keeps_the_aspect_ratio_as_nearly_as_multiples_allow(height: int, width: int, unit: int, most: int) -> None:
    """No side is more than one multiple off a common scale."""
    assume(max(height, width) / min(height, width) * unit * unit < most)
    tall, wide = Fit(most, multiple_of=unit)(height, width)
    # of full size is also what comes below the bound when the sides are rounded
    full = max(unit, round(height / unit) * unit) * max(unit, round(width / unit) * unit) <= most
    scale = 1.0 if full else (most / (height * width)) ** 0.5
    assume(min(height, width) * scale >= unit)
    off = max(abs(tall - height * scale), abs(wide - width * scale))
    assert off < unit + 1e-6  # a side that is a whole number of units may be rounded down by the last bit


@given(SIDE, SIDE, st.integers(1, 32), st.integers(0, 500_000), st.integers(1, 4_000_000))
def test_fit_meets_both_bounds_if_possible(height: int, width: int, unit: int, least: int, most: int) -> None:
    """The upper one always; the lower one unless the next larger size is too large."""
    assume(least <= most and most >= unit * unit)
    tall, wide = Fit(most, multiple_of=unit, min_pixels=least)(height, width)
    assert unit <= tall and unit <= wide and tall * wide <= most
    if tall * wide < least:
        grow = max(1.0, (least / (height * width)) ** 0.5)
        assert (height * grow + unit) * (width * grow + unit) > most or (tall + unit) * (wide + unit) > most


@pytest.mark.parametrize(
    ("fit", "size", "expected"),
    [
        (Fit(10**9), (480, 640), (480, 640)),
        (Fit(480 * 640), (480, 640), (480, 640)),
        (Fit(480 * 640 // 4), (480, 640), (240, 320)),
        (Fit(10**9, multiple_of=28), (480, 640), (476, 644)),
        (Fit(10**6, min_pixels=4 * 100), (10, 10), (20, 20)),
        (Fit(10**6, multiple_of=28), (10, 100_000), (28, 35_700)),  # 1275 units in a row
        (Fit(10**6, multiple_of=28), (100_000, 10), (35_700, 28)),
        (Fit(401, min_pixels=400), (3, 9), (11, 34)),
        (Fit(28 * 28, multiple_of=28), (1080, 1920), (28, 28)),
    ],
)
def test_fit_examples(fit: Fit, size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Sizes as they are to come out."""
    assert fit(*size) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_pixels": 0},
        {"max_pixels": 9, "multiple_of": 4},
        {"max_pixels": 9, "multiple_of": 0},
        {"max_pixels": 9, "min_pixels": 10},
    ],
)
def test_impossible_fit_is_refused(arguments: dict[str, int]) -> None:
    """It is refused when it is made, not when it is used."""
    with pytest.raises(OptionsError, match="cannot be met"):
        Fit(**arguments)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (None, (480, 640)),
        (240, (240, 320)),
        (1, (1, 1)),
        ((10, 20), (10, 20)),
        ([10, 20], (10, 20)),
        (Fit(1200), (30, 40)),
        (10**400, (10**400, 10**400 * 4 // 3)),
    ],
)
def test_fit_size_accepts_every_form_of_size(size: object, expected: tuple[int, int]) -> None:
    """``size`` may be None, the short side, both sides, or a rule; sizes beyond a float are left to the limits."""
    assert fit_size(size, 480, 640) == expected  # type: ignore[arg-type]


@given(SIDE, SIDE, st.integers(1, 4000))
def test_size_of_the_short_side_is_exact(height: int, width: int, short: int) -> None:
    """And the long one the nearest to the aspect ratio."""
    tall, wide = fit_size(short, height, width)
    assert min(tall, wide) == short
    assert abs(max(tall, wide) - short * max(height, width) / min(height, width)) <= 0.5


@pytest.mark.parametrize(
    "size", [0, -1, True, 1.5, "224", (0, 1), (1, -1), (1,), (1, 2, 3), (1.0, 2.0), (True, True), {}, object()]
)
def test_invalid_size_is_refused(size: object) -> None:
    """The message names the forms there are."""
    with pytest.raises(OptionsError, match="short side"):
        fit_size(size, 480, 640)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["3", 14.0, math.nan, math.inf, None, True, -1, 10**400], ids=repr)
@pytest.mark.parametrize("name", ["max_pixels", "multiple_of", "min_pixels"])
def test_fit_refuses_numbers_that_are_not_whole(name: str, value: Any) -> None:
    """And such that a size can be computed of them."""
    with pytest.raises(OptionsError, match=f"size: {name} is .*; it must be a whole number from 0 to"):
        Fit(**({"max_pixels": 10_000} | {name: value}))


def test_numpy_sizes_become_python_numbers() -> None:
    """So that what is computed of them does not overflow."""
    fit = Fit(np.int64(10_000), np.int32(14), np.uint8(196))  # type: ignore[arg-type]
    assert fit == Fit(10_000, 14, 196)
    for size in (np.int64(100), (np.int64(100), np.int16(150)), fit):
        assert [type(side) for side in fit_size(size, 480, 640)] == [int, int]  # type: ignore[arg-type]
    assert fit_size(np.int64(240), 480, 640) == (240, 320)  # type: ignore[arg-type]
    assert fit_size(Fit(2**62, min_pixels=2**61), 3, 5)[0] > 10**9


@pytest.mark.parametrize("turns", range(4))
def test_display_size_swaps_sides_for_quarter_turns(turns: int) -> None:
    """A quarter turn exchanges the sides, and a size equal to them is no resize."""
    display = (48, 64) if turns % 2 == 0 else (64, 48)
    geometry = Geometry(48, 64, turns, False, *display)
    assert geometry.display_size == display
    assert not geometry.resizes
    assert Geometry(48, 64, turns, False, 10, 10).resizes


def by_ffmpeg(name: str, filters: str, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """The first picture of a clip as the command line's filters make it; not turned by itself."""
    arguments = ["-noautorotate", "-i", CLIPS[name].path(), "-map", "0:V:0", "-frames:v", "1"]
    raw = ffmpeg([*arguments, "-vf", filters, "-f", "rawvideo", "pipe:1"])
    return np.frombuffer(raw, np.uint8).reshape(*size, 3)


def first_picture(name: str) -> av.VideoFrame:
    with av.open(str(CLIPS[name].path())) as container:
        return next(container.decode(video=0))


def convert(picture: av.VideoFrame, geometry: Geometry) -> npt.NDArray[np.uint8]:
    row = np.full((geometry.height, geometry.width, 3), 77, np.uint8)
    Converter(geometry)(picture, row)
    return row


FORMATS = {
    "h264_medium.mp4": "yuv420p",
    "h264_10bit.mp4": "yuv420p10le",
    "h264_444.mp4": "yuv444p",
    "h264_422.mp4": "yuv422p",
    "h264_gray.mp4": "yuvj420p",
    "mjpeg.avi": "yuvj420p",
    "prores.mov": "yuv422p10le",
    "odd.webm": "gbrp",
    "odd_444.mp4": "yuv444p",
    "hdr.mp4": "yuv420p10le",
    "colour_bt709_pc.mp4": "yuvj420p",
    "colour_smpte170m_tv.mp4": "yuv420p",
}
"""Clips, and the format in which their pictures are stored."""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [None, (33, 47), (300, 200), (1, 1)], ids=str)
def test_converted_pixels_equal_the_ffmpeg_command_line(name: str, size: tuple[int, int] | None) -> None:
    """Every format, at its own size, smaller, larger and odd; nothing is more than 2 off."""
    picture = first_picture(name)
    assert picture.format.name == FORMATS[name]
    tall, wide = size or (picture.height, picture.width)
    flags = "bilinear,format=gbrp" if size else "bicubic"
    expected = by_ffmpeg(name, f"scale={wide}:{tall}:flags={flags},format=rgb24", (tall, wide))
    row = convert(picture, Geometry(picture.height, picture.width, 0, False, tall, wide))
    assert np.abs(row.astype(np.int16) - expected).max() <= 2


@pytest.mark.parametrize("name", ["gray", "gray10le", "yuv420p", "yuva420p", "nv12", "yuv420p12le", "pal8", "rgb48be"])
@pytest.mark.parametrize("size", [(63, 95), (40, 31)], ids=str)
def test_further_pixel_formats_equal_the_ffmpeg_command_line(name: str, size: tuple[int, int]) -> None:
    """Grey, alpha, semi-planar, deep and palette pictures of odd size, from noise."""
    made = "-f lavfi -i testsrc=s=95x63:d=1 -frames:v 1 -pix_fmt"
    raw = ffmpeg([*made.split(), name, "-f", "rawvideo", "pipe:1"])
    scale = f"scale={size[1]}:{size[0]}:flags={'bicubic' if size == (63, 95) else 'bilinear,format=gbrp'},format=rgb24"
    given = ["-f", "rawvideo", "-pix_fmt", name, "-s", "95x63", "-i", "pipe:0"]
    expected = np.frombuffer(ffmpeg([*given, "-vf", scale, "-f", "rawvideo", "pipe:1"], raw), np.uint8)
    with av.open(
        io.BytesIO(raw), format="rawvideo", options={"pixel_format": name, "video_size": "95x63"}
    ) as container:
        picture = next(container.decode(video=0))
    row = convert(picture, Geometry(63, 95, 0, False, *size))
    assert np.abs(row.astype(np.int16) - expected.reshape(row.shape)).max() <= 2


BY_HAND = {0: "null", 1: "transpose=clock", 2: "hflip,vflip", 3: "transpose=cclock"}


@pytest.mark.parametrize("name", ["h264_medium.mp4", "h264_10bit.mp4", "odd.webm"])
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_pictures_are_rotated_before_they_are_resized(name: str, turns: int, mirrored: bool) -> None:
    """Turning and mirroring one after the other, as their names say, gives the same as the one filter used."""
    picture = first_picture(name)
    filters = f"{BY_HAND[turns]}{',hflip' if mirrored else ''},scale=50:70:flags=bilinear,format=gbrp,format=rgb24"
    expected = by_ffmpeg(name, filters, (70, 50))
    row = convert(picture, Geometry(picture.height, picture.width, turns, mirrored, 70, 50))
    assert np.abs(row.astype(np.int16) - expected).max() <= 2


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_rotation_of_even_sizes_only_rearranges_pixels(turns: int, mirrored: bool) -> None:
    """Clockwise, then mirrored left to right: pixels only change their positions."""
    picture = first_picture("h264_444.mp4")
    upright = convert(picture, Geometry(picture.height, picture.width, 0, False, picture.height, picture.width))
    expected = np.rot90(upright, -turns)
    expected = expected[:, ::-1] if mirrored else expected
    geometry = Geometry(picture.height, picture.width, turns, mirrored, *expected.shape[:2])
    assert np.abs(convert(picture, geometry).astype(np.int16) - expected).max() <= 1


@pytest.mark.parametrize("size", [(50, 70), (144, 192)], ids=["resized", "as it is"])
def test_planar_output_has_the_same_pixels(size: tuple[int, int]) -> None:
    """A view of three planes is filled like a packed row."""
    picture = first_picture("h264_medium.mp4")
    geometry = Geometry(picture.height, picture.width, 0, False, *size)
    planes = np.empty((3, *size), np.uint8)
    Converter(geometry, planar=True)(picture, planes.transpose(1, 2, 0))
    assert np.array_equal(planes.transpose(1, 2, 0), convert(picture, geometry))


def test_converter_accepts_changing_picture_formats() -> None:
    """Size, format and tags may change at any key frame; every picture is converted by its own."""
    names = ["h264_medium.mp4", "h264_10bit.mp4", "mjpeg.avi", "odd.webm", "h264_medium.mp4"]
    converter = Converter(Geometry(144, 192, 0, False, 60, 80))
    for name in names:
        row = np.empty((60, 80, 3), np.uint8)
        converter(first_picture(name), row)
        expected = by_ffmpeg(name, "scale=80:60:flags=bilinear,format=gbrp,format=rgb24", (60, 80))
        assert np.abs(row.astype(np.int16) - expected).max() <= 2, name
    assert converter.sizes == {(144, 192), (63, 95)}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 3), st.booleans())
def test_converter_output_has_exactly_the_requested_size(height: int, width: int, turns: int, mirrored: bool) -> None:
    """The row is filled to its last pixel and flat colour stays flat."""
    picture = first_picture("colour_bt709_tv.mp4")
    row = convert(picture, Geometry(picture.height, picture.width, turns, mirrored, height, width))
    assert np.abs(row.astype(int) - (190, 62, 30)).max() <= 3
