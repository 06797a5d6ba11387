"""The command ``telecine compare``: decode one video with every usable backend, and compare frames and times.

Each backend runs in a process of its own: one that crashes or hangs is a row in the result. ``pyav`` is the reference.
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import telecine.errors as errors
from telecine.api import load
from telecine.backends.registry import list_backends
from telecine.cli.writers import save_sheet
from telecine.deadline import Deadline
from telecine.errors import DeadlineError, DecodeError, TelecineError
from telecine.index.video_info import VideoInfo, read_video_info
from telecine.limits import Limits
from telecine.settings import choose_backend
from telecine.source.source import open_source
from telecine.testing.comparison import MAX_DIFFERENCE, max_difference, mean_difference
from telecine.validation import check_int

__all__ = ["BackendResult", "Comparison", "compare", "write_sheet"]

_REFERENCE = "pyav"
_MAX_SIMILAR = 4.0
"""Mean difference up to which two pictures show the same frame."""
_MIN_DIFFERENT = 40.0
"""Mean difference above which two pictures show different frames, whatever the neighbours look like."""
_MAX_SECONDS = 120.0
"""Time limit for each backend."""


@dataclass(frozen=True)
class BackendResult:
    """The result of one backend."""

    backend: str
    device: str
    verdict: str
    """"reference", "same", "differs" (pixels), "other frames" than the reference, "failed", or "crashed"."""
    detail: str = ""
    seconds: float | None = None
    """Wall time of the request, after a first one for one frame."""
    frames: int = 0
    lost: tuple[int, ...] = ()
    largest: int | None = None
    """Largest difference of a channel from the reference; None if there is nothing to compare."""
    version: str | None = None


class _Output(NamedTuple):
    """The frames of one backend."""

    indices: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.float64]
    frames: npt.NDArray[np.uint8]


class _CrashError(TelecineError):
    """The process of a backend ended without a result."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of all backends."""

    info: VideoInfo
    indices: tuple[int, ...]
    """Requested frames: evenly spread, each with its neighbours."""
    rows: tuple[BackendResult, ...]
    outputs: dict[str, _Output] = field(repr=False)
    """Frames of each backend that returned any."""

    @property
    def agree(self) -> bool:
        """True if no backend returned one frame in place of another."""
        return all(row.verdict != "other frames" for row in self.rows)


def compare(
    source: Any, *, num_frames: int = 8, device: str = "cpu", timeout: float | Deadline | None = None,
    limits: Limits | None = None,
) -> Comparison:  # fmt: skip
    """Decode the same frames of a video with every usable backend.

    Args:
        source: as for :func:`telecine.load`.
        num_frames: number of evenly spread frames; each is decoded with the ones before and after it.
        device: device for the frames.
        timeout: seconds for all; each backend has two minutes at most.
        limits: as for :func:`telecine.load`.

    Raises:
        OptionsError: an argument is wrong.
        DeadlineError: the timeout passed.
        TelecineError: as for :func:`telecine.load`, if the source cannot be read or the reference cannot decode it.
    """
    count, deadline, limits = check_int("num_frames", num_frames, 1), Deadline.of(timeout), Limits.of(limits)
    _, device = choose_backend("auto", device)
    rows: list[BackendResult] = []
    outputs: dict[str, _Output] = {}
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source, limits, deadline))
        opened.read_ahead.require(0, opened.size, deadline)
        path = stack.enter_context(_memory_file(opened.data))
        info = read_video_info(opened, limits, deadline)
        last = info.num_frames - 1
        spread = np.linspace(0, last, min(count, last + 1)).round().astype(np.int64)
        indices = np.unique((spread[:, None] + [-1, 0, 1]).clip(0, last)).tolist()
        job = {"name": opened.name, "source": path, "indices": indices, "limits": asdict(limits)}
        usable = sorted((each for each in list_backends() if each.usable), key=lambda each: each.name != _REFERENCE)
        for number, status in enumerate(usable):
            deadline.check("comparing backends", number, len(usable))
            is_reference = status.name == _REFERENCE
            chosen = {"backend": status.name, "device": "cpu" if is_reference else device}
            result: dict[str, Any] = chosen | {"version": status.version}
            try:
                report, output = _decode_in_process(job | chosen, deadline)
            except TelecineError as error:
                deadline.check("comparing backends", number, len(usable))
                has_crashed = isinstance(error, _CrashError)
                if is_reference:
                    kind = DecodeError if has_crashed else type(error)
                    raise kind(f"the reference, {_REFERENCE}, cannot decode it: {error}") from error
                result |= {"verdict": "crashed" if has_crashed else "failed", "detail": str(error)}
            else:
                outputs[status.name] = output
                result |= report
                result |= {"verdict": "reference"} if is_reference else _judge(output, outputs[_REFERENCE], **report)
            rows.append(BackendResult(**result))
    return Comparison(info, tuple(indices), tuple(rows), outputs)


@contextmanager
def _memory_file(data: memoryview | bytes = b"") -> Iterator[str]:
    """Yield the path of a file in memory that child processes can open without inheriting it."""
    descriptor = os.memfd_create("telecine", os.MFD_CLOEXEC)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _decode_in_process(job: dict[str, Any], deadline: Deadline) -> tuple[dict[str, Any], _Output]:
    """Decode in a child process. Returns fields of :class:`BackendResult`, and the frames; raises the child's error."""
    remaining = deadline.remaining()
    seconds = min(_MAX_SECONDS, math.inf if remaining is None else remaining)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with _memory_file() as path:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "telecine.cli.compare"],
                input=json.dumps(job | {"answer": path}).encode(), capture_output=True, timeout=seconds,
                env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"gave no answer within {seconds:.0f} s") from None
        head, _, pixels = Path(path).read_bytes().partition(b"\n")
    if not head:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise _CrashError(f"{how}: {last[:200]}" if last else how)
    answer = json.loads(head)
    if "error" in answer:
        kind: type[TelecineError] = getattr(errors, answer["kind"], TelecineError)
        raise kind(answer["error"])
    frames = np.frombuffer(pixels, np.uint8).reshape(answer.pop("shape"))
    output = _Output(np.array(answer.pop("indices"), np.int64), np.array(answer.pop("timestamps")), frames)
    return answer | {"frames": len(frames), "lost": tuple(answer["lost"])}, output


def _judge(output: _Output, reference: _Output, device: str, **_: Any) -> dict[str, Any]:
    """Compare frames with those of the reference. Returns fields of :class:`BackendResult`."""
    known = dict(zip(reference.indices.tolist(), reference.frames, strict=True))
    other: list[str] = []
    largest = 0
    for index, image in zip(output.indices.tolist(), output.frames, strict=True):
        if index not in known:
            continue
        if image.shape != known[index].shape:
            other.append(f"frame {index} has another size")
            continue
        largest = max(largest, max_difference(image, known[index]))
        mean = mean_difference(image, known[index])
        if mean > _MAX_SIMILAR:
            nearest = min(known, key=lambda key: mean_difference(image, known[key]))
            if nearest != index and mean_difference(image, known[nearest]) < mean / 2:
                other.append(f"frame {index} looks like frame {nearest}")
            elif mean > _MIN_DIFFERENT:
                other.append(f"frame {index} is another picture")
    if other:
        return {"largest": largest, "verdict": "other frames", "detail": "; ".join(other[:4])}
    is_same = largest <= MAX_DIFFERENCE[device.partition(":")[0]]
    return {"largest": largest, "verdict": "same" if is_same else "differs"}


def write_sheet(comparison: Comparison, path: str | Path) -> None:
    """Write a contact sheet with a line of frames for each backend, in the order of the rows."""
    from telecine.contact_sheet import contact_sheet

    outputs = comparison.outputs.values()
    wanted = [index for index in comparison.indices if all(index in output.indices for output in outputs)]
    wanted = wanted[1::3] or wanted[:1] or list(comparison.indices[:1])
    kept = [np.flatnonzero(np.isin(output.indices, wanted)) for output in outputs]
    indices, timestamps, frames = (
        np.concatenate([values[rows] for values, rows in zip(column, kept, strict=True)])
        for column in zip(*outputs, strict=True)
    )
    save_sheet(contact_sheet(frames, indices, timestamps, columns=max(map(len, kept))), Path(path))


def _decode_for_parent() -> None:
    """Decode in this process, and write the answer for the parent and the pixels to the parent's file."""
    job = json.load(sys.stdin)
    answer: dict[str, Any]
    pixels = np.empty(0, np.uint8)
    options = {"backend": job["backend"], "device": job["device"], "limits": Limits(**job["limits"])}
    try:
        with io.FileIO(job["source"]) as file:
            file.name = job["name"]  # name of the source in messages
            # the first request pays for what is made once: libraries, contexts, pools
            load(file, indices=job["indices"][:1], **options)
            started = time.perf_counter()
            frames = load(file, indices=job["indices"], **options)
            seconds = time.perf_counter() - started
    except TelecineError as error:
        # a backend of another package may raise a subclass that the parent does not know
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in errors.__all__)
        answer = {"error": str(error), "kind": kind}
    else:
        pixels = frames.numpy()
        answer = {
            "indices": frames.indices.tolist(),
            "timestamps": frames.timestamps.tolist(),
            "shape": pixels.shape,
            "lost": frames.report.lost,
            "device": frames.report.device,
            "seconds": seconds,
        }
    Path(job["answer"]).write_bytes(json.dumps(answer).encode() + b"\n" + pixels.tobytes())


if __name__ == "__main__":
    _decode_for_parent()
