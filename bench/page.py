"""Writes tables of results files into a page of the documentation, between two markers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["rewrite"]

HERE = Path(__file__).resolve().parent


def rewrite(
    page: Path,
    markers: tuple[str, str],
    pattern: str,
    tables: Callable[[dict[str, Any]], str],
    argv: Sequence[str] | None = None,
) -> int:
    """Rewrite a page between its markers, and return the exit code.

    Args:
        page: path of the page.
        markers: the lines of the page before and after the text to replace.
        pattern: pattern of the results files in results/, if none is named.
        tables: returns the tables of one results file, as Markdown.
        argv: names of results files; the command line's if omitted.
    """
    begin, end = markers
    files = [Path(name) for name in (sys.argv[1:] if argv is None else argv)]
    files = files or sorted((HERE / "results").glob(pattern))
    head, found, rest = page.read_text().partition(begin)
    _, last, tail = rest.partition(end)
    if not files or not found or not last:
        sys.stderr.write(f"no results to show, or {page} lacks its markers\n")
        return 2
    sections = [tables(json.loads(file.read_text())) for file in files]
    page.write_text(f"{head}{begin}\n\n" + "\n\n".join(sections) + f"\n\n{end}{tail}")
    return 0
