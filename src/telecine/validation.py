"""Validation of option values: numbers of any library, error messages, fields, and options that backends declare."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, TypeVar

from telecine.errors import OptionsError

__all__ = ["Checked", "Option", "check_int", "check_options", "format_value", "to_float", "to_int"]

Given = TypeVar("Given")
Kept = TypeVar("Kept")

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


def check_int(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return a whole number from ``low`` to ``high`` as ``int``, or raise OptionsError that names the argument."""
    return Option(int, low=low, high=high).check(name, value)  # type: ignore[no-any-return]


class Checked(Generic[Given, Kept]):
    """Dataclass field that checks and converts the value it is given. If the default is None, None is not checked.

    Args:
        default: the default of the field, converted already.
        check: returns the converted value for the name of the field and the value given; raises OptionsError.
    """

    def __init__(self, default: Kept, check: Callable[[str, Given], Kept]) -> None:
        self._default, self._check = default, check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Kept:
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: Given) -> None:
        is_default = value is None and self._default is None
        instance.__dict__[self._name] = self._default if is_default else self._check(self._name, value)


@dataclass(frozen=True)
class Option:
    """Declaration of an option: the values allowed, and the default of an option of a backend."""

    kind: type
    """bool, int, float or str."""
    default: Any = None
    """Value if the option is not given; None if the backend decides."""
    low: float | None = None
    """Smallest number allowed."""
    high: float | None = None
    """Largest number allowed."""
    choices: tuple[str, ...] = ()
    """Strings allowed; any if empty."""

    def describe_allowed(self) -> str:
        """Return the allowed values in words."""
        if self.choices:
            quoted = [f'"{choice}"' for choice in self.choices]
            return " or ".join([*quoted, "None"] if self.default is None else quoted)
        if self.low is None:
            return _KINDS[self.kind]
        return f"{_KINDS[self.kind]} from {self.low} {'on' if self.high is None else f'to {self.high}'}"

    def parse(self, value: Any) -> Any:
        """Return a value as a Python object, None if it is not allowed."""
        if self.kind in (bool, str):
            return value if isinstance(value, self.kind) and (not self.choices or value in self.choices) else None
        number = to_float(value) if self.kind is float else to_int(value)
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        # the comparison refuses NaN
        return number if number is not None and low <= number <= high else None

    def check(self, name: str, value: Any, where: str = "") -> Any:
        """Return a value as a Python object, or raise OptionsError that says where it is not allowed."""
        parsed = self.parse(value)
        if parsed is None:
            raise OptionsError(f"{name} is {format_value(value)}; {where}it must be {self.describe_allowed()}")
        return parsed


def check_options(
    backend: str, given: Mapping[str, Any], own: Mapping[str, Option], others: Mapping[str, Mapping[str, Option]]
) -> dict[str, Any]:
    """Return the backend options of a call, completed with the defaults. ``others`` has the options of each backend."""
    for name in given:
        if name not in own:
            owners = [other for other, declared in others.items() if name in declared and other != backend]
            known = f"its options are: {', '.join(own)}" if own else "it has no options"
            if owners:
                raise OptionsError(f"{name} is an option of {' and '.join(owners)}, not of {backend}; {known}")
            raise OptionsError(f"{backend} has no option {name}; {known}")
    values = {name: option.default for name, option in own.items()}
    for name, value in given.items():
        if value is not None:
            values[name] = own[name].check(name, value, f"for {backend} ")
    return values
