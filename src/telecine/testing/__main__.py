"""``python -m telecine.testing NAME [--device DEVICE] [--json]``: run the conformance suite on a backend."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from telecine.backends.registry import prepare_backend
from telecine.errors import TelecineError
from telecine.settings import choose_backend
from telecine.testing import CASES, run_case

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run all cases, print one line per case, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m telecine.testing", description="Run the conformance suite.")
    parser.add_argument("backend", metavar="NAME", help="name of the backend")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    try:
        prepare_backend(*choose_backend(arguments.backend, arguments.device), {})
    except TelecineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    outcomes = []
    for case in CASES:
        outcome = run_case(case, arguments.backend, arguments.device)
        outcomes.append(asdict(outcome))
        if not arguments.json:
            sys.stdout.write(f"{outcome.verdict:8} {outcome.case:18} {outcome.detail}\n")
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps(outcomes, indent=2) + "\n")
    return int(any(outcome["verdict"] == "fails" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
