"""The child process that runs cases: one JSON line in for each case, lines about its progress and its result out."""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import telecine
from fuzz import container_mutations, packet_mutations, remux_mutations
from fuzz.mutations import Case, make_case
from fuzz.verdicts import LIMITS, Finding, check_case
from telecine.backends.registry import get_backend

__all__ = ["main", "run_case"]

_MUTATIONS = (container_mutations, packet_mutations, remux_mutations)
"""Modules that register mutators."""
_MAX_ADDRESS_SPACE = 12 << 30
_MAX_MEMORY_GROWTH = 400 << 20
"""Bytes by which a case may raise the resident memory, among them the output of at most ``LIMITS.max_output_bytes``."""


def run_case(case: Case, backend: str) -> dict[str, Any]:
    """Run a case on a backend, and return a record of its result."""

    def load(source: bytes, **options: Any) -> telecine.Frames:
        return telecine.load(source, backend=backend, limits=LIMITS, **options)

    started, before = time.monotonic(), _reset_peak()
    findings: list[Finding] = []
    try:
        outcome, found = check_case(case, load, get_backend(backend).detects_damage)
        findings += found
    except Exception as error:
        outcome = type(error).__name__
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{outcome}: {error} at {Path(where.filename).name}:{where.lineno}"
        findings.append(Finding("foreign exception", detail))
        traceback.print_exc()
    growth = _peak() - before
    if growth > _MAX_MEMORY_GROWTH:
        findings.append(Finding("memory", f"+{growth >> 20} MiB"))
    return {
        "outcome": outcome,
        "seconds": round(time.monotonic() - started, 3),
        "findings": [[finding.verdict, finding.detail] for finding in findings],
    }


def _reset_peak() -> int:
    """Set the peak of resident memory back to its present value, and return that, bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def main() -> None:
    """Answer requests from standard input until it ends."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    for line in sys.stdin:
        request = json.loads(line)
        case = make_case(request["number"])
        _tell({"case": str(case)})
        _tell(run_case(case, request["backend"]))


def _tell(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
