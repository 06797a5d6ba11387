"""What options may be: numbers of any library, told apart in one place, and the options that backends declare."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from telecine.errors import OptionsError

__all__ = ["Option", "check", "real", "shown", "whole"]

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}
_MOST_SHOWN = 100
"""Characters of a refused value that a message quotes."""


def whole(value: object) -> int | None:
    """The whole number that a value is, NumPy's included; None for anything else, so for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # asking is the only way to know
    except TypeError:
        return None


def real(value: object) -> float | None:
    """The number that a value is, NumPy's included, infinite beyond floats; None for anything else, so for a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def shown(value: object) -> str:
    """A refused value as a message quotes it: of a bounded length, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # Python prints no whole number of over 4300 digits, and a stranger's object may do anything
        return f"something of type {type(value).__name__} that cannot be printed"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


@dataclass(frozen=True)
class Option:
    """What a backend's option may be."""

    kind: type
    """bool, int, float or str."""
    default: Any
    """What it is when it is not given; None where the backend decides."""
    meaning: str
    """For people, in half a sentence."""
    low: float | None = None
    """Least number allowed."""
    high: float | None = None
    """Largest number allowed."""
    choices: tuple[str, ...] = ()
    """The strings allowed, where not any."""

    def allowed(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        bounds = ""
        if self.low is not None:
            bounds = f" from {self.low:g} to {self.high:g}" if self.high is not None else f" from {self.low:g} on"
        return _KINDS[self.kind] + bounds

    def read(self, value: Any) -> Any:
        """The value as Python has it, a number of NumPy's too; None where it is not allowed."""
        if self.kind is bool:
            return value if isinstance(value, bool) else None
        if self.kind is str:
            return value if isinstance(value, str) and (not self.choices or value in self.choices) else None
        number = real(value) if self.kind is float else whole(value)
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        # written so that a NaN is refused
        return number if number is not None and low <= number <= high else None


def check(
    backend: str, given: Mapping[str, Any], own: Mapping[str, Option], others: Mapping[str, Mapping[str, Option]]
) -> dict[str, Any]:
    """The options of a call, complete with the defaults.

    Args:
        backend: the name of the one that is to decode.
        given: what the call says; None counts as not given.
        own: what that backend declares.
        others: what each backend declares, to tell whose an option is.

    Raises:
        OptionsError: one is unknown, belongs to another backend, or has a value that is not allowed.
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
        values[name] = own[name].read(value)
        if values[name] is None:
            raise OptionsError(f"{name} is {shown(value)}; for {backend} it must be {own[name].allowed()}")
    return values
