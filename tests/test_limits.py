"""Limits of a request: allowed values, defaults."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import telecine
from telecine.errors import OptionsError
from telecine.limits import Limits


def test_negative_limit_is_refused_by_name() -> None:
    with pytest.raises(OptionsError, match="max_frames is -1"):
        Limits(max_frames=-1)
    assert Limits(max_frames=0).max_frames == 0


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [math.nan, "x", ["1"], np.array([1]), b"1", 1j, -math.inf, -(10**400)], ids=repr)
def test_limit_that_is_no_comparable_number_is_refused(name: str, value: Any) -> None:
    """No number is larger than NaN, so as a limit it would allow everything."""
    with pytest.raises(OptionsError, match=rf"limits: {name} is .*; it must be "):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["max_bytes", "max_pixels", "max_packets", "max_frames", "max_redirects"])
@pytest.mark.parametrize("value", [2.5, 2.0, True, math.inf])
def test_limit_of_a_count_must_be_a_whole_number(name: str, value: Any) -> None:
    """``range`` and slices take no others."""
    with pytest.raises(OptionsError, match="a whole number from 0 on"):
        Limits(**{name: value})


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout"])
@pytest.mark.parametrize("value", [math.inf, 1e7, 10**400])
def test_network_timeout_above_the_socket_limit_is_refused(name: str, value: Any) -> None:
    """Sockets count milliseconds in 31 bits."""
    with pytest.raises(OptionsError, match="from 0 to 1000000"):
        Limits(**{name: value})


def test_permission_must_be_true_or_false() -> None:
    """1 and "no" are true in Python, too."""
    for value in (1, "no", 0):
        with pytest.raises(OptionsError, match=r"allow_private_hosts is .*True or False"):
            Limits(allow_private_hosts=value)  # type: ignore[arg-type]


def test_numpy_limits_become_python_numbers() -> None:
    """A product of NumPy numbers could overflow."""
    limits = Limits(max_pixels=np.int64(2**40), max_seconds=np.float32(2), max_frames=np.uint8(7))  # type: ignore[arg-type]
    assert limits == Limits(max_pixels=2**40, max_seconds=2.0, max_frames=7)
    assert [type(value) for value in (limits.max_pixels, limits.max_seconds, limits.max_frames)] == [int, float, int]
    assert Limits(max_seconds=math.inf).max_seconds == math.inf


def test_limits_of_accepts_limits_or_none() -> None:
    """None means the defaults; other values are refused."""
    limits = Limits(max_frames=3)
    assert Limits.of(limits) is limits
    assert Limits.of(None) == Limits()
    for other in ({}, {"max_frames": 3}, 3, Limits):
        with pytest.raises(OptionsError, match=r"it must be a telecine\.Limits"):
            Limits.of(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source_bytes", "allowed"), [(0, 1 << 30), (296, 1 << 30), (100_000, 2_000_000_000), (1 << 30, 16 << 30)]
)
def test_the_default_limit_of_the_output_follows_the_size_of_the_source(source_bytes: int, allowed: int) -> None:
    assert Limits().output_bytes(source_bytes) == allowed
    assert Limits(max_output_bytes=5).output_bytes(source_bytes) == 5


def test_a_tiny_file_cannot_take_gigabytes_unasked() -> None:
    """A GIF of one pixel's data whose screen is 8192x8192: 1.6 GB for eight frames."""
    frame = b"!\xf9\x04\x04\x0a\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0"
    tiny = b"GIF89a\x00\x20\x00\x20\x80\0\0\0\0\0\xff\xff\xff" + 8 * frame + b";"
    with pytest.raises(telecine.LimitError, match="max_output_bytes is 1073741824"):
        telecine.load(tiny)
    assert telecine.load(tiny, size=64).data.shape == (8, 64, 64, 3)
