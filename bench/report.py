"""Makes the tables of docs/performance.md from results files.

python bench/report.py [RESULTS.json...]     results/cpu-*.json if none is named
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from page import rewrite

__all__ = ["main", "tables"]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- cpu tables: begin (bench/report.py writes between these lines) -->", "<!-- cpu tables: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the page between its markers."""
    return rewrite(PAGE, (BEGIN, END), "cpu-*.json", tables, argv)


def tables(results: dict[str, Any]) -> str:
    """Return the section of one results file, as Markdown."""
    return "\n\n".join(section for section in _sections(results) if section)


def _sections(results: dict[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    yield f"### {machine['cpu']}, {machine['cores']} cores"
    yield (
        f"{results['date'][:10]}, commit {(results['commit'] or 'unknown')[:12]}, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, {results['rounds']} rounds."
    )
    if results["rows"]:
        yield _speed_table(results)
        yield from _remarks(results)
    yield _table_without_peers(results)
    versions = (f"{name} {version or 'not installed'}" for name, version in results["versions"].items())
    yield "Versions: " + ", ".join(versions) + "."
    recipes = dict.fromkeys((row["title"], row["recipe"]) for row in results["rows"])
    yield _details("Clips", [f"{title}: `{recipe}`" for title, recipe in recipes])
    yield _details("How each peer is used", [f"{peer['title']}: {peer['how']}" for peer in results["peers"]])


def _speed_table(results: dict[str, Any]) -> str:
    titles = [peer["title"] for peer in results["peers"]]
    lines = [_line(["clip", "wanted", "telecine", *titles, "to the best peer", "target", ""])]
    lines.append(_line(["---", *["---:"] * (len(titles) + 4), "---"]))
    for row in results["rows"]:
        if "failed" in row:
            nothing = ["-"] * (len(titles) + 2)
            lines.append(_line([row["title"], row["count"] or "all", row["failed"], *nothing, _verdict(False)]))
            continue
        cells = [_cell(row["peers"][peer["name"]], row["best"] == peer["name"]) for peer in results["peers"]]
        ratio = "-" if row["ratio_to_best"] is None else f"**{row['ratio_to_best']:.2f}**"
        wanted = "all" if row["count"] is None else row["wanted"]
        lines.append(
            _line([row["title"], wanted, _cell(row["telecine"]), *cells, ratio, row["target"], _verdict(row["met"])])
        )
    return "\n".join(lines)


def _cell(result: dict[str, Any], best: bool = False) -> str:
    """Return the median time and, in brackets, telecine's time divided by it."""
    if "median_seconds" not in result:
        return "failed" if result["installed"] else "not installed"
    text = _seconds(result["median_seconds"])
    if "ratio" in result:
        text += f" ({result['ratio']:.2f})"
    if not result["right"]:
        return f"wrong frames: ~~{text}~~"
    return f"**{text}**" if best else text


def _remarks(results: dict[str, Any]) -> Iterator[str]:
    """Yield remarks about missing peers, wrong frames, and differences from ffmpeg."""
    missing = [f"{peer['title']}: {peer['missing']}" for peer in results["peers"] if peer["missing"]]
    if missing:
        yield "Not installed: " + "; ".join(missing) + "."
    rows = [row for row in results["rows"] if "failed" not in row]
    titles = {peer["name"]: peer["title"] for peer in results["peers"]} | {"telecine": "telecine"}
    wrong: list[str] = []
    largest: dict[str, int] = {}
    spinning: dict[str, float] = {}
    for row in rows:
        for name, result in ({"telecine": row["telecine"]} | row["peers"]).items():
            if not result["right"] and result["installed"]:
                wrong.append(f"{titles[name]}, {row['title']}, {row['wanted']} wanted: {result['why']}")
            elif result["right"]:
                largest[name] = max(largest.get(name, 0), result["max"])
            if result.get("busy_after", 0.0) > 0.2:
                spinning[name] = max(spinning.get(name, 0.0), result["busy_after"])
    yield _details("Wrong frames and failures", wrong) if wrong else "No decoder returned a wrong frame."
    differences = ", ".join(f"{titles[name]} {difference}" for name, difference in largest.items())
    yield f"Largest difference from ffmpeg's `rgb24`, of 255: {differences}."
    if spinning:
        said = ", ".join(f"{titles[name]} {share:.1f}" for name, share in spinning.items())
        yield f"Cores that were still busy 30 ms after the decoder had returned: {said}."
    shares = [row for row in rows if row["index_target"]]
    if shares:
        said = ", ".join(f"{row['title']} {row['index_share']:.1%} ({_verdict(row['index_met'])})" for row in shares)
        target = shares[0]["index_target"]
        yield f"Share of packet index and plan in a request for 8 frames, target {target:.0%}: {said}."


def _table_without_peers(results: dict[str, Any]) -> str:
    """Return the table of the measurements without peers."""
    kinds = (("size=", "size", _size), ("telecine probe", "probe", _probe), ("memory", "memory", _memory))
    lines = []
    for what, name, describe in kinds:
        for result in results.get(name, []):
            said = (what, result["failed"], "-") if "failed" in result else describe(result)
            lines.append(_line([*said, _verdict(result["met"])]))
    if not lines:
        return ""
    return "\n".join([_line(["what", "measured", "target", ""]), _line(["---"] * 4), *lines])


def _size(result: dict[str, Any]) -> tuple[str, str, str]:
    what = f"`size={result['short_side']}`, 32 frames of the H.264 clip"
    against = f"{result['ratio_to_pillow']:.2f} of full size and Pillow"
    return what, f"{result['ratio_to_full']:.2f} of full size ({against})", f"{result['target']} of full size"


def _probe(result: dict[str, Any]) -> tuple[str, str, str]:
    what = f"`telecine probe`, {result['bytes'] / 1e9:.2f} GB, {result['frames']} frames"
    inside = f"in a running process {result['median_seconds_in_process']:.2f} s"
    return what, f"{result['median_seconds']:.2f} s ({inside})", f"{result['target']} s"


def _memory(result: dict[str, Any]) -> tuple[str, str, str]:
    what = f"memory, 8 frames of {result['minutes']:g} minutes, {result['threads']} threads"
    grown, bound = result["grown_bytes"] / 2**20, result["bound_bytes"] / 2**20
    held = "mapped" if result["mapped"] else "held in memory"
    return what, f"{grown:.0f} MiB (source {held})", f"{bound:.0f} MiB"


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _details(title: str, lines: Sequence[str]) -> str:
    """Return a collapsed list."""
    if not lines:
        return ""
    return "\n".join([f"<details><summary>{title}</summary>", "", *(f"- {line}" for line in lines), "", "</details>"])


if __name__ == "__main__":
    sys.exit(main())
