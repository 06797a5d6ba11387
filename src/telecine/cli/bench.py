"""``telecine bench``: clips per second, and the time that each takes, by how many are decoded at once."""

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

__all__ = ["Measured", "add_bench_arguments", "bench", "measure"]

_MB = 1 << 20


@dataclass(frozen=True)
class Measured:
    """What was measured with so many requests at once."""

    concurrency: int
    requests: int
    """That were counted."""
    clips_per_second: float
    p50_seconds: float
    """Half of the requests took no longer, waiting included."""
    p99_seconds: float
    cpu_seconds_per_clip: float
    """Processor time of all threads of this process."""
    cores_busy: float
    """The same for each second that passed."""
    peak_mb: int | None
    """Largest resident memory seen when a request ended; None where the system does not say."""


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of ``telecine bench``."""
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="path or URL of a video; several are taken in turns")
    add("--concurrency", type=_counts, default=(1, 4, 16), metavar="N,N,...", help="requests at once (1,4,16)")
    add("-n", "--num-frames", type=_whole, default=8, metavar="N", help="frames of each clip, evenly spread (8)")
    add("--size", type=_whole, metavar="N", help="length of the short side; pixels")
    add("--seconds", type=float, default=5.0, metavar="S", help="how long to measure each (5)")
    add("--threads", type=_whole, metavar="N", help="cores that the pool may keep busy; all when omitted")
    add("--backend", metavar="NAME", help="that decodes; chosen when omitted")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N")


def bench(arguments: argparse.Namespace) -> Iterable[str]:
    """Do what the command line says.

    Yields:
        The lines of the answer.

    Raises:
        TelecineError: a file cannot be decoded, or an option is wrong.
    """
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise OptionsError(f"--seconds is {arguments.seconds}; it must be a positive number")
    options = {name: getattr(arguments, name) for name in ("num_frames", "size", "backend", "device")}
    results = []
    for concurrency in arguments.concurrency:
        # every clip counts as new: what a memory of its packets is worth depends on who asks for what
        with Pool(threads=arguments.threads, queue=concurrency, cache=0) as pool:
            results.append(measure(pool, arguments.files, concurrency, arguments.seconds, options))
    if arguments.json:
        names = [format_source(file) for file in arguments.files]
        document = {"files": names, "options": options, "results": [asdict(result) for result in results]}
        return [json.dumps(document, indent=2)]
    return _table(results)


def measure(pool: Pool, files: Sequence[Any], concurrency: int, seconds: float, options: dict[str, Any]) -> Measured:
    """Keep so many requests under way for a while.

    Args:
        pool: that does them.
        files: taken in turns.
        concurrency: requests under way at any time.
        seconds: after which no more are asked for. Each file is decoded once before, which is not counted.
        options: of :meth:`telecine.Pool.submit`.
    """
    for file in files:
        pool.load(file, **options)
    taken: list[float] = []
    pending: dict[Future[Frames], float] = {}
    peak, asked = 0, 0
    started, cpu = time.perf_counter(), time.process_time()
    try:
        while True:
            while len(pending) < concurrency and (asked < concurrency or time.perf_counter() - started < seconds):
                now = time.perf_counter()
                pending[pool.submit(files[asked % len(files)], **options)] = now
                asked += 1
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                taken.append(time.perf_counter() - pending.pop(future))
                future.result()
            peak = max(peak, _resident())
    finally:
        for future in pending:
            future.cancel()
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    taken.sort()
    return Measured(
        concurrency=concurrency,
        requests=asked,
        clips_per_second=asked / elapsed,
        p50_seconds=taken[(len(taken) - 1) // 2],
        p99_seconds=taken[math.ceil(0.99 * len(taken)) - 1],
        cpu_seconds_per_clip=cpu / asked,
        cores_busy=cpu / elapsed,
        peak_mb=peak // _MB or None,
    )


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _table(results: list[Measured]) -> Iterator[str]:
    yield f"{'at once':>8}{'clips/s':>10}{'p50 s':>9}{'p99 s':>9}{'CPU s/clip':>12}{'cores busy':>12}{'memory MB':>11}"
    for one in results:
        memory = "?" if one.peak_mb is None else str(one.peak_mb)
        yield (
            f"{one.concurrency:>8}{one.clips_per_second:>10.2f}{one.p50_seconds:>9.3f}{one.p99_seconds:>9.3f}"
            f"{one.cpu_seconds_per_clip:>12.3f}{one.cores_busy:>12.2f}{memory:>11}"
        )


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))
