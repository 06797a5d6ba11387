"""Validation of option values: numbers of any library, error messages, and the options that backends declare."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from telecine.errors import OptionsError

__all__ = ["Option", "check_options", "format_value", "to_float", "to_int"]

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
_MAX_CHARACTERS = 100
"""Characters of a refused value that an error message quotes."""


def to_int(value: object) -> int | None:
    """Return a whole number as ``int``, NumPy's too; None for anything else, ``bool`` included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the attempt is the test
    except TypeError:
        return None


def to_float(value: object) -> float | None:
    """Return a number as ``float``, NumPy's too, infinite if too large; None for anything else, ``bool`` included."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def format_value(value: object) -> str:
    """Format a refused value for an error message, in bounded length."""
    try:
        text = repr(value)
    except Exception:  # Python prints no integer of over 4300 digits, and a foreign object may raise anything
        return f"something of type {type(value).__name__} that cannot be printed"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


@dataclass(frozen=True)
class Option:
    """Declaration of a backend's option."""

    kind: type
    """bool, int, float or str."""
    default: Any
    """Value if the option is not given; None if the backend decides."""
    meaning: str
    """Description, half a sentence."""
    low: float | None = None
    """Smallest number allowed."""
    high: float | None = None
    """Largest number allowed."""
    choices: tuple[str, ...] = ()
    """Strings allowed; any if empty."""

    def describe_allowed(self) -> str:
        """Return the allowed values in words."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        bounds = ""
        if self.low is not None:
            bounds = f" from {self.low:g} to {self.high:g}" if self.high is not None else f" from {self.low:g} on"
        return _KINDS[self.kind] + bounds

    def parse(self, value: Any) -> Any:
        """Return a value as a Python object, None if it is not allowed."""
        if self.kind is bool:
            return value if isinstance(value, bool) else None
        if self.kind is str:
            return value if isinstance(value, str) and (not self.choices or value in self.choices) else None
        number = to_float(value) if self.kind is float else to_int(value)
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        # the comparison refuses NaN
        return number if number is not None and low <= number <= high else None


def check_options(
    backend: str, given: Mapping[str, Any], own: Mapping[str, Option], others: Mapping[str, Mapping[str, Option]]
) -> dict[str, Any]:
    """Return the backend options of a call, completed with the defaults.

    Args:
        backend: name of the backend that is to decode.
        given: options of the call; None counts as not given.
        own: options that this backend declares.
        others: options that each backend declares, to name the owner of a misplaced option.

    Raises:
        OptionsError: an option is unknown, belongs to another backend, or has a value that is not allowed.
    """
    for name in given:
        if name not in own:
            owners = [other for other, declared in others.items() if name in declared and other != backend]
            known = f"its options are: {', '.join(own)}" if own else "it has no options"
            if owners:
                raise OptionsError(f"{name} is an option of {' and '.join(owners)}, not of {backend}; {known}")
            raise OptionsError(f"{backend} has no option {name}; {known}")
    values = {name: option.default for name, option in own.items()}
    for name, value in given.items():
        if value is None:
            continue
        values[name] = own[name].parse(value)
        if values[name] is None:
            allowed = own[name].describe_allowed()
            raise OptionsError(f"{name} is {format_value(value)}; for {backend} it must be {allowed}")
    return values
