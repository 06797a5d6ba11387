"""Test pictures that show their own frame number, so that a wrong, stale or repeated frame is always noticed.

The number is drawn as black and white blocks in the upper left corner: three rows of six, each an eighth of the width
or a fifth of the height. One block is always white and one always black, twelve are the number, four a checksum. The
rest of the picture is a moving texture of middle tones. A picture that is rotated, mirrored, smeared or blended does
not read as a wrong number; it raises :class:`UnreadableNumber`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_NUMBER", "UnreadableNumber", "draw_number", "paint", "read_number", "rotate_for_storage"]

_ROWS, _COLUMNS = 3, 6
_NUMBER_BITS = 12
_DARK, _BRIGHT = 24, 232
_GREY = range(80, 177)
"""Mean brightness of a block that is neither black nor white."""
MAX_NUMBER = (1 << _NUMBER_BITS) - 1
"""Largest number that can be drawn."""


class UnreadableNumber(ValueError):
    """The picture shows no number: it is damaged, blended, rotated, or not a test picture."""


def paint(number: int, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return a picture with a number on a moving texture, ``uint8 [H, W, 3]`` RGB, at least 80x50 pixels."""
    y, x = np.mgrid[:height, :width]
    waves = [np.abs((a * x + b * y + c * number) % 96 - 48) for a, b, c in ((2, 3, -5), (3, -2, 7), (1, 1, 3))]
    picture: npt.NDArray[np.uint8] = (np.stack(waves, axis=-1) + 100).astype(np.uint8)
    return draw_number(picture, number)


def draw_number(picture: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Draw a number on a picture, in place, and return the picture."""
    height, width = picture.shape[:2]
    for bit, (top, bottom, left, right) in zip(_encode(number), _blocks(width, height), strict=True):
        picture[round(top) : round(bottom), round(left) : round(right)] = _BRIGHT if bit else _DARK
    return picture


def read_number(picture: npt.NDArray[Any]) -> int:
    """Read the number of a picture, at its own size or resized evenly to at least 48x32; ``uint8 [H, W, 3]``."""
    height, width = picture.shape[:2]
    bits: list[bool] = []
    for top, bottom, left, right in _blocks(width, height):
        margin = (bottom - top) / 4
        rows, columns = _slice(top + margin, bottom - margin), _slice(left + margin, right - margin)
        brightness = float(picture[rows, columns].mean())
        if round(brightness) in _GREY:
            raise UnreadableNumber(f"block {len(bits)} is grey ({brightness:.0f}), neither black nor white")
        bits.append(brightness > _GREY[0])
    number = sum(bit << i for i, bit in enumerate(bits[2 : 2 + _NUMBER_BITS]))
    if bits != _encode(number):
        raise UnreadableNumber(f"the checksum does not fit the number {number}")
    return number


def rotate_for_storage(picture: npt.NDArray[np.uint8], quarter_turns: int, mirrored: bool) -> npt.NDArray[np.uint8]:
    """Return a picture as it is stored if a display matrix rotates it clockwise and then mirrors it."""
    upright = picture[:, ::-1] if mirrored else picture
    return np.ascontiguousarray(np.rot90(upright, quarter_turns))


def _encode(number: int) -> list[bool]:
    if not 0 <= number <= MAX_NUMBER:
        raise ValueError(f"number is {number}; it must be from 0 to {MAX_NUMBER}")
    checksum = (number ^ number >> 4 ^ number >> 8 ^ 0b0110) & 0b1111
    payload = number | checksum << _NUMBER_BITS
    return [True, False, *(bool(payload >> i & 1) for i in range(_NUMBER_BITS + 4))]


def _blocks(width: int, height: int) -> Iterator[tuple[float, float, float, float]]:
    """Yield top, bottom, left and right of each block, pixels."""
    side = min(width / 8, height / 5)
    for row in range(_ROWS):
        for column in range(_COLUMNS):
            top, left = (row + 0.5) * side, (column + 0.5) * side
            yield top, top + side, left, left + side


def _slice(start: float, stop: float) -> slice:
    return slice(round(start), max(round(stop), round(start) + 1))
