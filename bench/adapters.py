"""Measures the overhead of the file backends over their libraries, with the same frames from the same bytes.

    python bench/adapters.py [FILE...] [--rounds N]

The library is used as its own documentation shows, and gets the whole file in memory. The frames of both sides are
compared first; then both are timed alternately. The medians are printed. The target is an overhead of at most 5 %.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]

from timing import time_alternately  # noqa: E402

import telecine  # noqa: E402

Pixels = npt.NDArray[np.uint8]
Decode = Callable[[bytes, list[int]], Pixels]

_TARGET = 0.05
_COUNTS = (8, 32)


class _Reader(io.BufferedIOBase):
    def __init__(self, data: bytes) -> None:
        self._inside = io.BytesIO(data)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._inside.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._inside.seek(offset, whence)


def opencv_alone(data: bytes, indices: list[int]) -> Pixels:
    """Grab every frame up to the last wanted one, and retrieve the wanted ones."""
    import cv2

    threads = len(__import__("os").sched_getaffinity(0))
    reader: Any = _Reader(data)
    capture = cv2.VideoCapture(reader, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, threads])
    height, width = (int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH))
    frames = np.empty((len(indices), height, width, 3), np.uint8)
    at = 0
    for row, index in enumerate(indices):
        while at <= index:
            capture.grab()
            at += 1
        cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB, dst=frames[row])
    return frames


def torchcodec_alone(data: bytes, indices: list[int]) -> Pixels:
    """Decode in the most exact mode, with as many threads as there are cores."""
    from torchcodec.decoders import VideoDecoder

    threads = len(__import__("os").sched_getaffinity(0))
    decoder = VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=threads)
    return decoder.get_frames_at(indices).data.numpy()


ALONE: dict[str, Decode] = {"opencv": opencv_alone, "torchcodec": torchcodec_alone}


def adapter(name: str) -> Decode:
    """Decode with the same library as a backend of telecine."""
    return lambda data, indices: telecine.load(data, indices=indices, backend=name, errors="strict").data


def measure(name: str, data: bytes, count: int, rounds: int) -> tuple[float, float]:
    """Return the median seconds of the library alone and through telecine, timed alternately."""
    total = telecine.probe(data).num_frames
    indices = [int(index) for index in np.linspace(0, total - 1, min(count, total)).round()]
    alone, ours = ALONE[name], adapter(name)
    if not np.array_equal(alone(data, indices), ours(data, indices)):
        print(f"  {name}: the library alone gives other pixels; what it counts is not what is shown")
    size = alone(data, indices).nbytes
    times = time_alternately({"alone": lambda: alone(data, indices), "ours": lambda: ours(data, indices)}, rounds, size)
    return times["alone"].median, times["ours"].median


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a backend exceeds the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args(argv)
    usable = [status.name for status in telecine.list_backends() if status.usable and status.name in ALONE]
    good = True
    for path in arguments.files:
        data = path.read_bytes()
        for name in usable:
            for count in _COUNTS:
                alone, ours = measure(name, data, count, arguments.rounds)
                share = ours / alone - 1
                good &= share <= _TARGET
                print(f"{path.name:24} {name:11} {count:3} frames: {alone * 1e3:7.0f} ms alone, "
                      f"{ours * 1e3:7.0f} ms here, {share:+.1%}")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
