"""The conformance suite: checks that a backend, of this package or of another one, follows the contract.

::

    python -m telecine.testing NAME            # prints a line per case; the exit code is 1 if a case fails

    for case in CASES:                         # or in a test
        outcome = run_case(case, "mybackend")
        assert outcome.verdict != "fails", outcome

The clips are encoded in memory, and each frame shows its number, so a wrong frame is noticed without trust in another
decoder. Pixels are compared with those of the ffmpeg command line if the package ``imageio-ffmpeg`` is installed, else
with ``pyav``. A backend declares what it cannot do: ``refused_cases``, ``tolerances`` (a larger difference of pixels)
and ``detects_damage``. An undeclared refusal fails. No declaration allows a frame with a wrong index or time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from telecine.backends.registry import get_backend
from telecine.errors import UnsupportedVideoError
from telecine.settings import choose_backend
from telecine.testing.cases import CASES, BackendUnderTest, Case, Mismatch
from telecine.testing.comparison import MAX_DIFFERENCE

__all__ = ["CASES", "Case", "Outcome", "run_case"]


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    case: str
    verdict: str
    """"same" as the reference frames, "differs" or "refused" as the backend declares, or "fails"."""
    detail: str = ""
    max_difference: int | None = None
    """Largest difference of a pixel from the reference frames; None if no pixels were compared."""


def run_case(case: Case, backend: str, device: str = "cpu", seconds: float = 60.0, **options: Any) -> Outcome:
    """Run a case on a backend.

    Args:
        case: One of :data:`CASES`.
        backend: Name of a usable backend.
        device: Device for the frames.
        seconds: Time limit. A backend that exceeds it fails; its thread is left behind and ends with the process.
        options: Options of the backend.

    Raises:
        OptionsError: There is no such backend or device.
    """
    backend, device = choose_backend(backend, device)
    outcomes: list[Outcome] = []
    subject = BackendUnderTest(backend, device, options)
    thread = threading.Thread(target=lambda: outcomes.append(_check(case, subject)), daemon=True)
    thread.start()
    thread.join(seconds)
    return outcomes[0] if outcomes else Outcome(case.name, "fails", f"no result within {seconds:g} s")


def _check(case: Case, subject: BackendUnderTest) -> Outcome:
    backend = get_backend(subject.backend)
    allowed = MAX_DIFFERENCE[subject.device.partition(":")[0]]
    try:
        difference = case.check(subject)
    except UnsupportedVideoError as error:
        if not case.may_refuse:
            return Outcome(case.name, "fails", f"this video must not be refused: {error}")
        if case.name not in backend.refused_cases:
            return Outcome(case.name, "fails", f"{case.name!r} is not declared in refused_cases: {error}")
        return Outcome(case.name, "refused", str(error).partition(": ")[2] or str(error))
    except Mismatch as error:
        if case.needs_damage_detection and not backend.detects_damage:
            detail = "damage inside a picture is not reported: frames are as the decoder leaves them"
            return Outcome(case.name, "differs", detail)
        return Outcome(case.name, "fails", str(error))
    except Exception as error:  # any other error is not the expected one
        return Outcome(case.name, "fails", f"{type(error).__name__}: {error}")
    if difference is None or difference <= allowed:
        return Outcome(case.name, "same", "", difference)
    detail = f"pixels differ by up to {difference} from the reference frames"
    if difference <= backend.tolerances.get(case.name, allowed):
        return Outcome(case.name, "differs", detail, difference)
    return Outcome(case.name, "fails", f"{detail}; {allowed} are allowed", difference)
