"""Choices that the environment can make where the call does not."""

from __future__ import annotations

import os

from telecine.backends import TABLE, names
from telecine.errors import OptionsError

__all__ = ["choose"]


def choose(backend: str | None, device: str | None) -> tuple[str, str]:
    """Which backend decodes, and for which device; "auto" stays where that is seen only when it tries.

    Args:
        backend: its name, "auto", or None for ``TELECINE_BACKEND``, else "auto".
        device: "cpu", "cuda", "cuda:N", or None for ``TELECINE_DEVICE``, else "cpu".

    Raises:
        OptionsError: one is unknown.
    """
    backend = backend or os.environ.get("TELECINE_BACKEND") or "auto"
    device = device or os.environ.get("TELECINE_DEVICE") or "cpu"
    kind, colon, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isascii() and number.isdecimal())):
        raise OptionsError(f'device is {device!r}; it must be "cpu", "cuda" or "cuda:N"')
    if backend != "auto" and backend not in TABLE and backend not in (known := names()):
        raise OptionsError(f"backend is {backend!r}; the backends are {', '.join(known)} and auto")
    if backend == "auto" and kind == "cpu":
        backend = "pyav"
    return backend, device
