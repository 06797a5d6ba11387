"""Contact sheets: every frame in order, with its caption, for any number and shape."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.clips import CLIPS
from telecine import OptionsError, load
from telecine.contact_sheet import contact_sheet


def plain_frames(count, height=36, width=64):
    """Return frames of one colour each, all different and none like the background."""
    low, high = np.arange(count) % 16, np.arange(count) // 16 % 16
    colours = np.stack([low * 8 + 100, high * 8 + 100, np.full(count, 250)], -1)
    return np.broadcast_to(colours[:, None, None].astype(np.uint8), (count, height, width, 3))


def sheet_of(count, height=36, width=64, **options):
    return contact_sheet(plain_frames(count, height, width), range(count), np.arange(count) / 25, **options)


def colours_in_order(sheet):
    """Return the colours of the pictures, row by row. They have much blue; text and background have none."""
    pixels = np.asarray(sheet).reshape(-1, 3)
    of_pictures = pixels[pixels[:, 2] == 250]
    _, first = np.unique(of_pictures, axis=0, return_index=True)
    return [tuple(of_pictures[i].tolist()) for i in sorted(first)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 16, 100])
def test_sheet_shows_every_frame_in_the_given_order(count):
    frames = plain_frames(count)
    sheet = sheet_of(count)
    assert sheet.mode == "RGB" and sheet.width == 1280
    assert colours_in_order(sheet) == [tuple(frame[0, 0].tolist()) for frame in frames]


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (16, 16), (1920, 1080), (64, 2000), (7, 5)], ids=str)
@pytest.mark.parametrize("count", [1, 5])
def test_sheet_accepts_frames_of_any_shape(count, shape):
    sheet = sheet_of(count, *shape)
    assert sheet.width == 1280 and sheet.height <= 1280 * (count + 1)
    assert len(colours_in_order(sheet)) == count


def test_a_sheet_of_a_thousand_frames_fits_the_limits_of_jpeg():
    sheet = sheet_of(1000)
    assert sheet.size[0] == 1280 and sheet.size[1] < 65_500


def test_sheet_has_the_requested_columns():
    pixels = np.asarray(sheet_of(6, columns=3))
    picture_columns = (pixels[:, :, 2] == 250).any(axis=0)
    assert np.count_nonzero(np.diff(picture_columns.astype(int)) == 1) == 3


def test_frames_on_a_sheet_keep_their_aspect_ratio():
    pixels = np.asarray(sheet_of(1, 100, 300))
    rows, columns = np.nonzero(pixels[:, :, 2] == 250)
    assert np.ptp(columns) / np.ptp(rows) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(
    ("width", "columns"), [(128, 1), (128, None), (160, 2), (320, 1), (320, 2), (1280, 2), (1280, None), (2500, 4)]
)
def test_caption_is_under_every_frame_and_within_its_cell(width, columns):
    sheet = contact_sheet(plain_frames(4), [99_999_999] * 4, [12345.678] * 4, columns, width)
    pixels = np.asarray(sheet).astype(int)
    is_text = (pixels.min(axis=2) > 150) & (pixels[:, :, 2] != 250)
    picture = pixels[:, :, 2] == 250
    rows = picture.any(axis=1)
    ends = np.flatnonzero(np.diff(rows.astype(int)) == -1)
    for begin, stop in zip(ends, [*ends[1:], len(rows)], strict=True):
        assert is_text[begin:stop].any()
    assert not is_text[:, :1].any() and not is_text[:, -1:].any()


def test_captions_show_index_and_time():
    frames = plain_frames(1)
    sheets = [contact_sheet(frames, [i], [t]) for i, t in [(47, 1.88), (48, 1.88), (47, 1.881)]]
    assert len({sheet.tobytes() for sheet in sheets}) == 3


def test_frames_sheet_shows_the_frames_of_a_video():
    frames = load(CLIPS["base.mp4"].path(), num_frames=5)
    sheet = frames.sheet(columns=5, width=640)
    assert sheet.width == 640
    assert sheet.tobytes() == contact_sheet(frames.data, frames.indices, frames.timestamps, 5, 640).tobytes()
    assert sheet.tobytes() == frames.sheet(columns=np.int64(5), width=np.int32(640)).tobytes()


def test_frames_on_a_sheet_are_reduced_by_averaging():
    checkered = np.indices((600, 600)).sum(axis=0) // 2 % 2 * 200
    image = np.repeat(checkered[None, :, :, None], 3, axis=3).astype(np.uint8)
    pixels = np.asarray(contact_sheet(image, [0], [0.0], width=128))[10:100, 10:100]
    assert pixels.mean() == pytest.approx(100, abs=6) and pixels.std() < 25


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (np.zeros((0, 4, 4, 3), np.uint8), {}, "nothing empty"),
        (np.zeros((1, 4, 4, 4), np.uint8), {}, "must be uint8"),
        (np.zeros((1, 4, 4, 3), np.float32), {}, "must be uint8"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"columns": 0}, "columns is 0; it must be a whole number from 1 to"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"width": 20}, "width is 20; it must be a whole number from 128 to"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"columns": 1.5}, "columns is 1.5; it must be a whole number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"columns": "3"}, "columns is '3'; it must be a whole number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"columns": True}, "columns is True; it must be a whole number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"width": 640.5}, "width is 640.5; it must be a whole number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"width": 10**9}, "to 65500"),
        (np.zeros((40, 4, 4, 3), np.uint8), {"columns": 40}, "fewer columns or a wider sheet"),
        (np.zeros((300, 4, 4, 3), np.uint8), {"columns": 1}, "more columns"),
    ],
)
def test_unreadable_sheet_is_refused(images, options, message):
    with pytest.raises(OptionsError, match=re.escape(message)):
        contact_sheet(images, range(len(images)), [0.0] * len(images), **options)


def test_number_of_indices_must_equal_number_of_images():
    with pytest.raises(OptionsError, match="2 images, but 1"):
        contact_sheet(plain_frames(2), [0], [0.0])
