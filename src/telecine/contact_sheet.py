"""Contact sheets: frames side by side in one image, with index and time under each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from telecine.errors import OptionsError
from telecine.validation import check_int

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

__all__ = ["contact_sheet"]

_MIN_CELL_WIDTH = 64
"""Pixels; a caption on two lines is still readable in it."""
_MIN_AUTO_CELL_WIDTH = 128
"""Pixels; the automatic number of columns makes no narrower cells."""
_ASPECT = 0.62
"""Preferred height over width of a sheet: that of most screens."""
_MAX_CELL_ASPECT = 2.0
"""Maximum height over width of a cell; a taller picture is made narrower, so that it does not fill the whole sheet."""
_MAX_SIDE = 65_500
"""Pixels; the limit of JPEG files."""
_FONT_SIZES = range(24, 9, -1)
_BACKGROUND = (24, 24, 24)
_TEXT = (225, 225, 225)


def contact_sheet(
    images: npt.NDArray[np.uint8],
    indices: Iterable[int],
    timestamps: Iterable[float],
    columns: int | None = None,
    width: int = 1280,
) -> Image:
    """Put frames side by side, row by row. See :meth:`telecine.Frames.sheet`; images are ``uint8 [N, H, W, 3]`` RGB."""
    from PIL import Image, ImageDraw

    captions = [(f"#{index}", f"{timestamp:.3f} s") for index, timestamp in zip(indices, timestamps, strict=True)]
    _check_images(images, captions)
    width = check_int("width", width, 2 * _MIN_CELL_WIDTH, _MAX_SIDE)
    columns = _choose_columns(images, width) if columns is None else check_int("columns", columns, 1, _MAX_SIDE)
    gap = max(2, width // 200)
    cell_width = (width - gap) // columns - gap
    if cell_width < _MIN_CELL_WIDTH:
        raise OptionsError(
            f"{columns} columns in {width} pixels leave {cell_width} for each frame; it takes {_MIN_CELL_WIDTH}. "
            "Choose fewer columns or a wider sheet"
        )
    font, two_lines = _fitting_font(captions, cell_width)
    line = sum(font.getmetrics())
    size = _picture_size(images, cell_width, width)
    row_height = size[1] + line * (1 + two_lines) + line // 3 + gap
    height = math.ceil(len(images) / columns) * row_height + gap
    if height > _MAX_SIDE:
        raise OptionsError(
            f"a sheet of {len(images)} frames in {columns} columns would be {height} pixels high; "
            f"it can be {_MAX_SIDE}. Choose more columns, a narrower sheet or fewer frames"
        )
    sheet = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for position, (image, caption) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(position, columns)
        # the remainder of the division is spread over the gaps
        x, y = gap + column * (width - gap) // columns, gap + row * row_height
        sheet.paste(_resize(image, size), (x + (cell_width - size[0]) // 2, y))
        below, text = (x + cell_width / 2, y + size[1] + line / 6), ("\n" if two_lines else "  ").join(caption)
        draw.multiline_text(below, text, _TEXT, font, anchor="ma", spacing=0, align="center")
    return sheet


def _check_images(images: npt.NDArray[np.uint8], captions: list[tuple[str, str]]) -> None:
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise OptionsError(
            f"images is {images.dtype} {list(images.shape)}; it must be uint8 [N, H, W, 3] with nothing empty"
        )
    if len(captions) != len(images):
        raise OptionsError(f"there are {len(images)} images, but {len(captions)} indices and timestamps")


def _choose_columns(images: npt.NDArray[np.uint8], width: int) -> int:
    """Return the number of columns with an aspect ratio near a screen's and few empty cells in the last row."""
    count = len(images)
    most = max(1, min(count, width // _MIN_AUTO_CELL_WIDTH))

    def badness(columns: int) -> float:
        rows = math.ceil(count / columns)
        _, height = _picture_size(images, width // columns, width)
        empty = 1 - count / (rows * columns)
        return abs(math.log(rows * (height + 20) / (width * _ASPECT))) + 1.5 * empty

    return min(range(1, most + 1), key=badness)


def _picture_size(images: npt.NDArray[np.uint8], cell_width: int, width: int) -> tuple[int, int]:
    """Return the size (width, height) of a picture in its cell."""
    tall, wide = images.shape[1:3]
    max_height = min(math.floor(cell_width * _MAX_CELL_ASPECT), width)
    scale = min(cell_width / wide, max_height / tall)
    return max(1, round(wide * scale)), max(1, round(tall * scale))


def _fitting_font(captions: list[tuple[str, str]], cell_width: int) -> tuple[FreeTypeFont, bool]:
    """Return the largest font with which every caption fits, and True if captions take two lines."""
    from PIL import ImageFont

    index = max((caption[0] for caption in captions), key=len)
    time = max((caption[1] for caption in captions), key=len)
    # large letters under large pictures only
    sizes = [size for size in _FONT_SIZES if size <= max(_FONT_SIZES[-1], cell_width // 10)]
    for two_lines in (False, True):
        for size in sizes:
            font = cast("FreeTypeFont", ImageFont.load_default(size))
            lines = (index, time) if two_lines else (f"{index}  {time}",)
            if max(font.getlength(text) for text in lines) <= cell_width:
                return font, two_lines
    return font, True


def _resize(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> Image:
    from PIL import Image

    # at a tenth of the size, every second pixel still leaves 25 to average: as smooth, in half the time
    step = max(1, min(image.shape[0] // size[1], image.shape[1] // size[0]) // 4)
    picture = Image.fromarray(np.ascontiguousarray(image[::step, ::step]))
    # reducing_gap averages whole blocks before the costly filter
    return picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
