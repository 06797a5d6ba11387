"""Contact sheets: frames side by side in one image, with index and time under each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from telecine.errors import OptionsError
from telecine.validation import format_value, to_int

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


class _Layout(NamedTuple):
    """Positions and sizes on the sheet, pixels."""

    columns: int
    rows: int
    cell: tuple[int, int]
    """Width and height of a cell, without its caption."""
    picture: tuple[int, int]
    """Width and height of a picture, centred in its cell."""
    gap: int
    caption: int
    """Height of the caption under a picture."""
    width: int

    @property
    def height(self) -> int:
        """Height of the sheet."""
        return self.rows * (self.cell[1] + self.caption + self.gap) + self.gap

    def corner(self, position: int) -> tuple[int, int]:
        """Return the upper left corner (x, y) of a cell. The remainder of the division is spread over the gaps."""
        row, column = divmod(position, self.columns)
        x = self.gap + column * (self.width - self.gap) // self.columns
        return x, self.gap + row * (self.cell[1] + self.caption + self.gap)


def contact_sheet(
    images: npt.NDArray[np.uint8],
    indices: Iterable[int],
    timestamps: Iterable[float],
    columns: int | None = None,
    width: int = 1280,
) -> Image:
    """Put frames side by side, row by row, in the order given.

    Args:
        images: ``uint8 [N, H, W, 3]`` RGB in host memory, N at least 1.
        indices: N frame indices.
        timestamps: N times, seconds.
        columns: pictures per row; chosen from their number and shape when omitted.
        width: width of the sheet, pixels.

    Returns:
        A Pillow image of mode RGB, ``width`` pixels wide.

    Raises:
        OptionsError: the arguments contradict each other, or the sheet would be unreadable or too large.
    """
    from PIL import Image, ImageDraw

    captions = [(f"#{index}", f"{timestamp:.3f} s") for index, timestamp in zip(indices, timestamps, strict=True)]
    _check(images, captions)
    width = _check_int("width", width, 2 * _MIN_CELL_WIDTH)
    columns = _choose_columns(images, width) if columns is None else _check_int("columns", columns, 1)
    gap = max(2, width // 200)
    cell_width = (width - gap) // columns - gap
    if cell_width < _MIN_CELL_WIDTH:
        raise OptionsError(
            f"{columns} columns in {width} pixels leave {cell_width} for each frame; it takes {_MIN_CELL_WIDTH}. "
            "Choose fewer columns or a wider sheet"
        )
    font, two_lines = _fitting_font(captions, cell_width)
    texts = ["\n".join(caption) if two_lines else "  ".join(caption) for caption in captions]
    line = sum(font.getmetrics())
    cell, picture = _fit(images, cell_width, width)
    caption_height = line * (1 + two_lines) + line // 3
    layout = _Layout(columns, math.ceil(len(images) / columns), cell, picture, gap, caption_height, width)
    if layout.height > _MAX_SIDE:
        raise OptionsError(
            f"a sheet of {len(images)} frames in {columns} columns would be {layout.height} pixels high; "
            f"it can be {_MAX_SIDE}. Choose more columns, a narrower sheet or fewer frames"
        )
    sheet = Image.new("RGB", (width, layout.height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for position, (image, text) in enumerate(zip(images, texts, strict=True)):
        x, y = layout.corner(position)
        small = _resize(image, picture)
        sheet.paste(small, (x + (cell[0] - picture[0]) // 2, y + cell[1] - picture[1]))
        draw.multiline_text(
            (x + cell[0] / 2, y + cell[1] + line / 6), text, _TEXT, font, anchor="ma", spacing=0, align="center"
        )
    return sheet


def _check(images: npt.NDArray[np.uint8], captions: list[tuple[str, str]]) -> None:
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise OptionsError(
            f"images is {images.dtype} {list(images.shape)}; it must be uint8 [N, H, W, 3] with nothing empty"
        )
    if len(captions) != len(images):
        raise OptionsError(f"there are {len(images)} images, but {len(captions)} indices and timestamps")


def _check_int(name: str, value: object, least: int) -> int:
    number = to_int(value)
    if number is None or not least <= number <= _MAX_SIDE:
        raise OptionsError(
            f"{name} is {format_value(value)}; it must be a whole number, at least {least}, up to {_MAX_SIDE}"
        )
    return number


def _choose_columns(images: npt.NDArray[np.uint8], width: int) -> int:
    """Return the number of columns with an aspect ratio near a screen's and few empty cells in the last row."""
    count = len(images)
    most = max(1, min(count, width // _MIN_AUTO_CELL_WIDTH))

    def badness(columns: int) -> float:
        rows = math.ceil(count / columns)
        _, height = _fit(images, width // columns, width)[0]
        empty = 1 - count / (rows * columns)
        return abs(math.log(rows * (height + 20) / (width * _ASPECT))) + 1.5 * empty

    return min(range(1, most + 1), key=badness)


def _fit(images: npt.NDArray[np.uint8], cell_width: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the sizes (width, height) of a cell and of the picture in it."""
    tall, wide = images.shape[1:3]
    max_height = min(math.floor(cell_width * _MAX_CELL_ASPECT), width)
    scale = min(cell_width / wide, max_height / tall)
    picture = max(1, round(wide * scale)), max(1, round(tall * scale))
    return (cell_width, picture[1]), picture


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
    if picture.size == size:
        return picture
    # reducing_gap averages whole blocks before the costly filter
    return picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
