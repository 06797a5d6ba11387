"""Pictures that carry their number, so that a frame says by itself which one it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["paint", "read"]

_COLUMNS, _ROWS = 6, 4
_NUMBER_BITS = 10
_DARK, _BRIGHT = 16, 235


def paint(number: int, width: int, height: int) -> npt.NDArray[np.uint8]:
    """A picture with a number on a texture that moves, ``uint8 [H, W, 3]`` RGB.

    Args:
        number: 0 to 1023.
        width: pixels.
        height: pixels.
    """
    y, x = np.mgrid[:height, :width]
    waves = [np.abs((a * x + b * y + c * number) % 96 - 48) for a, b, c in ((2, 3, -5), (3, -2, 7), (1, 1, 3))]
    picture: npt.NDArray[np.uint8] = (np.stack(waves, axis=-1) + 90).astype(np.uint8)
    for bit, where in zip(_bits(number), _blocks(width, height), strict=True):
        picture[where] = _BRIGHT if bit else _DARK
    return picture


def read(picture: npt.NDArray[Any]) -> int | None:
    """The number on a picture; None where none can be read, or where the check does not fit."""
    height, width = picture.shape[:2]
    bits = []
    for rows, columns in _blocks(width, height):
        inner = picture[_inner(rows), _inner(columns)]
        bits.append(float(inner.mean()) > (_DARK + _BRIGHT) / 2)
    number = sum(bit << at for at, bit in enumerate(bits[2 : 2 + _NUMBER_BITS]))
    return number if bits == _bits(number) else None


def _bits(number: int) -> list[bool]:
    """Two that tell up from down and left from right, the number, and the number again, turned over and shuffled."""
    payload = [bool(number >> at & 1) for at in range(_NUMBER_BITS)]
    again = [not payload[(at * 7 + 3) % _NUMBER_BITS] for at in range(_NUMBER_BITS)]
    return [True, False, *payload, *again, False, False]


def _blocks(width: int, height: int) -> Iterator[tuple[slice, slice]]:
    side_x, side_y = width / (_COLUMNS + 1), height / (_ROWS + 1)
    for row in range(_ROWS):
        for column in range(_COLUMNS):
            left, top = (column + 0.5) * side_x, (row + 0.5) * side_y
            yield slice(round(top), round(top + side_y)), slice(round(left), round(left + side_x))


def _inner(span: slice) -> slice:
    quarter = (span.stop - span.start) // 4
    return slice(span.start + quarter, span.stop - quarter)
