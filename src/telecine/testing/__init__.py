"""The contract of a backend as a suite that anyone can run, over a backend of this package or of another one.

::

    python -m telecine.testing NAME            # says of each case what came out; the exit code is 1 if one fails

    for case in CASES:                          # or in a test
        outcome = run(case, "mybackend")
        assert outcome.verdict != "fails", outcome

Clips are made in memory; each frame carries its number, so that no decoder has to be believed. What a backend may do
otherwise, it declares: ``tolerances``, a mapping from the name of a case to the largest difference of a pixel from
``pyav``, and ``differences``, from the name of a case to a reason in words. Neither excuses a wrong label, except in a
case whose ``excusable`` says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from telecine.backends.registry import get_backend
from telecine.errors import UnsupportedVideoError
from telecine.settings import choose_backend
from telecine.testing.cases import CASES, Case, Subject, Unequal

__all__ = ["CASES", "Case", "Outcome", "run"]

_TOLERANCE = {"cpu": 2, "cuda": 3}
"""Largest difference of a pixel from ``pyav`` that is the same for the rule."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: str
    verdict: str
    """"same", "differs" within what the backend declares, "refused" with a reason, or "fails"."""
    detail: str = ""
    largest: int | None = None
    """Largest difference of a pixel from ``pyav``; None where none was measured."""


def run(case: Case, backend: str, device: str = "cpu", seconds: float = 60.0, **options: Any) -> Outcome:
    """Try a backend in a case.

    Args:
        case: one of :data:`CASES`.
        backend: its name; it must be usable.
        device: where its frames go.
        seconds: after which it counts as hanging. It is left behind then, in a thread that ends with the process.
        options: of the backend.

    Raises:
        OptionsError: there is no such backend, or a device is never called so.
    """
    backend, device = choose_backend(backend, device)
    found: list[Outcome] = []
    subject = Subject(backend, device, options)
    thread = threading.Thread(target=lambda: found.append(_outcome(case, subject)), daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return Outcome(case.name, "fails", f"it gave no answer within {seconds:g} s")
    return found[0]


def _outcome(case: Case, subject: Subject) -> Outcome:
    made = get_backend(subject.backend)
    differences = getattr(made, "differences", {})
    usual = _TOLERANCE[subject.device.partition(":")[0]]
    try:
        largest = case.check(subject)
    except UnsupportedVideoError as error:
        if case.refusable:
            return Outcome(case.name, "refused", str(error).partition(": ")[2] or str(error))
        return Outcome(case.name, "fails", f"it must not refuse this: {error}")
    except Unequal as error:
        if case.excusable and case.name in differences:
            return Outcome(case.name, "differs", differences[case.name])
        return Outcome(case.name, "fails", str(error))
    except Exception as error:  # whatever else comes out is not of the tree, or not what was due
        return Outcome(case.name, "fails", f"{type(error).__name__}: {error}")
    if largest is None or largest <= usual:
        return Outcome(case.name, "same", "", largest)
    detail = f"pixels differ by up to {largest} from pyav"
    if largest <= getattr(made, "tolerances", {}).get(case.name, usual):
        return Outcome(case.name, "differs", detail, largest)
    return Outcome(case.name, "fails", f"{detail}; {usual} are allowed", largest)
