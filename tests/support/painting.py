"""Test pictures that carry their own number, so that a neighbouring or stale frame is always caught.

The number is drawn as black and white blocks in the upper left corner: three rows of six, each an eighth of the width
or a fifth of the height. Two of them are a fixed white and a fixed black, twelve are the number, four a check sum.
Everything else is a panning texture of middle tones. So a block is extreme and the texture is not: a picture that is
turned, mirrored, smeared, blended or of another frame does not read as a wrong number, it does not read at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["UnreadableNumber", "paint", "paint_all", "read_number"]

Picture = npt.NDArray[np.uint8]

_ROWS, _COLUMNS = 3, 6
_NUMBER_BITS = 12
_DARK, _BRIGHT = 24, 232
_TEXTURE_LOW, _TEXTURE_HIGH = 92, 164


class UnreadableNumber(ValueError):
    """The picture shows no number: it is damaged, blended, turned, or not one of ours."""


def paint(number: int, width: int, height: int, seed: int = 0) -> Picture:
    """Paint one test picture.

    Args:
        number: 0 to 4095.
        width: pixels, at least 80.
        height: pixels, at least 50.
        seed: another seed gives another texture.

    Returns:
        ``uint8 [height, width, 3]`` RGB.
    """
    picture = _texture(number, width, height, seed)
    for bit, (top, bottom, left, right) in zip(_bits(number), _blocks(width, height), strict=True):
        picture[round(top) : round(bottom), round(left) : round(right)] = _BRIGHT if bit else _DARK
    return picture


def paint_all(
    numbers: range, width: int, height: int, seed: int = 0, turn: int = 0, mirror: bool = False
) -> Iterator[Picture]:
    """Paint pictures as a camera would store them that is held askew.

    Args:
        numbers: one picture for each.
        width: of the picture as it is to be seen.
        height: of the picture as it is to be seen.
        seed: see :func:`paint`.
        turn: degrees clockwise by which a player must turn the stored picture; a multiple of 90.
        mirror: whether a player must also mirror it left to right, after turning.

    Yields:
        ``uint8`` RGB pictures as stored; width and height are exchanged for a quarter turn.
    """
    for number in numbers:
        picture = paint(number, width, height, seed)
        if mirror:
            picture = picture[:, ::-1]
        yield np.ascontiguousarray(np.rot90(picture, turn // 90))


def read_number(picture: Picture) -> int:
    """Read the number of a picture, at its own size or evenly resized to 48x32 at the least.

    Args:
        picture: ``uint8 [H, W, 3]`` RGB, upright.

    Raises:
        UnreadableNumber: the blocks are not clearly black and white, or the check sum is wrong.
    """
    height, width = picture.shape[:2]
    bits = []
    for top, bottom, left, right in _blocks(width, height):
        inset_y, inset_x = (bottom - top) / 4, (right - left) / 4
        inside = picture[
            round(top + inset_y) : max(round(bottom - inset_y), round(top + inset_y) + 1),
            round(left + inset_x) : max(round(right - inset_x), round(left + inset_x) + 1),
        ]
        brightness = float(inside.mean())
        if _TEXTURE_LOW - 12 < brightness < _TEXTURE_HIGH + 12:
            raise UnreadableNumber(f"block {len(bits)} is grey ({brightness:.0f}), neither black nor white")
        bits.append(brightness > 128)
    number = sum(bit << i for i, bit in enumerate(bits[2 : 2 + _NUMBER_BITS]))
    if bits != _bits(number):
        raise UnreadableNumber(f"the check sum does not fit the number {number}")
    return number


def _bits(number: int) -> list[bool]:
    if not 0 <= number < 1 << _NUMBER_BITS:
        raise ValueError(f"number {number} does not fit in {_NUMBER_BITS} bits")
    check = (number ^ number >> 4 ^ number >> 8 ^ 0b0110) & 0b1111
    payload = number | check << _NUMBER_BITS
    return [True, False, *(bool(payload >> i & 1) for i in range(_NUMBER_BITS + 4))]


def _blocks(width: int, height: int) -> Iterator[tuple[float, float, float, float]]:
    """Top, bottom, left and right of each block, in pixels."""
    side = min(width / 8, height / 5)
    for row in range(_ROWS):
        for column in range(_COLUMNS):
            top, left = (row + 0.5) * side, (column + 0.5) * side
            yield top, top + side, left, left + side


def _texture(number: int, width: int, height: int, seed: int) -> Picture:
    """Middle tones with two motions: grains that pan and a wave that runs the other way.

    Integers only, so that the pictures are the same on every machine.
    """
    grain = np.random.default_rng(seed).integers(0, 40, (height // 4 + 1, width // 4 + 1, 3)).repeat(4, 0).repeat(4, 1)
    grain = np.roll(grain, (number, 3 * number), (0, 1))[:height, :width]
    y, x = np.mgrid[:height, :width]
    phase = (2 * x + 3 * y - 5 * number)[..., None] + np.array([0, 21, 43]) + 17 * seed
    wave = np.abs(phase % 64 - 32)
    return (_TEXTURE_LOW + grain + wave).astype(np.uint8)
