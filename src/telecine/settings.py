"""Choices that the environment can make where the call does not."""

from __future__ import annotations

import os

from telecine.backends.base import TABLE, names
from telecine.errors import OptionsError
from telecine.validation import shown

__all__ = ["choose"]

_MOST_DEVICES = 128
"""More than any machine has; libraries count devices in as little as 7 bits."""


def choose(backend: str | None, device: str | None) -> tuple[str, str]:
    """Which backend decodes, and for which device; "auto" stays where that is seen only when it tries.

    Args:
        backend: its name, "auto", or None for ``TELECINE_BACKEND``, else "auto".
        device: "cpu", "cuda", "cuda:N", or None for ``TELECINE_DEVICE``, else "cpu".

    Raises:
        OptionsError: one is unknown.
    """
    backend = (os.environ.get("TELECINE_BACKEND") or "auto") if backend is None else backend
    device = _device((os.environ.get("TELECINE_DEVICE") or "cpu") if device is None else device)
    known = isinstance(backend, str) and (backend == "auto" or backend in TABLE or backend in names())
    if not known:
        raise OptionsError(f"backend is {shown(backend)}; the backends are {', '.join(names())} and auto")
    if backend == "auto" and device == "cpu":
        backend = "pyav"
    return backend, device


def _device(given: object) -> str:
    """A device by the name that every library takes: "cuda:1" for "cuda:01" too."""
    text = given if isinstance(given, str) else ""
    if text in ("cpu", "cuda"):
        return text
    number = text.removeprefix("cuda:")
    is_number = number != text and number.isascii() and number.isdecimal() and len(number) <= 9
    if not is_number or int(number) >= _MOST_DEVICES:
        raise OptionsError(
            f'device is {shown(given)}; it must be "cpu", "cuda" or "cuda:N", a string with '
            f"N from 0 to {_MOST_DEVICES - 1}"
        )
    return f"cuda:{int(number)}"
