"""Defaults that the environment sets: the backend and the device of requests that name none."""

from __future__ import annotations

import os
import re

from telecine.backends.registry import BUILT_IN, backend_names
from telecine.errors import OptionsError
from telecine.validation import format_value

__all__ = ["choose_backend"]

_DEVICE = re.compile(r"cpu|cuda(:0*(?P<number>[0-9]{1,3}))?")
_MAX_DEVICES = 128
"""More devices than any machine has; libraries store their number in as little as 7 bits."""


def choose_backend(backend: str | None, device: str | None) -> tuple[str, str]:
    """Return the names of the backend and of the device for a request; "auto" is "pyav" on the CPU.

    None stands for ``TELECINE_BACKEND``, else "auto", and for ``TELECINE_DEVICE``, else "cpu".
    """
    backend = (os.environ.get("TELECINE_BACKEND") or "auto") if backend is None else backend
    device = _parse_device((os.environ.get("TELECINE_DEVICE") or "cpu") if device is None else device)
    if not isinstance(backend, str) or (backend not in ("auto", *BUILT_IN) and backend not in backend_names()):
        raise OptionsError(
            f"backend is {format_value(backend)}; the backends are {', '.join(backend_names())} and auto"
        )
    if backend == "auto" and device == "cpu":
        backend = "pyav"
    return backend, device


def _parse_device(given: object) -> str:
    """Return the device by the name that every library takes: "cuda:1" for "cuda:01" too."""
    match = _DEVICE.fullmatch(given) if isinstance(given, str) else None
    if match is None or int(match["number"] or 0) >= _MAX_DEVICES:
        raise OptionsError(
            f'device is {format_value(given)}; it must be "cpu", "cuda" or "cuda:N", a string with '
            f"N from 0 to {_MAX_DEVICES - 1}"
        )
    return match[0] if match["number"] is None else f"cuda:{int(match['number'])}"
