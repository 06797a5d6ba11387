"""The sizes that models' processors make."""

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
def test_known_sizes(fit, count, size, expected):
    assert processor_size(fit, count, *size) == expected


def test_a_given_budget_takes_the_place_of_the_models_own():
    assert processor_size("qwen2_vl", 8, 1080, 1920, max_pixels=602_112) == (560, 1008)


def test_a_size_that_was_made_is_made_again():
    """So the processor finds nothing to resize. Not so for ribbons: one patch high, they are over budget once more."""
    chooser = random.Random(1)
    for _ in range(500):
        count, height, width = chooser.randint(2, 768), chooser.randint(300, 3000), chooser.randint(300, 3000)
        for fit in FITS:
            once = processor_size(fit, count, height, width)
            assert processor_size(fit, count, *once) == once


def test_what_the_model_would_refuse_is_refused():
    with pytest.raises(OptionsError, match="ratio up to 200"):
        processor_size("qwen3_vl", 8, 32, 32 * 201)
    with pytest.raises(OptionsError, match="it must be one of: qwen2_vl, "):
        processor_size("qwen9", 8, 32, 32)


@pytest.mark.parametrize("fit", FITS)
def test_the_sizes_are_those_of_transformers(fit):
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
def test_a_budget_that_is_no_number_of_pixels_is_refused(most):
    with pytest.raises(OptionsError, match="max_pixels"):
        processor_size("qwen2_vl", 8, 1080, 1920, max_pixels=most)
