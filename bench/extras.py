"""Measurements without peers: resizing, the packet index of a large file, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import numpy as np
from timing import Times, ratio, time_alternately

__all__ = ["measure_memory", "measure_probe", "measure_size", "summary", "watch_memory"]

_SIZE_TARGET = 1.2
"""Largest allowed ratio of the time with ``size=`` to the time without."""
_PROBE_TARGET = 1.0
"""Largest allowed time to probe a file of a gigabyte, seconds."""
_PROBE_BYTES = 10**9
_PROBE = (sys.executable, "-c", "import sys; from telecine.cli.main import main; sys.exit(main())", "probe", "--json")
_SHORT_SIDE = 360
_MEMORY_THREADS = 4
_FRAMES_PER_THREAD = 16
_OVERHEAD_BYTES = 64 << 20


def measure_size(path: str, indices: list[int], rounds: int) -> dict[str, Any]:
    """Time ``size=`` against full size, and against full size resized by Pillow."""
    from PIL import Image

    import telecine

    def smaller() -> np.ndarray[Any, Any]:
        return telecine.load(path, indices=indices, size=_SHORT_SIDE).numpy()

    height, width = smaller().shape[1:3]

    def full() -> np.ndarray[Any, Any]:
        return telecine.load(path, indices=indices).numpy()

    def pillow() -> np.ndarray[Any, Any]:
        pictures = (Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR) for frame in full())
        return np.stack([np.asarray(picture) for picture in pictures])

    difference = np.abs(smaller().astype(np.int16) - pillow())
    times = time_alternately({"size": smaller, "full": full, "pillow": pillow}, rounds)
    to_full, to_pillow = ratio(times["size"], times["full"]), ratio(times["size"], times["pillow"])
    return {
        "short_side": _SHORT_SIDE,
        "mean_difference_from_pillow": round(float(difference.mean()), 3),
        "times": {name: taken.as_json() for name, taken in times.items()},
        "ratio_to_full": round(to_full, 3),
        "ratio_to_pillow": round(to_pillow, 3),
        "target": _SIZE_TARGET,
        "met": to_full <= _SIZE_TARGET,
    }


def measure_probe(clip: Path, rounds: int) -> dict[str, Any]:
    """Time ``telecine probe`` on a file of a gigabyte in the page cache, the start of Python included."""
    import telecine

    frames = telecine.probe(clip).num_frames
    times = -(-_PROBE_BYTES // clip.stat().st_size)
    large = cases.loop(clip, times, cases.cache_folder() / "part-gigabyte.mp4")
    try:
        with large.open("rb") as file:
            while file.read(1 << 24):
                pass
        taken = Times()
        environment = os.environ | {"PYTHONPATH": str(Path(telecine.__file__).parent.parent)}
        for _ in range(rounds):
            started = time.perf_counter()
            done = subprocess.run([*_PROBE, large], capture_output=True, check=False, env=environment)
            taken.seconds.append(time.perf_counter() - started)
            if done.returncode:
                return {"failed": done.stderr.decode(errors="replace").strip()[-300:], "met": False}
        facts = json.loads(done.stdout)
        inside = time_alternately({"probe": lambda: telecine.probe(large)}, rounds)["probe"]
        size = large.stat().st_size
    finally:
        large.unlink()
    counted = facts["num_frames"] == frames * times
    return {
        "bytes": size,
        "frames": facts["num_frames"],
        "frames_right": counted,
        "median_seconds": round(taken.median, 4),
        "seconds": [round(second, 4) for second in taken.seconds],
        "median_seconds_in_process": round(inside.median, 4),
        "target": _PROBE_TARGET,
        "met": counted and taken.median <= _PROBE_TARGET,
    }


def measure_memory(clip: Path, minutes: float, seconds: float, run: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Measure the peak memory of one request for 8 frames of a long video, in a new process.

    Args:
        clip: the clip to loop.
        minutes: length of the video.
        seconds: length of the clip.
        run: runs a job in a new process.
    """
    long = cases.loop(clip, round(minutes * 60 / seconds), cases.cache_folder() / "part-long.mp4")
    try:
        seen = run({"kind": "memory", "path": str(long), "frames": 8, "threads": _MEMORY_THREADS})
        size = long.stat().st_size
    finally:
        long.unlink()
    if "failed" in seen:
        return {"minutes": minutes, "source_bytes": size, **seen}
    source = 0 if seen["mapped"] else size
    decoded = _FRAMES_PER_THREAD * _MEMORY_THREADS * seen["decoded_frame_bytes"]
    bound = source + seen["output_bytes"] + decoded + _OVERHEAD_BYTES
    return {
        "minutes": round(seen["duration"] / 60, 2),
        "source_bytes": size,
        "threads": _MEMORY_THREADS,
        **seen,
        "bound_bytes": bound,
        "met": seen["grown_bytes"] <= bound,
    }


@dataclass
class _Watched:
    """Largest values seen in /proc while a request ran."""

    private: int = 0
    files: int = 0
    mapped: bool = False


def watch_memory(path: str, frames: int, threads: int) -> dict[str, Any]:
    """Run a request in this new process, and measure its memory.

    ``grown_bytes`` is the peak of the resident set (``VmHWM``) over what was resident before the request, without the
    pages of a mapped source: the kernel holds those in the page cache anyway, and can drop them at any time.
    """
    import av

    import telecine

    before, seen, done = _status(), _Watched(), threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            now = _status()
            seen.private = max(seen.private, now["RssAnon"] + now["RssShmem"])
            seen.files = max(seen.files, now["RssFile"])
            seen.mapped = seen.mapped or path in Path("/proc/self/maps").read_text()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        got = telecine.load(path, num_frames=frames, threads=threads)
    finally:
        done.set()
        watcher.join()
    peak = _status()["VmHWM"]
    source_pages = max(0, seen.files - before["RssFile"]) if seen.mapped else 0
    picture = av.VideoFormat(got.info.pixel_format, got.info.width, got.info.height)
    return {
        "mapped": seen.mapped,
        "duration": got.info.duration,
        "packets": got.report.packets_total,
        "output_bytes": got.numpy().nbytes,
        "decoded_frame_bytes": _frame_bytes(picture),
        "peak_bytes": peak,
        "before_bytes": before["VmRSS"],
        "private_bytes": seen.private,
        "source_pages_bytes": source_pages,
        "grown_bytes": peak - before["VmRSS"] - source_pages,
    }


def summary(kind: str, result: dict[str, Any]) -> str:
    """Return a line that describes one result."""
    if "failed" in result:
        return str(result["failed"])
    if kind == "size":
        return f"{result['ratio_to_full']:.2f} of full size, {result['ratio_to_pillow']:.2f} of full size and Pillow"
    if kind == "probe":
        return f"{result['median_seconds']:.2f} s for {result['bytes'] / 1e9:.2f} GB, {result['frames']} frames"
    held = "mapped" if result["mapped"] else "held in memory"
    grown, bound = result["grown_bytes"] / 2**20, result["bound_bytes"] / 2**20
    return f"{result['minutes']:g} minutes: {grown:.0f} MiB, bound {bound:.0f} MiB, source {held}"


def _frame_bytes(picture: Any) -> int:
    """Return the bytes of one decoded picture."""
    return sum(c.width * c.height * (2 if c.bits > 8 else 1) for c in picture.components)


def _status() -> dict[str, int]:
    """Return the memory fields of /proc/self/status, bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[-1:] == ["kB"]}
