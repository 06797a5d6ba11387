"""Benchmark of telecine.Pool: throughput, memory, short clips beside a long one, and ten thousand mixed clips.

    python bench/pool.py                                   everything: about an hour on two cores, mostly the soak
    python bench/pool.py --parts throughput,mixed          some parts; the results file keeps those of the others
    python bench/pool.py --rounds 1 --seconds 2 --decodes 220    a short test of the benchmark itself

Throughput: sixteen callers load 8 frames of a 13 s 1080p H.264 clip repeatedly. The pool is compared with fixed numbers
of threads and decoder threads, of which a search picks the best three, and with the setup of vLLM: 8 loader threads,
each with OpenCV and its default threads. All are timed alternately. The packet index cache is off, because it would
have the clip after the first request. Memory: the peak of a process with sixteen such requests at once. Mixed: latency
of 1 s clips alone, and beside a 60-minute clip of which 768 frames are decoded, for the same caller and for another.
Soak: good and bad clips over 16 threads. Each result is compared with that of a single thread, and memory, threads and
descriptors must not grow.

The results are written to results/pool-MACHINE.json. pool_table.py makes the table of docs/pool.md from them.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import cases  # noqa: E402
import cpu  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
from cases import say  # noqa: E402

import telecine  # noqa: E402
from telecine import Pool, TelecineError, load  # noqa: E402
from telecine.pool.job import Job  # noqa: E402
from telecine.system import usable_cores  # noqa: E402

CALLERS = 16
COUNT = 8
MB = 1 << 20
TARGETS = {
    "ratio_to_best_fixed": 0.95,
    "ratio_to_vllm": 1.5,
    "p99_over_p50": 2.5,
    "short_p50_ratio": 2.0,
}
_GIVE_UP_SECONDS = 120.0
"""Seconds after which a request of the soak counts as hanging."""
_PAUSING = {"same caller": "short", "another caller": "long"}
"""Caller of the long clip in the cases in which the short requests pause between each other."""
_GROWTH_MB, _GROWTH_COUNT = 16, 4
"""Allowed growth of memory, and of threads or descriptors, in the second half of the soak."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and write the results file."""
    parser = argparse.ArgumentParser(description="Measure many requests at once.")
    parser.add_argument("--parts", default="throughput,memory,mixed,soak", help="which, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in each of which every contender runs once (5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a stream of short clips (8)")
    parser.add_argument("--decodes", type=int, default=10_000, help="of the soak (10000)")
    parser.add_argument("--machine", help="name for the results file; made from CPU and cores when omitted")
    parser.add_argument("--output", type=Path, help="another path for the results")
    parser.add_argument("--memory-worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.memory_worker:
        sys.stdout.write(json.dumps(_peak_memory(arguments.memory_worker)))
        return 0
    run: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: throughput(arguments.rounds),
        "memory": memory,
        "mixed": lambda: mixed(arguments.seconds),
        "soak": lambda: soak(arguments.decodes),
    }
    parts = arguments.parts.split(",")
    if unknown := set(parts) - run.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(run)}")
    machine = cpu._machine()
    name = arguments.machine or re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']}".lower()).strip("-")
    output = arguments.output or HERE / "results" / f"pool-{name}.json"
    document = json.loads(output.read_text()) if output.exists() else {}
    document |= {"machine": machine, "versions": peers.versions(), "targets": TARGETS}
    for part in parts:
        load_before, started = os.getloadavg()[0], time.monotonic()
        say(f"{part} (load {load_before:.1f})")
        document[part] = run[part]() | {
            "load_before": round(load_before, 2),
            "minutes": round((time.monotonic() - started) / 60, 1),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": cpu._commit(),
        }
        say(json.dumps(document[part], indent=1))
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {output}")
    return 0


def _case(name: str) -> Path:
    return cases.make(next(case for case in cases.CASES if case.name == name))


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def throughput(rounds: int) -> dict[str, Any]:
    """Measure clips per second of the pool, of the best fixed setting, and of the setup of vLLM."""
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
    settings = _fixed_settings(usable_cores())
    search = {(w, t): _timed(fixed(w, t, CALLERS))[0] for w, t in settings}
    best = sorted(settings, key=search.__getitem__)[:3]
    contenders: dict[str, Callable[[], None]] = {"pool": pooled, "vllm": vllm}
    contenders |= {f"fixed {_words(*setting)}": fixed(*setting, total) for setting in best}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    latencies.clear()
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(_timed(run))

    def ratio(name: str) -> float:
        return statistics.median(b[0] / a[0] for a, b in zip(times["pool"], times[name], strict=True))

    best_fixed = min((name for name in times if name.startswith("fixed")), key=ratio)
    p50, p99 = statistics.median(latencies), _percentile(latencies, 0.99)
    found = {
        "rounds": rounds,
        "requests_in_a_round": total,
        "clips_per_second": {n: round(total / statistics.median(w for w, _ in t), 3) for n, t in times.items()},
        "cpu_seconds_per_clip": {n: round(statistics.median(c for _, c in t) / total, 3) for n, t in times.items()},
        "search_seconds": {_words(*setting): round(seconds, 2) for setting, seconds in search.items()},
        "best_fixed": best_fixed,
        "ratio_to_best_fixed": round(ratio(best_fixed), 3),
        "ratio_to_vllm": round(ratio("vllm"), 3),
        "p50_seconds": round(p50, 3),
        "p99_seconds": round(p99, 3),
        "p99_over_p50": round(p99 / p50, 2),
    }
    at_least = all(found[name] >= TARGETS[name] for name in ("ratio_to_best_fixed", "ratio_to_vllm"))
    return found | {"met": at_least and found["p99_over_p50"] <= TARGETS["p99_over_p50"]}


def _fixed_settings(cores: int) -> list[tuple[int, int]]:
    """Return numbers of threads and of decoder threads whose product is one to eight times the number of cores."""
    counts = (1, 2, 3, 4, 6, 8, 12, 16)
    return [(w, t) for w in counts for t in counts if cores <= w * t <= 8 * cores and t <= 2 * cores + 2]


def _words(workers: int, threads: int) -> str:
    return f"{workers} workers, {threads} decoder threads"


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def memory() -> dict[str, Any]:
    """Measure the peak memory that sixteen requests add to a process."""
    path = _case("h264")
    done = subprocess.run(
        [sys.executable, __file__, "--memory-worker", str(path)], capture_output=True, text=True, check=True
    )
    peak: dict[str, Any] = json.loads(done.stdout)
    output = COUNT * 1920 * 1080 * 3
    peak["allowed_mb"] = round(CALLERS * (output + 16 * 1920 * 1080 * 1.5 + 64 * MB) / MB)
    return peak | {"met": peak["peak_mb"] <= peak["allowed_mb"]}


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


def mixed(seconds: float) -> dict[str, Any]:
    """Measure the latency of short clips alone, and beside a long one."""
    short, long = _case("h264-1s"), _long_clip()
    found: dict[str, Any] = {}

    def stream(pool: Pool, pause: float, goes_on: Callable[[], bool]) -> list[float]:
        taken = []
        while goes_on():
            started = time.perf_counter()
            pool.load(short, num_frames=COUNT, caller="short")
            taken.append(time.perf_counter() - started)
            time.sleep(pause)
        return taken

    for name, caller, pause in (
        *((name, caller, 0.2) for name, caller in _PAUSING.items()),
        ("another caller, no pause", "long", 0.0),
    ):
        alone, index, decode, progress = [], [], [], []
        for _ in range(2):  # alternately, because of other load on the machine
            with Pool() as pool:
                stream(pool, pause, _for(1.0))
                alone += stream(pool, pause, _for(seconds))
                future = pool.submit(long, num_frames=768, size=224, caller=caller)
                (job,) = pool._workers.jobs
                index += stream(pool, pause, partial(_reads_its_index, job, time.monotonic() + _GIVE_UP_SECONDS))
                held, started = job.task.run_seconds, time.monotonic()
                decode += stream(pool, pause, _for(seconds))
                progress.append((job.task.run_seconds - held) / (time.monotonic() - started))
                assert not future.done(), "the long clip is too short for this machine"
                future.cancel()
        found[name] = {
            "alone": _latencies(alone),
            "beside_its_index": _latencies(index),
            "beside_its_decode": _latencies(decode),
            "short_p50_ratio": round(statistics.median(index + decode) / statistics.median(alone), 2),
            "long_had_cores": round(statistics.median(progress), 2),
        }
    # two callers who never stop share the machine, so that half of it is all there is for either
    met = all(one["short_p50_ratio"] <= TARGETS["short_p50_ratio"] for name, one in found.items() if name in _PAUSING)
    return found | {"met": met}


def _for(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _reads_its_index(job: Job, until: float) -> bool:
    return not job.task.is_decoding and time.monotonic() < until


def _latencies(taken: list[float]) -> dict[str, float]:
    percentiles = {f"p{share:.0%}"[:-1]: round(_percentile(taken, share), 4) for share in (0.5, 0.95, 0.99)}
    return {"clips": len(taken), **percentiles}


def _long_clip() -> Path:
    path = cases.cache_folder() / "pool-60-minutes.mp4"
    return path if path.exists() else cases.loop(_case("h264"), 277, path)


Expected: TypeAlias = "np.ndarray[Any, Any] | type[BaseException]"


def soak(decodes: int) -> dict[str, Any]:
    """Load good and bad clips from sixteen threads. Each must give its own frames or error, and nothing may leak."""
    kinds = _kinds()
    expected: list[Expected] = [_answer(lambda kind=kind: load(kind[0], **kind[1])) for kind in kinds]
    wrong: list[str] = []

    def one(pool: Pool, i: int) -> None:
        source, options = kinds[i % len(kinds)]
        got = _answer(lambda: pool.submit(source, **options).result(_GIVE_UP_SECONDS))
        right = expected[i % len(kinds)]
        same = np.array_equal(got, right) if isinstance(got, np.ndarray) else got is right
        if not same:
            wrong.append(f"request {i}, kind {i % len(kinds)}: {got if isinstance(got, type) else 'other frames'}")

    started, states = time.perf_counter(), []
    # a small cache is full soon: growth after that is a leak
    with Pool(cache=2 * MB, hash_content=True) as pool, ThreadPoolExecutor(CALLERS) as callers:
        counter = itertools.count()
        for _ in range(10):
            list(callers.map(lambda _: one(pool, next(counter)), range(decodes // 10)))
            states.append(_state())
        left = pool.status()
    grown = {name: states[-1][name] - states[4][name] for name in states[-1]}
    held = {"running": left.running, "queued": left.queued, "stuck": left.stuck, "leased": left.memory_leased}
    few = grown["threads"] <= _GROWTH_COUNT and grown["descriptors"] <= _GROWTH_COUNT
    return {
        "decodes": decodes // 10 * 10,
        "seconds": round(time.perf_counter() - started, 1),
        "bad_kinds": sum(isinstance(answer, type) for answer in expected),
        "good_kinds": sum(isinstance(answer, np.ndarray) for answer in expected),
        "wrong": len(wrong),
        "of_which": wrong[:20],
        "states": states,
        "grown_in_second_half": grown,
        "left": held,
        "met": not wrong and few and grown["resident_mb"] <= _GROWTH_MB and not any(held.values()),
    }


def _kinds() -> list[tuple[Any, dict[str, Any]]]:
    """Return the sources of the soak with their options, in the order in which they repeat."""
    video = _case("h264-1s").read_bytes()
    small = cases.cache_folder() / "pool-small.mp4"
    if not small.exists():
        cases.ffmpeg(
            "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=2", "-c:v", "libx264", "-bf", "2", small
        )
    good = small.read_bytes()
    few = {"num_frames": 4}
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (small, few),
        (good, few | {"size": (90, 160)}),
        (good, {"indices": [49, 0, 20]}),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(400), few),
        (good[: len(good) // 2], few),
        (b"<html>no</html>", few),
        (Path("/no/such.mp4"), few),
        (good, {"indices": [10**6]}),
        (good, few | {"limits": telecine.Limits(max_packets=5)}),
        (video, {"num_frames": 25, "timeout": 0.001}),
    ]
    draw = np.random.default_rng(1)
    for _ in range(12):  # damaged somewhere: some frames, or none
        data = bytearray(good)
        for at in draw.integers(len(data) // 8, len(data), 20):
            data[at] ^= 255
        kinds.append((bytes(data), few))
    return kinds


def _answer(ask: Callable[[], telecine.Frames]) -> Expected:
    """Return the frames, or the class of the error."""
    try:
        return ask().numpy()
    except (TelecineError, FutureTimeout) as error:
        return type(error)


def _state() -> dict[str, int]:
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return {
        "resident_mb": int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // MB,
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    sys.exit(main())
