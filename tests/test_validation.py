"""Options are checked before anything is decoded."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.settings import choose_backend
from telecine.validation import Option, check_options, format_value, to_float, to_int

CLIP = CLIPS["base.mp4"]


def refused(message: str, **options: Any) -> None:
    with pytest.raises(telecine.OptionsError) as caught:
        telecine.load(CLIP.path(), **options)
    assert message in str(caught.value)


def test_option_of_another_backend_is_refused_with_its_owner() -> None:
    refused("seek_mode is an option of torchcodec, not of pyav; its options are: threads", seek_mode="exact")
    refused("hw_decoders is an option of pynvvideocodec, not of opencv", backend="opencv", hw_decoders=1)


def test_owner_of_an_option_is_named_even_if_not_installed() -> None:
    refused("seek_mode is an option of torchcodec, not of deepstream", backend="deepstream", seek_mode="exact")


def test_unknown_option_error_lists_the_known_options() -> None:
    refused("pyav has no option thread; its options are: threads", thread=1)
    refused("its options are: num_ffmpeg_threads, seek_mode", backend="torchcodec", nonsense=1)


def test_unknown_backend_error_lists_the_known_backends() -> None:
    refused("backend is 'nonsense'; the backends are pyav, ", backend="nonsense")


@pytest.mark.parametrize("value", [0, 65, "4", 2.0, True])
def test_option_out_of_bounds_error_says_what_is_allowed(value: Any) -> None:
    refused("for pyav it must be a whole number from 1 to 64", threads=value)


def test_option_none_means_the_default() -> None:
    assert len(telecine.load(CLIP.path(), num_frames=1, threads=None)) == 1


@pytest.mark.parametrize(
    ("option", "accepted", "refused_values"),
    [
        (Option(int, 1, 0, 4), [0, 4, np.int64(3), np.uint8(4)], [-1, 5, 1.0, True, np.True_, "1", np.float64(1)]),
        (
            Option(float, 1.0, 0.5),
            [0.5, 1, math.inf, np.float32(0.5), np.int64(2), Fraction(1, 2), 10**400],
            [0.4, math.nan, True, np.True_, "1", 1j, -(10**400)],
        ),
        (Option(bool, True), [True, False], [1, 0, "true"]),
        (Option(str, "a", choices=("a", "b")), ["a", "b"], ["c", 1, b"a"]),
        (Option(str, ""), ["", "any"], [1]),
        (Option(int), [-5, 10**9], [0.5]),
    ],
)
def test_option_parse_accepts_and_refuses_values(
    option: Option, accepted: list[Any], refused_values: list[Any]
) -> None:
    for value in accepted:
        assert option.parse(value) == (to_float(value) if option.kind is float else value)
        assert type(option.parse(value)) is option.kind  # a number of Python, whatever was given
    assert [option.parse(value) for value in refused_values] == [None] * len(refused_values)
    assert option.describe_allowed()


def test_to_int_and_to_float_accept_numbers_only() -> None:
    assert [to_int(value) for value in (3, np.int8(3), np.uint64(2**63))] == [3, 3, 2**63]
    assert [to_int(value) for value in (True, 3.0, np.float64(3), "3", None, [3])] == [None] * 6
    assert [to_float(value) for value in (3, np.float32(0.5), Fraction(1, 4), 10**400)] == [3.0, 0.5, 0.25, math.inf]
    assert to_float(-(10**400)) == -math.inf
    assert [to_float(value) for value in (True, np.True_, "3", None, 1j)] == [None] * 5


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_format_value_is_bounded_for_any_value() -> None:
    assert format_value("x") == "'x'"
    assert len(format_value(list(range(1000)))) == 103
    assert format_value(10**5000) == "something of type int that cannot be printed"
    assert format_value(Unprintable()) == "something of type Unprintable that cannot be printed"


@pytest.mark.parametrize(
    "value", [1, 0, object(), "gpu", "", "cuda:", "cuda:-1", "cuda:\u00b2", "cuda:1_0", "cuda0", "cpu:0"]
)
def test_invalid_device_is_refused(value: Any) -> None:
    refused('it must be "cpu", "cuda" or "cuda:N", a string with N from 0 to 127', device=value)


@pytest.mark.parametrize("number", ["128", "99999999999", "9" * 5000])
def test_device_number_is_bounded(number: str) -> None:
    refused("N from 0 to 127", device=f"cuda:{number}")


def test_leading_zeros_of_a_device_number_are_removed() -> None:
    assert choose_backend("auto", "cuda:007") == ("auto", "cuda:7")
    assert choose_backend("nvdec", "cuda:127") == ("nvdec", "cuda:127")


@pytest.mark.parametrize("value", [5, ["pyav"], "", {}, 10**5000], ids=lambda value: type(value).__name__)
def test_backend_must_be_a_string(value: Any) -> None:
    refused("the backends are pyav, ", backend=value)


@pytest.mark.parametrize("limits", [{}, {"max_pixels": 3}, 3, False])
def test_limits_option_must_be_limits(limits: Any) -> None:
    refused("limits is", limits=limits)
    with pytest.raises(telecine.OptionsError, match=r"it must be a telecine\.Limits, or None"):
        telecine.probe(CLIP.path(), limits=limits)


@pytest.mark.parametrize("errors", ["lenient", ["strict"], np.array([1, 2]), None])
def test_errors_option_must_be_recover_or_strict(errors: Any) -> None:
    refused('it must be "recover" or "strict"', errors=errors)


def test_numpy_numbers_are_accepted_by_every_option() -> None:
    frames = telecine.load(
        CLIP.path(), num_frames=np.int64(2), size=(np.int64(32), np.uint8(48)), threads=np.int64(1),
        timeout=np.float32(60), limits=telecine.Limits(max_pixels=np.int64(2**26), read_timeout=np.float32(5)),  # type: ignore[arg-type]
    )  # fmt: skip
    assert frames.data.shape == (2, 32, 48, 3)
    assert telecine.load(CLIP.path(), num_frames=1, size=np.int64(32)).data.shape[1] == 32


def test_check_options_returns_the_defaults_too() -> None:
    own = {"one": Option(int, 1), "two": Option(str, "x")}
    assert check_options("mine", {"two": "y"}, own, {}) == {"one": 1, "two": "y"}
