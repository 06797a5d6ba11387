"""Write the table of docs/pool.md from a results file of bench/pool.py.

python bench/pool_table.py [RESULTS.json...]     results/pool-*.json when none is named
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from page import rewrite

__all__ = ["main", "table"]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "pool.md"
BEGIN, END = "<!-- pool table: begin (bench/pool_table.py writes between these lines) -->", "<!-- pool table: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite the table on the page."""
    return rewrite(PAGE, (BEGIN, END), "pool-*.json", table, argv)


def table(results: dict[str, Any]) -> str:
    """Return the contents of a results file as a Markdown table."""
    machine, parts = results["machine"], [name for name in _ROWS if name in results]
    when = ", ".join(dict.fromkeys(results[name]["date"][:10] for name in parts))
    software = f"Python {machine['python']}, PyAV {results['versions']['av']}"
    head = f"{machine['cpu']}, {machine['cores']} cores, {software}; {when}."
    lines = ["| | measured | wanted | |", "|---|---|---|---|"]
    for name in parts:
        lines += ["| " + " | ".join(row) + " |" for row in _ROWS[name](results[name], results["targets"])]
    return f"{head}\n\n" + "\n".join(lines)


Row = tuple[str, str, str, str]


def _throughput(found: dict[str, Any], targets: dict[str, float]) -> Iterator[Row]:
    best = found["best_fixed"].removeprefix("fixed ")
    speed, work = found["clips_per_second"], found["cpu_seconds_per_clip"]
    yield (
        f"16 callers, 8 frames of a 1080p H.264 clip of 13 s: clips per second against the best fixed setting ({best})",
        f"{found['ratio_to_best_fixed']:.2f} ({speed['pool']:.2f} : {speed[found['best_fixed']]:.2f})",
        f"at least {targets['ratio_to_best_fixed']}",
        _verdict(found["ratio_to_best_fixed"] >= targets["ratio_to_best_fixed"]),
    )
    yield (
        "the same against the setup of vLLM (8 threads, each with OpenCV)",
        f"{found['ratio_to_vllm']:.2f} ({speed['pool']:.2f} : {speed['vllm']:.2f})",
        f"at least {targets['ratio_to_vllm']}",
        _verdict(found["ratio_to_vllm"] >= targets["ratio_to_vllm"]),
    )
    yield (
        "processor seconds for a clip: pool, best fixed setting, setup of vLLM",
        ", ".join(f"{work[name]:.2f}" for name in ("pool", found["best_fixed"], "vllm")),
        "",
        "",
    )
    yield (
        "p99 over p50 of those callers",
        f"{found['p99_over_p50']:.2f} ({found['p99_seconds']:.1f} s : {found['p50_seconds']:.1f} s)",
        f"at most {targets['p99_over_p50']}",
        _verdict(found["p99_over_p50"] <= targets["p99_over_p50"]),
    )


def _memory(found: dict[str, Any], targets: dict[str, float]) -> Iterator[Row]:
    yield (
        f"memory of 16 such requests, of which {found['of_which_results_mb']} MB are the results",
        f"{found['peak_mb']} MB",
        f"at most {found['allowed_mb']} MB",
        _verdict(found["met"]),
    )


def _mixed(found: dict[str, Any], targets: dict[str, float]) -> Iterator[Row]:
    for name, one in found.items():
        if not isinstance(one, dict):
            continue
        alone, beside = one["alone"], one["beside_its_decode"]
        yield (
            f"p50 of a stream of 1 s clips beside a 60-minute clip (768 frames), against alone: {name}",
            f"{one['short_p50_ratio']:.2f} (p95 {alone['p95']:.2f} s alone, {beside['p95']:.2f} s beside; the long one "
            f"had {one['long_had_cores']:.0%} of the time)",
            "half of the machine" if "no pause" in name else f"at most {targets['short_p50_ratio']:g}",
            "" if "no pause" in name else _verdict(one["short_p50_ratio"] <= targets["short_p50_ratio"]),
        )


def _soak(found: dict[str, Any], targets: dict[str, float]) -> Iterator[Row]:
    grown, kinds = found["grown_in_second_half"], found["bad_kinds"] + found["good_kinds"]
    yield (
        f"{found['decodes']} decodes over 16 threads, {found['bad_kinds']} of {kinds} kinds bad: wrong answers",
        str(found["wrong"]),
        "0",
        _verdict(found["wrong"] == 0),
    )
    yield (
        "the same, growth over the second half: memory, threads, descriptors",
        f"{grown['resident_mb']} MB, {grown['threads']}, {grown['descriptors']}",
        "level",
        _verdict(found["met"]),
    )


_ROWS = {"throughput": _throughput, "memory": _memory, "mixed": _mixed, "soak": _soak}


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    sys.exit(main())
