"""The frame sizes of the processors of models."""

from __future__ import annotations

import importlib
import random

import pytest

from telecine.errors import OptionsError
from telecine.integrations.processor_sizes import FITS, processor_size


@pytest.mark.parametrize(
    ("fit", "count", "size", "expected"),
    [
        ("qwen2_vl", 32, (1080, 1920), (1092, 1932)),
        ("qwen3_vl", 26, (1080, 1920), (736, 1280)),
        ("qwen3_vl", 4, (1080, 1920), (1088, 1920)),
        ("qwen3_vl", 768, (1080, 1920), (128, 224)),
        ("qwen3_vl", 1, (1080, 1920), (1088, 1920)),
        ("glm4v", 120, (1080, 1920), (448, 812)),
    ],
)
def test_processor_size_of_known_clips(fit, count, size, expected):
    assert processor_size(fit, count, *size) == expected


def test_max_pixels_replaces_the_budget_of_the_rule():
    assert processor_size("qwen2_vl", 8, 1080, 1920, max_pixels=602_112) == (560, 1008)


def test_frames_of_the_processor_size_are_not_resized_again():
    """Holds for usual aspect ratios. A very wide picture, one patch high, exceeds the budget again."""
    chooser = random.Random(1)
    for _ in range(500):
        count, height, width = chooser.randint(2, 768), chooser.randint(300, 3000), chooser.randint(300, 3000)
        for fit in FITS:
            once = processor_size(fit, count, height, width)
            assert processor_size(fit, count, *once) == once


def test_aspect_ratios_that_the_processor_refuses_and_unknown_rules_are_refused():
    with pytest.raises(OptionsError, match="ratio up to 200"):
        processor_size("qwen3_vl", 8, 32, 32 * 201)
    with pytest.raises(OptionsError, match="it must be one of: qwen2_vl, "):
        processor_size("qwen9", 8, 32, 32)


@pytest.mark.parametrize("fit", FITS)
def test_processor_size_is_that_of_smart_resize_in_transformers(fit):
    pytest.importorskip("torchvision", reason="needs transformers and torchvision", exc_type=Exception)
    module = importlib.import_module(f"transformers.models.{fit}.video_processing_{fit}")
    rule, chooser = FITS[fit], random.Random(2)
    for _ in range(2000):
        count, height, width = chooser.randint(2, 800), chooser.randint(28, 2500), chooser.randint(28, 2500)
        theirs = module.smart_resize(
            **({"num_frames": count, "temporal_factor": 2} if rule.whole_clip else {}),
            height=height,
            width=width,
            factor=rule.unit,
            min_pixels=rule.min_pixels,
            max_pixels=rule.max_pixels,
        )
        assert processor_size(fit, count, height, width) == theirs, (count, height, width)


@pytest.mark.parametrize("most", [0, -1, "3", 2.5, True])
def test_max_pixels_that_is_no_positive_number_is_refused(most):
    with pytest.raises(OptionsError, match="max_pixels"):
        processor_size("qwen2_vl", 8, 1080, 1920, max_pixels=most)
