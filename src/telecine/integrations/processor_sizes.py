"""The frame sizes that models' own processors make, by name.

A processor that is handed frames of the size it would have made has nothing left to resize. So the rule is applied
when the frames are decoded, and pictures of full size never exist. The rules are those of transformers 5.20
(``smart_resize`` of each model) with the budgets that the released checkpoints configure; a checkpoint or a command
line that sets another ``size.longest_edge`` needs the same number here, as ``max_pixels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from telecine.errors import OptionsError
from telecine.validation import format_value, to_int

__all__ = ["FITS", "ProcessorSize", "processor_size"]

_MOST_STRETCHED = 200
"""Long side over short side above which the models' processors refuse a picture."""


@dataclass(frozen=True)
class ProcessorSize:
    """How a processor chooses the size of frames: sides of whole patches, within a budget of pixels."""

    unit: int
    """Both sides are multiples of this: patch size times merge size."""
    min_pixels: int
    max_pixels: int
    whole_clip: bool
    """Whether the budget is for all frames together, those of an incomplete pair counted as a pair."""

    def __call__(self, count: int, height: int, width: int) -> tuple[int, int]:
        """The (height, width) for ``count`` frames of ``height`` x ``width`` pixels.

        Raises:
            OptionsError: a picture so stretched that the processor would refuse it.
        """
        unit, frames, counted = self.unit, 1, 1
        if self.whole_clip:
            # the processor refuses a single frame; a clip of one is given the size of a pair
            frames = max(count, 2)
            counted = round(frames / 2) * 2
            if height < unit or width < unit:
                grow = max(unit / height, unit / width)
                height, width = int(height * grow), int(width * grow)
        if max(height, width) > _MOST_STRETCHED * min(height, width):
            raise OptionsError(
                f"frames of {width}x{height} pixels: the model takes sides of a ratio up to {_MOST_STRETCHED}"
            )
        tall, wide = round(height / unit) * unit, round(width / unit) * unit
        if counted * tall * wide > self.max_pixels:
            shrink = math.sqrt(frames * height * width / self.max_pixels)
            tall = max(unit, math.floor(height / shrink / unit) * unit)
            wide = max(unit, math.floor(width / shrink / unit) * unit)
        elif counted * tall * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (frames * height * width))
            tall, wide = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
        return max(unit, tall), max(unit, wide)


FITS: dict[str, ProcessorSize] = {
    "qwen2_vl": ProcessorSize(28, 56 * 56, 12_845_056, whole_clip=False),
    "qwen3_vl": ProcessorSize(32, 4_096, 25_165_824, whole_clip=True),
    "glm4v": ProcessorSize(28, 112 * 112, 47_040_000, whole_clip=True),
    "glm46v": ProcessorSize(28, 112 * 112, 47_040_000, whole_clip=True),
}
"""Name -> rule. ``qwen2_vl`` is Qwen2.5-VL's too, and its budget is per frame."""


def processor_size(fit: str, count: int, height: int, width: int, max_pixels: int | None = None) -> tuple[int, int]:
    """The (height, width) that a model's processor would give to the frames of a clip.

    Args:
        fit: a key of :data:`FITS`.
        count: frames that are handed over.
        height: of the video, display pixels.
        width: likewise.
        max_pixels: instead of the rule's own budget; for the whole clip or per frame, as the rule counts.

    Raises:
        OptionsError: there is no such rule, or it refuses the clip.
    """
    if not isinstance(fit, str) or fit not in FITS:
        raise OptionsError(f"fit is {format_value(fit)}; it must be one of: {', '.join(FITS)}")
    rule = FITS[fit]
    if max_pixels is not None:
        if (to_int(max_pixels) or 0) < 1:
            raise OptionsError(f"max_pixels is {format_value(max_pixels)}; it must be a whole number from 1 on")
        rule = replace(rule, max_pixels=max_pixels, min_pixels=min(rule.min_pixels, max_pixels))
    return rule(count, height, width)
