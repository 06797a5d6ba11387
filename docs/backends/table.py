"""Writes docs/backends.md: the results of the conformance suite, and the example. See scripts/backends-table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import telecine
from telecine.testing import CASES, run_case

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "measured.json"
PAGE = HERE.parent / "backends.md"
TEMPLATE = HERE / "page.in"
EXAMPLE = HERE.parents[1] / "examples" / "backend_package"
ORDER = ("pyav", "nvdec", "opencv", "torchcodec", "pynvvideocodec", "deepstream")
OWN_PAGE = ORDER[2:]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite on the named backends, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="BACKEND")
    parser.add_argument("--device", default="cpu", metavar="NAME")
    arguments = parser.parse_args(argv)
    measured: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    usable = {status.name: status for status in telecine.list_backends() if status.usable}
    failed = False
    for name in arguments.names or usable:
        if name not in usable:
            sys.stderr.write(f"{name} is not usable here; it keeps what was measured before\n")
            continue
        outcomes = [asdict(run_case(case, name, arguments.device)) for case in CASES]
        failed |= any(outcome["verdict"] == "fails" for outcome in outcomes)
        label = name if arguments.device == "cpu" or name == "nvdec" else f"{name}, frames on the GPU"
        measured[label] = {"version": usable[name].version, "outcomes": outcomes}
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")
    PAGE.write_text(page(measured))
    return int(failed)


def page(measured: dict[str, Any]) -> str:
    """Return the page for these results."""
    labels = [*ORDER, *sorted(set(measured) - set(ORDER))]
    heads = [f"{label} {measured[label]['version']}" if label in measured else label for label in labels]
    lines = [f"| case | checks | {' | '.join(heads)} |", "|---|---|" + "---|" * len(labels)]
    notes: list[str] = []
    for case in CASES:
        cells = [_cell(case.name, measured.get(label), notes) for label in labels]
        lines.append(f"| {case.name} | {case.description} | {' | '.join(cells)} |")
    footnotes = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    parts = {
        "{table}": "\n".join([*lines, "", *footnotes]),
        "{pyproject}": (EXAMPLE / "pyproject.toml").read_text().strip(),
        "{module}": (EXAMPLE / "simple_backend.py").read_text().strip(),
    }
    text = TEMPLATE.read_text()
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def _cell(case: str, result: dict[str, Any] | None, notes: list[str]) -> str:
    if result is None:
        return "-"
    (found,) = [one for one in result["outcomes"] if one["case"] == case] or [None]
    if found is None:
        return "-"
    if found["verdict"] == "same":
        return ""
    if found["max_difference"] is not None and found["verdict"] == "differs":
        return f"up to {found['max_difference']}"
    detail = found["detail"].strip()
    if detail not in notes:
        notes.append(detail)
    return f"{found['verdict']} ({notes.index(detail) + 1})"


if __name__ == "__main__":
    sys.exit(main())
