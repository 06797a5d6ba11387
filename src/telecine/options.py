"""The options that backends take beside those of every request: declared by each, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telecine.errors import OptionsError

__all__ = ["Option", "check"]

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}


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

    def accepts(self, value: Any) -> bool:
        """Whether a value may be given."""
        if isinstance(value, bool) is not (self.kind is bool):
            return False
        if self.kind is str:
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if not isinstance(value, (int, float) if self.kind is float else int):
            return False
        # written so that a NaN is refused
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        return low <= value <= high


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
        if not own[name].accepts(value):
            raise OptionsError(f"{name} is {value!r}; for {backend} it must be {own[name].allowed()}")
        values[name] = value
    return values
