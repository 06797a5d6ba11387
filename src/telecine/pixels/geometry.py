"""Conversion of decoded pictures to RGB at the final size: one rule for every backend.

The rule is FFmpeg's own filter chain, so that the ffmpeg command line can verify every frame::

    [transpose | hflip | vflip by the display matrix],scale=W:H:flags=bilinear,format=gbrp,format=rgb24

``gbrp`` is RGB in three planes. On the way to it FFmpeg interpolates chroma for every pixel; directly to ``rgb24`` it
does so for pairs of pixels, and takes twice as long. ``bilinear`` widens its filter when it makes a picture smaller, so
that every source pixel counts and there is no aliasing.

If no other size is requested, the chain ends in ``scale=W:H:flags=bicubic,format=rgb24``. The command line inserts this
for ``-pix_fmt rgb24``, and for pictures whose size changes in mid-stream. Matrix and range come from the tags of each
picture; untagged means BT.601 limited. More than 8 bits are rounded to 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from telecine.errors import OptionsError
from telecine.validation import check_int, format_value, to_int

__all__ = ["Fit", "Geometry", "Size", "fit_size"]

_MAX_FIT_PIXELS = 1 << 62
"""Largest value in a :class:`Fit`: far above any limit, and exact arithmetic with floats is possible."""


@dataclass(frozen=True, init=False)
class Fit:
    """A size computed from the video's own: within a pixel budget, and as near to its aspect ratio as multiples allow.

    Args:
        max_pixels: maximum of width times height; larger pictures are reduced, none is enlarged up to it.
        multiple_of: both sides are multiples of this, for instance of a model's patch size.
        min_pixels: minimum of width times height; smaller pictures are enlarged, within ``max_pixels``.
    """

    max_pixels: int
    multiple_of: int
    min_pixels: int

    def __init__(
        self, max_pixels: SupportsIndex, multiple_of: SupportsIndex = 1, min_pixels: SupportsIndex = 0
    ) -> None:
        for name, given in (("max_pixels", max_pixels), ("multiple_of", multiple_of), ("min_pixels", min_pixels)):
            object.__setattr__(self, name, check_int(f"size: {name}", given, 0, _MAX_FIT_PIXELS))
        if self.multiple_of < 1 or self.max_pixels < self.multiple_of**2 or self.min_pixels > self.max_pixels:
            raise OptionsError(
                f"size: {self} cannot be met; it needs multiple_of >= 1, max_pixels >= multiple_of squared and "
                "min_pixels <= max_pixels"
            )

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) for a picture of ``height`` x ``width`` pixels."""
        unit = self.multiple_of
        tall, wide = max(unit, round(height / unit) * unit), max(unit, round(width / unit) * unit)
        if tall * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            tall, wide = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
        if tall * wide > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            tall, wide = _floor_to_unit(height / shrink, unit), _floor_to_unit(width / shrink, unit)
            # a very thin picture: its short side is one unit already, so its long side is reduced
            if tall < wide:
                wide = min(wide, self.max_pixels // tall // unit * unit)
            else:
                tall = min(tall, self.max_pixels // wide // unit * unit)
        return tall, wide


def _floor_to_unit(side: float, unit: int) -> int:
    return max(unit, math.floor(side / unit) * unit)


Size: TypeAlias = "tuple[int, int] | int | Fit | None"
"""(height, width), the length of the short side, a :class:`Fit`, or None for the size of the video. Display pixels."""


def fit_size(size: Size, height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) that ``size`` means for a video of ``height`` x ``width`` display pixels."""
    if size is None:
        return height, width
    if isinstance(size, Fit):
        return size(height, width)
    if isinstance(size, (tuple, list)):
        sides = [to_int(side) or 0 for side in size]
        if len(sides) == 2 and min(sides) > 0:
            return sides[0], sides[1]
    elif (given := to_int(size) or 0) > 0:
        short = min(height, width)
        # integers: a size from outside may be too large for a float
        return (2 * height * given + short) // (2 * short), (2 * width * given + short) // (2 * short)
    raise OptionsError(
        f"size is {format_value(size)}; it must be (height, width), the length of the short side, or a telecine.Fit"
    )


@dataclass(frozen=True)
class Geometry:
    """Rotation, mirroring and resize from stored pictures to returned frames."""

    stored_height: int
    """Height of the first decoded picture, pixels: cropped, not rotated."""
    stored_width: int
    """Width of the first decoded picture, pixels."""
    quarter_turns: int
    """Clockwise rotation, 0 to 3."""
    mirrored: bool
    """True if pictures are mirrored left to right after the rotation."""
    height: int
    """Height of the returned frames, pixels."""
    width: int
    """Width of the returned frames, pixels."""

    @property
    def display_size(self) -> tuple[int, int]:
        """(height, width) after rotation, before any resize."""
        size = self.stored_height, self.stored_width
        return size if self.quarter_turns % 2 == 0 else size[::-1]

    @property
    def resizes(self) -> bool:
        """True if the requested size is not the video's own."""
        return self.display_size != (self.height, self.width)

    def filters(self, planar: bool = False) -> list[tuple[str, str]]:
        """Return the FFmpeg filters that convert a picture, as (name, arguments).

        They also convert a picture of another size than the first one, as there is after a size change in mid-stream.
        If ``planar``, resized pictures stay in three planes: green, blue, red.
        """
        scale = f"{self.width}:{self.height}:flags={'bilinear' if self.resizes else 'bicubic'}"
        formats = [("format", "pix_fmts=gbrp")] if self.resizes else []
        if not (planar and self.resizes):
            formats.append(("format", "pix_fmts=rgb24"))
        return [*_ORIENTATIONS[self.quarter_turns, self.mirrored], ("scale", scale), *formats]


_ORIENTATIONS: dict[tuple[int, bool], list[tuple[str, str]]] = {
    (0, False): [],
    (1, False): [("transpose", "clock")],
    (2, False): [("hflip", ""), ("vflip", "")],
    (3, False): [("transpose", "cclock")],
    (0, True): [("hflip", "")],
    (1, True): [("transpose", "cclock_flip")],
    (2, True): [("vflip", "")],
    (3, True): [("transpose", "clock_flip")],
}
"""Filters that the ffmpeg command line inserts for each orientation (``-autorotate``)."""
