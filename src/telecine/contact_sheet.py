"""Contact sheets: frames side by side in one picture, with index and time under each."""

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

_LEAST_CELL = 64
"""Pixels across in which a label, on two lines if need be, can still be read."""
_COMFORTABLE_CELL = 128
"""Pixels across below which no more columns are chosen unasked."""
_SHAPE = 0.62
"""Height over width that a sheet should have: that of most screens."""
_TALLEST_CELL = 2.0
"""Height over width of the tallest cell; a taller picture is made narrower, so that one cannot fill the whole sheet."""
_MOST_SIDE = 65_500
"""Pixels; what a JPEG file can hold."""
_FONT_SIZES = range(24, 9, -1)
_BACKGROUND = (24, 24, 24)
_TEXT = (225, 225, 225)


class _Layout(NamedTuple):
    """Where everything goes, pixels."""

    columns: int
    rows: int
    cell: tuple[int, int]
    """Width and height of a cell, without its label."""
    picture: tuple[int, int]
    """Width and height of a picture, centred in its cell."""
    gap: int
    label: int
    """Height of the label under a picture."""
    width: int

    @property
    def height(self) -> int:
        """Of the sheet."""
        return self.rows * (self.cell[1] + self.label + self.gap) + self.gap

    def corner(self, position: int) -> tuple[int, int]:
        """Upper left corner of a cell, (x, y). Cells share out what the division of the width leaves over."""
        row, column = divmod(position, self.columns)
        x = self.gap + column * (self.width - self.gap) // self.columns
        return x, self.gap + row * (self.cell[1] + self.label + self.gap)


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
        width: of the sheet, pixels.

    Returns:
        A Pillow image of mode RGB, ``width`` pixels wide.

    Raises:
        OptionsError: the arguments do not go together, or no readable sheet comes of them.
    """
    from PIL import Image, ImageDraw

    labels = [(f"#{index}", f"{timestamp:.3f} s") for index, timestamp in zip(indices, timestamps, strict=True)]
    _check(images, labels)
    width = _within("width", width, 2 * _LEAST_CELL)
    columns = _choose_columns(images, width) if columns is None else _within("columns", columns, 1)
    gap = max(2, width // 200)
    cell_width = (width - gap) // columns - gap
    if cell_width < _LEAST_CELL:
        raise OptionsError(
            f"{columns} columns in {width} pixels leave {cell_width} for each frame; it takes {_LEAST_CELL}. "
            "Choose fewer columns or a wider sheet"
        )
    font, two_lines = _fitting_font(labels, cell_width)
    texts = ["\n".join(label) if two_lines else "  ".join(label) for label in labels]
    line = sum(font.getmetrics())
    cell, picture = _fit(images, cell_width, width)
    label_height = line * (1 + two_lines) + line // 3
    layout = _Layout(columns, math.ceil(len(images) / columns), cell, picture, gap, label_height, width)
    if layout.height > _MOST_SIDE:
        raise OptionsError(
            f"a sheet of {len(images)} frames in {columns} columns would be {layout.height} pixels high; "
            f"it can be {_MOST_SIDE}. Choose more columns, a narrower sheet or fewer frames"
        )
    sheet = Image.new("RGB", (width, layout.height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for position, (image, text) in enumerate(zip(images, texts, strict=True)):
        x, y = layout.corner(position)
        small = _resized(image, picture)
        sheet.paste(small, (x + (cell[0] - picture[0]) // 2, y + cell[1] - picture[1]))
        draw.multiline_text(
            (x + cell[0] / 2, y + cell[1] + line / 6), text, _TEXT, font, anchor="ma", spacing=0, align="center"
        )
    return sheet


def _check(images: npt.NDArray[np.uint8], labels: list[tuple[str, str]]) -> None:
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise OptionsError(
            f"images is {images.dtype} {list(images.shape)}; it must be uint8 [N, H, W, 3] with nothing empty"
        )
    if len(labels) != len(images):
        raise OptionsError(f"there are {len(images)} images, but {len(labels)} indices and timestamps")


def _within(name: str, value: object, least: int) -> int:
    number = to_int(value)
    if number is None or not least <= number <= _MOST_SIDE:
        raise OptionsError(
            f"{name} is {format_value(value)}; it must be a whole number, at least {least}, up to {_MOST_SIDE}"
        )
    return number


def _choose_columns(images: npt.NDArray[np.uint8], width: int) -> int:
    """The number that brings the sheet nearest to the shape of a screen, and leaves few gaps in its last row."""
    count = len(images)
    most = max(1, min(count, width // _COMFORTABLE_CELL))

    def misshape(columns: int) -> float:
        rows = math.ceil(count / columns)
        _, height = _fit(images, width // columns, width)[0]
        empty = 1 - count / (rows * columns)
        return abs(math.log(rows * (height + 20) / (width * _SHAPE))) + 1.5 * empty

    return min(range(1, most + 1), key=misshape)


def _fit(images: npt.NDArray[np.uint8], cell_width: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Size of a cell and of the picture in it, (width, height) each."""
    tall, wide = images.shape[1:3]
    room = min(math.floor(cell_width * _TALLEST_CELL), width)
    scale = min(cell_width / wide, room / tall)
    picture = max(1, round(wide * scale)), max(1, round(tall * scale))
    return (cell_width, picture[1]), picture


def _fitting_font(labels: list[tuple[str, str]], cell_width: int) -> tuple[FreeTypeFont, bool]:
    """The largest font with which every label fits under its picture, and whether that takes two lines."""
    from PIL import ImageFont

    index = max((label[0] for label in labels), key=len)
    time = max((label[1] for label in labels), key=len)
    # large letters under large pictures only: a label is not what one looks at
    sizes = [size for size in _FONT_SIZES if size <= max(_FONT_SIZES[-1], cell_width // 10)]
    for two_lines in (False, True):
        for size in sizes:
            font = cast("FreeTypeFont", ImageFont.load_default(size))
            lines = (index, time) if two_lines else (f"{index}  {time}",)
            if max(font.getlength(text) for text in lines) <= cell_width:
                return font, two_lines
    return font, True


def _resized(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> Image:
    from PIL import Image

    # of a picture that shrinks to a tenth, every second pixel still leaves 25 to average: as smooth, at half the time
    step = max(1, min(image.shape[0] // size[1], image.shape[1] // size[0]) // 4)
    picture = Image.fromarray(np.ascontiguousarray(image[::step, ::step]))
    if picture.size == size:
        return picture
    # reducing_gap averages whole blocks before the costly filter
    return picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
