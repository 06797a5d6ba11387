"""Every usable backend over one video: what each gives, how long it takes, and whether they mean the same frames.

Each runs in a process of its own, so that one that crashes or hangs is a line in the result and nothing else. ``pyav``
is what the others are measured against.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import telecine.errors as tree
from telecine.api import load
from telecine.backends.registry import list_backends
from telecine.cli.writers import save_sheet
from telecine.deadline import Deadline
from telecine.errors import DeadlineError, DecodeError, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo, read_video_info
from telecine.limits import Limits
from telecine.settings import choose_backend
from telecine.source.source import open_source
from telecine.testing.comparison import find_nearest, max_difference, mean_difference
from telecine.validation import format_value, to_int

__all__ = ["Comparison", "Row", "compare", "write_sheet"]

_REFERENCE = "pyav"
_SAME = {"cpu": 2, "cuda": 3}
"""Largest difference of a pixel that is the same for the rule."""
_ALIKE = 4.0
"""Mean difference of two pictures up to which nobody would take them for different ones."""
_OTHER = 40.0
"""Mean difference beyond which a picture is another one, whatever its neighbours look like."""
_SECONDS = 120.0


@dataclass(frozen=True)
class Row:
    """What became of one backend."""

    backend: str
    device: str
    verdict: str
    """"reference", "same", "differs" in pixels, "other frames" than the reference, "failed", or "crashed"."""
    detail: str = ""
    seconds: float | None = None
    """Wall time of the request alone, after a first one for one frame."""
    frames: int = 0
    lost: tuple[int, ...] = ()
    largest: int | None = None
    """Largest difference of a pixel from the reference; None where there is nothing to compare."""
    version: str | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result."""

    info: VideoInfo
    indices: tuple[int, ...]
    """Frames that were asked for: evenly spread ones, each with its neighbours."""
    rows: tuple[Row, ...]
    images: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]] = field(repr=False)
    """Indices, times and frames of each backend that gave any."""

    @property
    def agree(self) -> bool:
        """Whether no backend took one frame for another."""
        return all(row.verdict != "other frames" for row in self.rows)


def compare(
    source: Any, *, num_frames: int = 8, device: str = "cpu", timeout: float | Deadline | None = None,
    limits: Limits | None = None,
) -> Comparison:  # fmt: skip
    """Let every usable backend decode the same frames of a video.

    Args:
        source: as of :func:`telecine.load`.
        num_frames: so many, evenly spread; each is decoded with the one before and the one behind it.
        device: where the frames go.
        timeout: seconds over all; each backend has two minutes at most.
        limits: as of :func:`telecine.load`.

    Raises:
        OptionsError: an argument is wrong.
        DeadlineError: the timeout passed.
        TelecineError: as :func:`telecine.load`: the source cannot be read, or the reference cannot decode it.
    """
    count, deadline, limits = to_int(num_frames) or 0, Deadline.of(timeout), Limits.of(limits)
    if count < 1:
        raise OptionsError(f"num_frames is {format_value(num_frames)}; it must be a whole number from 1 on")
    _, device = choose_backend("auto", device)
    with open_source(source, limits, deadline) as opened:
        info = read_video_info(opened, limits, deadline)
        job = _Job(opened.name, _indices(info.num_frames, count), limits)
        usable = [status for status in list_backends() if status.usable]
        usable.sort(key=lambda status: status.name != _REFERENCE)
        rows: list[Row] = []
        images = {}
        with _shared(opened.data) as path:
            for number, status in enumerate(usable):
                deadline.check("comparing backends", number, len(usable))
                where = "cpu" if status.name == _REFERENCE else device
                answer: dict[str, Any] = {"backend": status.name, "device": where, "version": status.version}
                try:
                    row, got = _in_process(status.name, where, path, job, deadline)
                except TelecineError as error:
                    deadline.check("comparing backends", number, len(usable))
                    crashed = isinstance(error, _Crash)
                    if status.name == _REFERENCE:
                        kind = DecodeError if crashed else type(error)
                        raise kind(f"the reference, {_REFERENCE}, cannot decode it: {error}") from error
                    rows.append(Row(**answer, verdict="crashed" if crashed else "failed", detail=str(error)))
                    continue
                answer |= row
                images[status.name] = got
                if status.name != _REFERENCE:
                    _judge(answer, got, images[_REFERENCE])
                rows.append(Row(**answer))
    return Comparison(info, tuple(job.indices), tuple(rows), images)


class _Crash(TelecineError):
    """The process of a backend ended without an answer."""


@dataclass(frozen=True)
class _Job:
    """What every backend is asked."""

    name: str
    """Of the source, for messages."""
    indices: list[int]
    limits: Limits


def _indices(total: int, count: int) -> list[int]:
    middle = np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))
    around = np.unique(np.concatenate([middle - 1, middle, middle + 1]))
    return [int(index) for index in around if 0 <= index < total]


@contextmanager
def _shared(data: memoryview) -> Iterator[str]:
    """The path of a file in memory that child processes can open."""
    descriptor = os.memfd_create("telecine-source", os.MFD_CLOEXEC)
    try:
        left = data
        while left:
            left = left[os.write(descriptor, left) :]
        # of this process by its number: a child opens it by path, and inherits nothing
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


_Got = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]


def _in_process(name: str, device: str, path: str, job: _Job, deadline: Deadline) -> tuple[dict[str, Any], _Got]:
    """Decode in a child; give what its row says, and its frames.

    Raises:
        TelecineError: what the child raised, by its own class; that it gave no answer in time, or crashed.
    """
    left = deadline.remaining()
    seconds = _SECONDS if left is None else min(_SECONDS, left)
    answer = os.memfd_create("telecine-answer", os.MFD_CLOEXEC)
    try:
        told = asdict(job) | {
            "backend": name,
            "device": device,
            "source": path,
            "answer": f"/proc/{os.getpid()}/fd/{answer}",
        }
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "telecine.cli.compare"],
                input=json.dumps(told).encode(), capture_output=True, timeout=seconds, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"gave no answer within {seconds:.0f} s") from None
        with open(told["answer"], "rb") as file:
            head, _, raw = file.read().partition(b"\n")
    finally:
        os.close(answer)
    if not head:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise _Crash(f"{how}: {last[:200]}" if last else how)
    said = json.loads(head)
    if "error" in said:
        kind: type[TelecineError] = getattr(tree, said["kind"], TelecineError)
        raise kind(said["error"])
    frames = np.frombuffer(raw, np.uint8).reshape(said["shape"])
    got = np.array(said["indices"], np.int64), np.array(said["timestamps"]), frames
    row = {
        "verdict": "reference",
        "device": said["device"],
        "seconds": said["seconds"],
        "frames": len(frames),
        "lost": tuple(said["lost"]),
    }
    return row, got


def _judge(answer: dict[str, Any], got: _Got, reference: _Got) -> None:
    """Fill in how frames compare with those of the reference."""
    known = dict(zip(reference[0].tolist(), reference[2], strict=True))
    other: list[str] = []
    largest = 0
    for index, image in zip(got[0].tolist(), got[2], strict=True):
        if index not in known:
            continue
        if image.shape != known[index].shape:
            other.append(f"frame {index} has another size")
            continue
        largest = max(largest, max_difference(image, known[index]))
        own = mean_difference(image, known[index])
        if own > _ALIKE:
            nearest = find_nearest(image, known)
            if nearest != index and mean_difference(image, known[nearest]) < own / 2:
                other.append(f"frame {index} looks like frame {nearest}")
            elif own > _OTHER:
                other.append(f"frame {index} is another picture")
    answer["largest"] = largest
    if other:
        answer["verdict"], answer["detail"] = "other frames", "; ".join(other[:4])
    elif largest > _SAME[answer["device"].partition(":")[0]]:
        answer["verdict"] = "differs"
    else:
        answer["verdict"] = "same"


def write_sheet(comparison: Comparison, path: str | Path) -> None:
    """Write a contact sheet: a line of frames for each backend, in the order of the rows."""
    from telecine.contact_sheet import contact_sheet

    wanted = [index for index in comparison.indices if all(index in got[0] for got in comparison.images.values())]
    wanted = wanted[1::3] or wanted[:1] or list(comparison.indices[:1])
    parts = []
    for indices, times, frames in comparison.images.values():
        kept = np.flatnonzero(np.isin(indices, wanted))
        parts.append((indices[kept], times[kept], frames[kept]))
    columns = max(len(part[0]) for part in parts)
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    save_sheet(contact_sheet(joined[2], joined[0], joined[1], columns=columns), Path(path))


def _work(job: dict[str, Any]) -> None:
    """Decode in this process, for the one that started it."""
    common = {"backend": job["backend"], "device": job["device"], "limits": Limits(**job["limits"])}
    try:
        with io.FileIO(job["source"]) as file:
            file.name = job["name"]  # what messages call it: that of the memory means nothing to anybody
            # the first request pays for what is made once: libraries, contexts, pools
            load(file, indices=job["indices"][:1], **common)
            started = time.perf_counter()
            frames: Frames = load(file, indices=job["indices"], **common)
            seconds = time.perf_counter() - started
    except TelecineError as error:
        head: dict[str, Any] = {"error": str(error), "kind": _kind(error)}
        pixels = b""
    else:
        host = np.ascontiguousarray(frames.numpy())
        head = {
            "indices": frames.indices.tolist(),
            "timestamps": frames.timestamps.tolist(),
            "shape": host.shape,
            "lost": frames.report.lost,
            "device": frames.report.device,
            "seconds": seconds,
        }
        pixels = host.tobytes()
    with open(job["answer"], "wb") as file:
        file.write(json.dumps(head).encode() + b"\n" + pixels)


def _kind(error: TelecineError) -> str:
    """The class of an error that the parent knows too: a backend of another package may have made one of its own."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in tree.__all__)


def _main(argv: Sequence[str] = ()) -> int:
    _work(json.load(sys.stdin))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
