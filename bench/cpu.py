"""Measures telecine on the CPU against other decoders, after comparing their frames.

    python bench/cpu.py                 every case of cases.py
    python bench/cpu.py FILE...         these videos only
    python bench/cpu.py --cases h264,hevc --rounds 3

For each clip, a new process lets every decoder decode the wanted frames once, and compares them with those of the
ffmpeg command line. A decoder with wrong frames is listed, but never counts as the best peer. Then all are timed
alternately, from a path whose bytes are in the page cache to RGB pixels in host memory. Results go to
results/cpu-MACHINE.json, from which report.py makes the table of docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import cases  # noqa: E402
import check  # noqa: E402
import extras  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
from cases import Case, say  # noqa: E402
from timing import Times, ratio, time_alternately  # noqa: E402

_INDEX_TARGET = 0.05
"""Largest allowed share of the packet index and the plan in a request for 8 frames."""
_EXTRAS = ("size", "probe", "memory")
_MEMORY_CASE = Case("small", "H.264 1080p, small", "-c:v libx264 -preset medium -crf 36", 0.0, seconds=10.0)
_JOB_SECONDS = 7200


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results file."""
    arguments = _parser().parse_args(argv)
    if arguments.worker:
        sys.stdout.write(json.dumps(_work(json.load(sys.stdin))))
        return 0
    chosen = [cases.extra_case(file) for file in arguments.files] or [*cases.CASES]
    wanted_cases = arguments.cases.split(",") if arguments.cases else [*(case.name for case in chosen), *_EXTRAS]
    unknown = set(wanted_cases) - {case.name for case in chosen} - set(_EXTRAS)
    if unknown:
        known = [case.name for case in chosen] + list(_EXTRAS)
        say(f"no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    machine = _machine()
    name = arguments.machine or re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']}".lower()).strip("-")
    output = arguments.output or HERE / "results" / f"cpu-{name}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine,
        "versions": peers.versions(),
        "rounds": arguments.rounds,
        "peers": [{"name": p.name, "title": p.title, "how": p.how, "missing": p.missing()} for p in peers.PEERS],
        "rows": [],
    }
    for case in chosen:
        for count in case.wanted if case.name in wanted_cases else ():
            document["rows"].append(_row(case, count, arguments.rounds))
            _write(document, output)
    for name in () if arguments.files else _EXTRAS:
        if name in wanted_cases:
            document[name] = _extra(name, arguments.rounds)
            _write(document, output)
    say(f"wrote {output}")
    return 0


def _write(document: dict[str, Any], output: Path) -> None:
    """Write the results so far; called after each row, so that an interrupted benchmark keeps them."""
    output.write_text(json.dumps(document, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure telecine on the CPU against other decoders.")
    parser.add_argument("files", nargs="*", type=Path, help="videos to measure instead of the made clips")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, in each of which every decoder runs once (7)")
    parser.add_argument("--cases", help="only these, by name, with commas")
    parser.add_argument("--machine", help="name for the results file; made from CPU and cores when omitted")
    parser.add_argument("--output", type=Path, help="another path for the results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _row(case: Case, count: int | None, rounds: int) -> dict[str, Any]:
    """Measure one clip for one number of frames, and compare with the target."""
    path = cases.make(case)
    load = os.getloadavg()[0]
    say(f"{case.title}, {'every frame' if count is None else f'{count} frames'} (load {load:.1f})")
    row = {
        "case": case.name,
        "title": case.title,
        "recipe": case.recipe,
        "bytes": path.stat().st_size,
        "count": count,
        "load_before": round(load, 2),
        "target": case.target,
        "index_target": _INDEX_TARGET if count == 8 and case.seconds > 1 else None,
    }
    measured = _in_process({"kind": "peers", "path": str(path), "count": count, "rounds": rounds})
    if "failed" in measured:
        return row | measured | {"met": False}
    for name, result in (measured["peers"] | {"telecine": measured["telecine"]}).items():
        said = f"{result['median_seconds']:.3f} s" if "median_seconds" in result else "not timed"
        said += f", ratio {result['ratio']:.2f}" if "ratio" in result else ""
        say(f"  {name:24}{said}" + ("" if result["right"] else f"  {result['why']}"))
    best, share = measured["ratio_to_best"], measured["index_share"]
    row |= measured
    row["met"] = measured["telecine"]["right"] and best is not None and best <= case.target
    row["index_met"] = share <= _INDEX_TARGET if row["index_target"] else None
    verdict = "no peer to compare with" if best is None else f"{best:.3f} of {measured['best']}, target {case.target}"
    say(f"  {verdict}: {'met' if row['met'] else 'MISSED'}; index and plan {share:.1%}")
    return row


def _extra(name: str, rounds: int) -> Any:
    """Run a measurement without peers."""
    say(f"{name} (load {os.getloadavg()[0]:.1f})")
    clip = cases.make(next(case for case in cases.CASES if case.name == "h264"))
    if name == "memory":
        small = cases.make(_MEMORY_CASE)
        results = [extras.measure_memory(small, minutes, _MEMORY_CASE.seconds, _in_process) for minutes in (1, 60)]
    elif name == "size":
        results = [_in_process({"kind": "size", "path": str(clip), "count": 32, "rounds": rounds})]
    else:
        results = [extras.measure_probe(clip, rounds)]
    for result in results:
        say(f"  {extras.summary(name, result)}: {'met' if result['met'] else 'MISSED'}")
    return results


def _in_process(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a new process, which inherits no memory, threads or crash of the case before."""
    command = [sys.executable, __file__, "--worker"]
    done = subprocess.run(
        command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, timeout=_JOB_SECONDS, check=False
    )
    if done.returncode:
        say(f"  the process that measured {Path(job['path']).name} ended with {done.returncode}")
        return {"failed": f"ended with {done.returncode}", "met": False}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _work(job: dict[str, Any]) -> dict[str, Any]:
    if job["kind"] == "memory":
        return extras.watch_memory(job["path"], job["frames"], job["threads"])
    import telecine

    info = telecine.probe(job["path"])
    count = info.num_frames if job["count"] is None else min(job["count"], info.num_frames)
    indices = np.linspace(0, info.num_frames - 1, count).astype(int).tolist()
    if job["kind"] == "size":
        return extras.measure_size(job["path"], indices, job["rounds"])
    return {
        "codec": info.codec,
        "frames": info.num_frames,
        "wanted": count,
        **_against_peers(job["path"], indices, info.height, info.width, job["rounds"]),
        "index_share": _index_share(job["path"], indices, job["rounds"]),
    }


def _against_peers(path: str, indices: list[int], height: int, width: int, rounds: int) -> dict[str, Any]:
    """Compare the frames of every decoder, then time those that did not fail."""
    truth = check.truth_of(Path(path), indices, height, width)
    results: dict[str, dict[str, Any]] = {}
    decoders: dict[str, peers.Decode] = {}
    for peer in (peers.TELECINE, *peers.PEERS):
        missing = peer.missing()
        if missing:
            results[peer.name] = {"right": False, "why": f"not installed: {missing}", "installed": False}
            continue
        # every setting decodes the same frames, so one comparison suffices
        first = next(iter(peer.variants.values()))
        try:
            results[peer.name] = {"installed": True, **check.compare(first(path, indices), truth)}
            variant = _fastest(peer, path, indices)
        except Exception as error:  # a peer may raise anything, and that is its result
            results[peer.name] = {"installed": True, "right": False, "why": f"{type(error).__name__}: {error}"[:300]}
            continue
        results[peer.name]["variant"] = variant
        decoders[peer.name] = peer.variants[variant]
    neighbour_psnr = truth.neighbour_psnr
    del truth
    contenders = {name: partial(decode, path, indices) for name, decode in decoders.items()}
    times = time_alternately(contenders, rounds, 3 * height * width * len(indices))
    for name, taken in times.items():
        results[name] |= taken.as_json()
    ours = results.pop("telecine")
    best = _compare_times(times, results) if "telecine" in times else None
    return {
        "neighbour_psnr": round(neighbour_psnr, 2),
        "telecine": ours,
        "peers": results,
        "best": best,
        "ratio_to_best": results[best]["ratio"] if best else None,
    }


def _compare_times(times: dict[str, Times], results: dict[str, dict[str, Any]]) -> str | None:
    """Add the ratio of our time to each peer's, and return the fastest peer with right frames."""
    for name, taken in times.items():
        if name in results:
            results[name]["ratio"] = round(ratio(times["telecine"], taken), 4)
    right = [name for name in times if name in results and results[name]["right"]]
    return min(right, key=lambda name: times[name].median) if right else None


def _fastest(peer: peers.Peer, path: str, indices: list[int]) -> str:
    """Return the setting of a peer that is fastest on this clip, of two tries each."""
    if len(peer.variants) == 1:
        return next(iter(peer.variants))
    tried = time_alternately({name: partial(decode, path, indices) for name, decode in peer.variants.items()}, 2)
    return min(tried, key=lambda name: min(tried[name].seconds))


def _index_share(path: str, indices: list[int], rounds: int) -> float:
    """Return the share of a request before decoding starts: opening, packet index and plan."""
    import telecine

    shares = []
    for _ in range(rounds):
        started = time.perf_counter()
        stages = telecine.load(path, indices=indices).report.seconds
        whole = time.perf_counter() - started
        shares.append(sum(stages.get(stage, 0.0) for stage in ("source", "index", "plan")) / whole)
    return float(round(statistics.median(shares), 4))


def _machine() -> dict[str, Any]:
    from telecine.system import usable_cores

    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": usable_cores(),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _commit() -> str | None:
    """Return the measured commit, with a plus sign if files differ from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "src"], cwd=HERE.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
