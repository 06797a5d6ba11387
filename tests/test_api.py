"""The public functions: their options, layouts, and padding to a fixed count."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine import nvdec
from telecine.backends.registry import BUILT_IN, get_backend
from telecine.request import BackendOptions, LoadOptions, OpenOptions, PolicyName, Request, SamplingOptions
from telecine.sampling.policies import KEY_FRAMES, POLICIES
from telecine.sampling.select import Sampling

CLIP = CLIPS["base.mp4"]


def test_the_sampling_options_are_the_fields_of_sampling() -> None:
    assert set(SamplingOptions.__annotations__) == {field.name for field in fields(Sampling)}


def test_the_backend_options_are_those_that_the_built_in_backends_declare() -> None:
    declared = {name for backend in (*BUILT_IN, "auto") for name in get_backend(backend).options}
    assert set(BackendOptions.__annotations__) == declared


def test_the_policy_names_are_those_of_the_policies() -> None:
    assert set(get_args(PolicyName)) == {KEY_FRAMES, *POLICIES}


def test_the_signature_of_load_shows_every_option_and_its_default() -> None:
    parameters = inspect.signature(telecine.load).parameters
    assert list(parameters) == ["source", "timeout", *LoadOptions.__annotations__]
    defaults = {name: each.default for name, each in parameters.items() if each.default not in (None, each.empty)}
    assert defaults == {"errors": "recover", "layout": "NHWC"}


@pytest.mark.parametrize("function", [telecine.open, telecine.Video])
def test_the_signature_of_open_shows_every_option_that_does_not_choose_frames(function: Any) -> None:
    assert list(inspect.signature(function).parameters) == ["source", "timeout", *OpenOptions.__annotations__]


def test_the_docstring_of_load_explains_every_option_but_those_of_one_backend() -> None:
    assert telecine.load.__doc__ is not None
    for name in LoadOptions.__annotations__.keys() - BackendOptions.__annotations__.keys():
        assert f"\n        {name}: " in telecine.load.__doc__ or f"\n    {name}: " in telecine.load.__doc__, name


def test_functions_of_the_nvdec_engine_are_in_a_module_of_their_own() -> None:
    assert nvdec.__all__ == ["stats", "warm_up"]
    assert not hasattr(telecine, "warm_up")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("errors", "ignore", '"recover" or "strict"'),
        ("layout", "HWC", '"NHWC" or "NCHW"'),
        ("layout", None, '"NHWC" or "NCHW"'),
        ("pad", "zeros", '"repeat" or None'),
        ("pad", True, '"repeat" or None'),
        ("errors", np.zeros(3), '"recover" or "strict"'),
    ],
)
def test_an_unknown_choice_is_refused_with_those_that_are_allowed(option: str, value: Any, allowed: str) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(telecine.OptionsError, match=rf"^{option} is .*; it must be {allowed}$"):
        Request.of("clip.mp4", **options)


@pytest.mark.parametrize("size", [None, 40, (33, 47)])
def test_nchw_has_the_pixels_of_nhwc_in_contiguous_planes_on_the_cpu(size: Any) -> None:
    last = telecine.load(CLIP.path(), indices=[7, 3, 7], size=size)
    first = telecine.load(CLIP.path(), indices=[7, 3, 7], size=size, layout="NCHW")
    assert first.layout == "NCHW" and last.layout == "NHWC"
    assert first.shape == (3, 3, *last.shape[1:3])
    assert np.array_equal(first.data.transpose(0, 2, 3, 1), last.data)
    assert first.data.flags.c_contiguous


@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_nchw_is_a_view_on_other_backends(backend: str) -> None:
    status = {each.name: each for each in telecine.list_backends()}[backend]
    if not status.usable:
        pytest.skip(str(status.reason))
    first = telecine.load(CLIP.path(), num_frames=2, backend=backend, layout="NCHW")
    last = telecine.load(CLIP.path(), num_frames=2, backend=backend)
    assert np.array_equal(np.moveaxis(first.numpy(), 1, -1), last.numpy())


def test_nchw_of_a_damaged_clip_leaves_out_the_lost_frames() -> None:
    damaged = CLIPS["missing_reference.mp4"].path()
    last, first = telecine.load(damaged), telecine.load(damaged, layout="NCHW")
    assert first.report.lost and np.array_equal(first.indices, last.indices)
    assert np.array_equal(first.data.transpose(0, 2, 3, 1), last.data)
    assert first.data.flags.c_contiguous


@pytest.mark.parametrize("options", [{"num_frames": 64}, {"max_frames": 64}, {"num_frames": 64, "fps": 30}])
def test_padding_repeats_the_last_frame_of_a_short_clip(options: Any) -> None:
    plain = telecine.load(CLIP.path(), size=32, **options)
    padded = telecine.load(CLIP.path(), size=32, pad="repeat", **options)
    count = len(plain)
    assert count == 60 and len(padded) == 64
    assert np.array_equal(padded.data[:count], plain.data)
    assert (padded.data[count:] == plain.data[-1]).all()
    assert padded.indices.tolist() == [*plain.indices, *[plain.indices[-1]] * 4]
    assert padded.timestamps.tolist() == [*plain.timestamps, *[plain.timestamps[-1]] * 4]
    assert padded.mask.tolist() == [True] * count + [False] * 4
    assert plain.mask.all() and padded.report.lost == ()


def test_padding_leaves_a_complete_result_as_it_is() -> None:
    padded = telecine.load(CLIP.path(), num_frames=8, pad="repeat")
    assert len(padded) == 8 and padded.mask.all()


def test_padding_gives_a_damaged_clip_as_many_frames_as_were_asked_for() -> None:
    damaged = CLIPS["missing_reference.mp4"].path()
    plain = telecine.load(damaged)
    indices = [*plain.report.lost[:2], *plain.indices[:3], plain.report.lost[0]]
    padded = telecine.load(damaged, indices=indices, pad="repeat", layout="NCHW", size=32)
    assert padded.indices.tolist() == [*plain.indices[:3], *[plain.indices[2]] * 3]
    assert padded.mask.tolist() == [True] * 3 + [False] * 3
    assert padded.report.lost == plain.report.lost[:2]
    assert (padded.data[3:] == padded.data[2]).all() and padded.shape[:2] == (6, 3)


def test_padding_needs_a_fixed_count() -> None:
    with pytest.raises(telecine.OptionsError, match="num_frames, max_frames, indices or timestamps"):
        telecine.load(CLIP.path(), fps=2, pad="repeat")


def test_padding_counts_towards_the_limits_before_memory_is_taken() -> None:
    with pytest.raises(telecine.LimitError, match="max_frames"):
        telecine.load(CLIP.path(), num_frames=10**15, pad="repeat")
