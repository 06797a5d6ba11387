"""The frame sizes that the processors of models make, by name.

A processor that gets frames of the size it would have made has nothing left to resize. So the rule is applied while
decoding, and pictures of full size never exist. The rules are those of transformers 5.20 (``smart_resize`` of each
model) with the budgets that the released checkpoints configure. A checkpoint or a command line that sets another
``size.longest_edge`` needs the same number here, as ``max_pixels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from telecine.errors import OptionsError
from telecine.validation import check_int, format_value

__all__ = ["FITS", "ProcessorSize", "processor_size"]

_MAX_ASPECT_RATIO = 200
"""Long side over short side above which the processors refuse a picture."""


@dataclass(frozen=True)
class ProcessorSize:
    """The size rule of a processor: sides of whole patches, within a budget of pixels."""

    unit: int
    """Divisor of both sides: patch size times merge size."""
    min_pixels: int
    max_pixels: int
    whole_clip: bool
    """True if the budget is for all frames together; an odd number of frames counts as one more."""


FITS: dict[str, ProcessorSize] = {
    "qwen2_vl": ProcessorSize(28, 56 * 56, 12_845_056, whole_clip=False),
    "qwen3_vl": ProcessorSize(32, 4_096, 25_165_824, whole_clip=True),
    "glm4v": ProcessorSize(28, 112 * 112, 47_040_000, whole_clip=True),
    "glm46v": ProcessorSize(28, 112 * 112, 47_040_000, whole_clip=True),
}
"""Rules by name. ``qwen2_vl`` also holds for Qwen2.5-VL, and its budget is per frame."""


def processor_size(fit: str, count: int, height: int, width: int, max_pixels: int | None = None) -> tuple[int, int]:
    """Return the (height, width) that a model's processor would give to the frames of a clip.

    Args:
        fit: a key of :data:`FITS`.
        count: number of frames.
        height: height of the video, display pixels.
        width: width of the video, display pixels.
        max_pixels: replaces the budget of the rule; for the whole clip or per frame, as the rule counts.

    Raises:
        OptionsError: there is no such rule, or it refuses the clip.
    """
    if not isinstance(fit, str) or fit not in FITS:
        raise OptionsError(f"fit is {format_value(fit)}; it must be one of: {', '.join(FITS)}")
    rule = FITS[fit]
    max_pixels = rule.max_pixels if max_pixels is None else check_int("max_pixels", max_pixels, 1)
    min_pixels = min(rule.min_pixels, max_pixels)
    unit, frames, counted = rule.unit, 1, 1
    if rule.whole_clip:
        # the processor refuses a single frame; a clip of one gets the size of a pair
        frames = max(count, 2)
        counted = round(frames / 2) * 2
        if height < unit or width < unit:
            grow = max(unit / height, unit / width)
            height, width = int(height * grow), int(width * grow)
    if max(height, width) > _MAX_ASPECT_RATIO * min(height, width):
        raise OptionsError(
            f"frames of {width}x{height} pixels: the model takes sides of a ratio up to {_MAX_ASPECT_RATIO}"
        )
    new_height, new_width = round(height / unit) * unit, round(width / unit) * unit
    if counted * new_height * new_width > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        new_height = max(unit, math.floor(height / shrink / unit) * unit)
        new_width = max(unit, math.floor(width / shrink / unit) * unit)
    elif counted * new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        new_height, new_width = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return max(unit, new_height), max(unit, new_width)
