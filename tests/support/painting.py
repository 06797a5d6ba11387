"""Test pictures with the number code of :mod:`telecine.testing.test_pattern`, on a texture of fine grain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from telecine.testing.test_pattern import UnreadableNumber, draw_number, read_number, rotate_for_storage

__all__ = ["FINGERPRINT", "UnreadableNumber", "paint", "paint_all", "read_number"]

Picture = npt.NDArray[np.uint8]

_TEXTURE_LOW = 92


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
    return draw_number(_texture(number, width, height, seed), number)


def paint_all(
    numbers: range, width: int, height: int, seed: int = 0, turn: int = 0, mirror: bool = False
) -> Iterator[Picture]:
    """Paint pictures as a rotated camera stores them.

    Args:
        numbers: one picture for each.
        width: of the picture as displayed.
        height: of the picture as displayed.
        seed: see :func:`paint`.
        turn: degrees clockwise by which a player must rotate the stored picture; a multiple of 90.
        mirror: True if a player must also mirror it left to right, after rotating.

    Yields:
        ``uint8`` RGB pictures as stored; width and height are exchanged for a quarter turn.
    """
    for number in numbers:
        yield rotate_for_storage(paint(number, width, height, seed), turn // 90, mirror)


def _texture(number: int, width: int, height: int, seed: int) -> Picture:
    """Return middle tones with two motions: grains that pan and a wave in the opposite direction.

    Integers only, so that the pictures are the same on every machine.
    """
    grain = np.random.default_rng(seed).integers(0, 40, (height // 4 + 1, width // 4 + 1, 3)).repeat(4, 0).repeat(4, 1)
    grain = np.roll(grain, (number, 3 * number), (0, 1))[:height, :width]
    y, x = np.mgrid[:height, :width]
    phase = (2 * x + 3 * y - 5 * number)[..., None] + np.array([0, 21, 43]) + 17 * seed
    wave = np.abs(phase % 64 - 32)
    return (_TEXTURE_LOW + grain + wave).astype(np.uint8)


_SAMPLE = b"".join(picture.tobytes() for picture in paint_all(range(9, 12), 96, 64, seed=1, turn=90, mirror=True))
FINGERPRINT = hashlib.sha256(_SAMPLE).hexdigest()
"""Digest of some pictures, by which the cache of clips notices that the pictures have changed."""
