"""The command ``telecine bench``: clips per second and latency, by the number of requests at once."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from telecine.errors import OptionsError
from telecine.frames import Frames
from telecine.pool import Pool
from telecine.source.urls import format_source

__all__ = ["Measurement", "add_bench_arguments", "bench", "measure", "parse_count"]

_MB = 1 << 20


@dataclass(frozen=True)
class Measurement:
    """Throughput and latency at one number of concurrent requests."""

    concurrency: int
    requests: int
    """Number of measured requests."""
    clips_per_second: float
    p50_seconds: float
    """Median time of a request, waiting included."""
    p99_seconds: float
    cpu_seconds_per_clip: float
    """Processor time of all threads of this process, per clip."""
    cores_busy: float
    """Processor time of all threads of this process, per second."""
    peak_mb: int | None
    """Largest resident memory seen at the end of a request; None if the system does not report it."""


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``telecine bench`` to a parser."""
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="path or URL of a video; several are used in turn")
    add(
        "--concurrency",
        type=lambda text: tuple(map(parse_count, text.split(","))),
        default=(1, 4, 16),
        metavar="N,N,...",
        help="requests at once (1,4,16)",
    )
    add("-n", "--num-frames", type=parse_count, default=8, metavar="N", help="frames of each clip, evenly spread (8)")
    add("--size", type=parse_count, metavar="N", help="length of the short side; pixels")
    add("--seconds", type=float, default=5.0, metavar="S", help="duration of each measurement (5)")
    add("--threads", type=parse_count, metavar="N", help="cores that the pool may keep busy; all when omitted")
    add("--backend", metavar="NAME", help="backend; chosen by the device when omitted")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N")


def bench(arguments: argparse.Namespace) -> Iterable[str]:
    """Run the measurements and return the lines of the result.

    Raises:
        TelecineError: a file cannot be decoded, or an option is wrong.
    """
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise OptionsError(f"--seconds is {arguments.seconds}; it must be a positive number")
    options = {name: getattr(arguments, name) for name in ("num_frames", "size", "backend", "device")}
    results = []
    for concurrency in arguments.concurrency:
        # no index cache, so that every clip counts as new
        with Pool(threads=arguments.threads, queue=concurrency, cache=0) as pool:
            results.append(measure(pool, arguments.files, concurrency, arguments.seconds, options))
    if not arguments.json:
        return _table(results)
    names = [format_source(file) for file in arguments.files]
    document = {"files": names, "options": options, "results": [asdict(result) for result in results]}
    return [json.dumps(document, indent=2)]


def measure(pool: Pool, files: Sequence[Any], concurrency: int, seconds: float, options: dict[str, Any]) -> Measurement:
    """Keep ``concurrency`` requests running for a number of seconds, and measure them.

    The files are used in turn. Each is decoded once before, which is not measured.
    """
    for file in files:
        pool.load(file, **options)
    durations: list[float] = []
    pending: dict[Future[Frames], float] = {}
    peak, submitted = 0, 0
    started, cpu = time.perf_counter(), time.process_time()
    try:
        while True:
            while len(pending) < concurrency and (submitted < concurrency or time.perf_counter() - started < seconds):
                now = time.perf_counter()
                pending[pool.submit(files[submitted % len(files)], **options)] = now
                submitted += 1
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                durations.append(time.perf_counter() - pending.pop(future))
                future.result()
            peak = max(peak, _resident_bytes())
    finally:
        for future in pending:
            future.cancel()
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    durations.sort()
    return Measurement(
        concurrency=concurrency,
        requests=submitted,
        clips_per_second=submitted / elapsed,
        p50_seconds=durations[(len(durations) - 1) // 2],
        p99_seconds=durations[math.ceil(0.99 * len(durations)) - 1],
        cpu_seconds_per_clip=cpu / submitted,
        cores_busy=cpu / elapsed,
        peak_mb=peak // _MB or None,
    )


def parse_count(text: str) -> int:
    """Parse a whole number from 1 on. Raises ``argparse.ArgumentTypeError``."""
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _table(results: list[Measurement]) -> Iterator[str]:
    yield f"{'at once':>8}{'clips/s':>10}{'p50 s':>9}{'p99 s':>9}{'CPU s/clip':>12}{'cores busy':>12}{'memory MB':>11}"
    for one in results:
        memory = "?" if one.peak_mb is None else str(one.peak_mb)
        yield (
            f"{one.concurrency:>8}{one.clips_per_second:>10.2f}{one.p50_seconds:>9.3f}{one.p99_seconds:>9.3f}"
            f"{one.cpu_seconds_per_clip:>12.3f}{one.cores_busy:>12.2f}{memory:>11}"
        )
