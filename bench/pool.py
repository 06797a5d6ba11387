"""Measures many requests at once: throughput and memory, short clips beside a long one, and ten thousand mixed clips.

    python bench/pool.py                      all of it; the soak alone takes about half an hour on two cores
    python bench/pool.py --parts throughput,mixed

Throughput: sixteen callers ask for 8 frames of a 13 s 1080p H.264 clip, again and again. The pool is compared with
every fixed number of threads and decoder threads, of which a search picks the best two, and with vLLM's arrangement: 8
loader threads, each with OpenCV and its default threads. They are timed in turns. The pool's packet index cache is off,
since it knows the clip after the first request. Mixed: a stream of 1 s clips alone, and then beside one 60-minute clip
of which 768 frames are wanted, by the same caller and by another. Soak: good and bad clips over 16 threads, watching
memory, threads and descriptors.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import cases  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
from cases import say  # noqa: E402

import telecine  # noqa: E402
from telecine import Pool, TelecineError, load  # noqa: E402
from telecine.cores import usable_cores  # noqa: E402

CALLERS = 16
COUNT = 8
MB = 1 << 20
FIXED = [(1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1), (4, 2), (8, 1), (8, 2), (16, 1)]
"""Threads, and decoder threads of each."""
TARGETS = {
    "ratio_to_best_fixed": 0.95,
    "ratio_to_vllm": 1.5,
    "p99_over_p50": 2.5,
    "short_p50_ratio": 2.0,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results file."""
    parser = argparse.ArgumentParser(description="Measure many requests at once.")
    parser.add_argument("--parts", default="throughput,memory,mixed,soak", help="which, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contender (5)")
    parser.add_argument("--decodes", type=int, default=10_000, help="of the soak (10000)")
    parser.add_argument("--output", type=Path, help="of the results; results/pool-CORES-cores.json when omitted")
    parser.add_argument("--memory-worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.memory_worker:
        sys.stdout.write(json.dumps(_peak_memory(arguments.memory_worker)))
        return 0
    output = arguments.output or HERE / "results" / f"pool-{usable_cores()}-cores.json"
    document = json.loads(output.read_text()) if output.exists() else {}
    document |= {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": usable_cores(),
        "versions": peers.versions(),
        "targets": TARGETS,
    }
    run: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: throughput(arguments.rounds),
        "memory": memory,
        "mixed": mixed,
        "soak": lambda: soak(arguments.decodes),
    }
    for part in arguments.parts.split(","):
        load_before = os.getloadavg()[0]
        say(f"{part} (load {load_before:.1f})")
        document[part] = run[part]() | {"load_before": round(load_before, 2)}
        say(json.dumps(document[part], indent=1))
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _case(name: str) -> Path:
    return cases.make(next(case for case in cases.CASES if case.name == name))


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def throughput(rounds: int) -> dict[str, Any]:
    """Clips per second of the pool, the best fixed setting, and vLLM's arrangement."""
    path = _case("h264")
    latencies: list[float] = []
    total = 2 * CALLERS

    def ask(pool: Pool) -> None:
        started = time.perf_counter()
        pool.load(path, num_frames=COUNT, errors="strict")
        latencies.append(time.perf_counter() - started)

    def pooled() -> None:
        with Pool(cache=0) as pool, ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(lambda _: ask(pool), range(total)))

    def fixed(workers: int, threads: int, clips: int) -> Callable[[], None]:
        def one(_: int) -> None:
            load(path, num_frames=COUNT, backend="pyav", threads=threads)

        def run() -> None:
            with ThreadPoolExecutor(workers) as executor:
                list(executor.map(one, range(clips)))

        return run

    opencv = next(peer for peer in peers.PEERS if peer.name == "opencv").variants[""]
    wanted = load(path, num_frames=COUNT).indices.tolist()

    def vllm() -> None:
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(lambda _: opencv(str(path), wanted), range(total)))

    with Pool() as pool:
        assert np.array_equal(pool.load(path, num_frames=COUNT).data, load(path, num_frames=COUNT).data)
    search = {f"{w} workers, {t} threads": _timed(fixed(w, t, 8))[0] for w, t in FIXED}
    best = sorted(FIXED, key=lambda setting: search[f"{setting[0]} workers, {setting[1]} threads"])[:2]
    contenders: dict[str, Callable[[], None]] = {"pool": pooled, "vllm": vllm}
    contenders |= {f"fixed {w}x{t}": fixed(w, t, total) for w, t in best}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    latencies.clear()
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(_timed(run))

    def ratio(name: str) -> float:
        return statistics.median(b[0] / a[0] for a, b in zip(times["pool"], times[name], strict=True))

    latencies.sort()
    p50, p99 = statistics.median(latencies), latencies[int(0.99 * len(latencies))]
    return {
        "clips_per_second": {n: round(total / statistics.median(w for w, _ in t), 3) for n, t in times.items()},
        "cpu_seconds_per_clip": {n: round(statistics.median(c for _, c in t) / total, 3) for n, t in times.items()},
        "search_seconds": {name: round(seconds, 2) for name, seconds in search.items()},
        "ratio_to_best_fixed": round(min(ratio(name) for name in times if name.startswith("fixed")), 3),
        "ratio_to_vllm": round(ratio("vllm"), 3),
        "p50_seconds": round(p50, 3),
        "p99_seconds": round(p99, 3),
        "p99_over_p50": round(p99 / p50, 2),
    }


def memory() -> dict[str, Any]:
    """Peak of a process whose pool has sixteen requests, beyond what it had before."""
    path = _case("h264")
    done = subprocess.run(
        [sys.executable, __file__, "--memory-worker", str(path)], capture_output=True, text=True, check=True
    )
    peak: dict[str, Any] = json.loads(done.stdout)
    output = COUNT * 1920 * 1080 * 3
    peak["allowed_mb"] = round(CALLERS * (output + 16 * 1920 * 1080 * 1.5 + 64 * MB) / MB)
    return peak


def _peak_memory(path: str) -> dict[str, Any]:
    load(path, num_frames=1)
    before = _peak_kb()
    with Pool(cache=0) as pool:
        futures = [pool.submit(path, num_frames=COUNT) for _ in range(CALLERS)]
        kept = [future.result() for future in futures]
    return {
        "peak_mb": round((_peak_kb() - before) / 1024),
        "of_which_results_mb": sum(f.data.nbytes for f in kept) // MB,
    }


def _peak_kb() -> int:
    # getrusage() would also count what the parent had before it became this program
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def mixed() -> dict[str, Any]:
    """Latency of short clips alone, and beside a long one."""
    short, long = _case("h264-1s"), _long_clip()
    found: dict[str, Any] = {}

    def stream(pool: Pool, pause: float, seconds: float) -> list[float]:
        taken, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.perf_counter()
            pool.load(short, num_frames=COUNT, caller="short")
            taken.append(time.perf_counter() - started)
            time.sleep(pause)
        return taken

    for name, caller, pause in (
        ("same caller", "short", 0.2),
        ("another caller", "long", 0.2),
        ("no pause", "long", 0.0),
    ):
        alone, beside, progress = [], [], []
        for _ in range(2):  # in turns, for the machine's other work
            with Pool() as pool:
                stream(pool, pause, 1)
                alone += stream(pool, pause, 5)
                future = pool.submit(long, num_frames=768, size=224, caller=caller)
                time.sleep(3)
                (job,) = pool._crew.jobs
                held = job.claim.held
                beside += stream(pool, pause, 8)
                progress.append((job.claim.held - held) / 8)
                assert not future.done(), "the long clip is too short for this machine"
                future.cancel()
        found[name] = {
            "alone_p50": round(statistics.median(alone), 4),
            "beside_p50": round(statistics.median(beside), 4),
            "short_p50_ratio": round(statistics.median(beside) / statistics.median(alone), 2),
            "alone_p95": round(sorted(alone)[int(0.95 * len(alone))], 4),
            "beside_p95": round(sorted(beside)[int(0.95 * len(beside))], 4),
            "long_had_the_cores": round(statistics.median(progress), 2),
        }
    return found


def _long_clip() -> Path:
    path = cases.cache_folder() / "pool-60-minutes.mp4"
    return path if path.exists() else cases.loop(_case("h264"), 277, path)


def soak(decodes: int) -> dict[str, Any]:
    """Good and bad clips over sixteen threads. Every bad one must fail as itself, and nothing may be left behind."""
    video = _case("h264-1s").read_bytes()
    small = cases.cache_folder() / "pool-small.mp4"
    if not small.exists():
        cases.ffmpeg(
            "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=2", "-c:v", "libx264", "-bf", "2", small
        )
    good = small.read_bytes()
    rng = np.random.default_rng(1)
    kinds: list[tuple[Any, dict[str, Any], tuple[type[BaseException], ...] | None]] = [
        (small, {}, None),
        (good, {"size": (90, 160)}, None),
        (good, {"indices": [49, 0, 20]}, None),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(400), {}, (telecine.SourceError,)),
        (good[: len(good) // 2], {}, (telecine.SourceError,)),
        (b"<html>no</html>", {}, (telecine.SourceError,)),
        (Path("/no/such.mp4"), {}, (telecine.SourceError,)),
        (good, {"indices": [10**6]}, (telecine.OptionsError,)),
        (good, {"limits": telecine.Limits(max_packets=5)}, (telecine.LimitError,)),
        (video, {"timeout": 0.001}, (telecine.DeadlineError,)),
    ]
    wrong: list[str] = []
    expected = {
        i: load(source, num_frames=4) for i, (source, options, error) in enumerate(kinds) if not (error or options)
    }

    def one(pool: Pool, i: int) -> None:
        kind = i % (len(kinds) + 1)
        if kind == len(kinds):  # damaged somewhere: frames or an error of the tree, but an answer
            data = bytearray(good)
            for at in rng.integers(len(data) // 4, len(data), 20):
                data[at] ^= 255
            try:
                pool.load(bytes(data), num_frames=4, timeout=60)
            except TelecineError:
                pass
            return
        source, options, error = kinds[kind]
        try:
            frames = pool.load(source, **({"num_frames": 4} if "indices" not in options else {}), **options)
            right = error is None and (kind not in expected or np.array_equal(frames.data, expected[kind].data))
        except TelecineError as failure:
            right = error is not None and isinstance(failure, error)
        if not right:
            wrong.append(f"request {i}, kind {kind}")

    def state() -> dict[str, int]:
        gc.collect()
        fields = Path("/proc/self/statm").read_text().split()
        return {
            "resident_mb": int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // MB,
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    started, states = time.perf_counter(), []
    with Pool() as pool, ThreadPoolExecutor(CALLERS) as callers:
        counter = itertools.count()
        for _ in range(10):
            list(callers.map(lambda _: one(pool, next(counter)), range(decodes // 10)))
            states.append(state())
        left = pool.status()
    return {
        "decodes": decodes,
        "seconds": round(time.perf_counter() - started, 1),
        "wrong": wrong[:20],
        "states": states,
        "left": {"running": left.running, "queued": left.queued, "stuck": left.stuck, "leased": left.memory_leased},
    }


if __name__ == "__main__":
    sys.exit(main())
