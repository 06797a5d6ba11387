"""NVIDIA's DeepStream decoder (``nvidia-deepstream-videodecode``), given a splice in memory.

What its pool gives back is a tensor of frames in order, and how many: not which. So nothing is believed that cannot be
proven. It is asked by number, never told to stop early, and believed if it decoded exactly as many pictures as there
are (see :mod:`telecine.backends.deepstream.bitstream_builder`); where it did not, parts are tried alone, and what stays
unproven is lost.

It keeps decoders warm from one file to the next, and makes one anew only for another codec or another size. A decoder
that was made for a stream that refers to fewer pictures then gives wrong ones, without a word. What is called a hint on
the codec decides, so it names all that a decoder is made for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from telecine.backends.base import BackendStatus, Decoded, DecodeRequest
from telecine.backends.deepstream.bitstream_builder import Splice, parts_of, splices
from telecine.backends.remux.output_buffers import PinnedRows, TorchRows
from telecine.bitstream.h273 import matrix_code
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, DeadlineError, UnsupportedVideoError
from telecine.plan.ranges import DecodeRange, find_undecodable_targets
from telecine.validation import Option

__all__ = ["DeepStreamBackend"]

_SIDES = {"h264": (16, 4096), "hevc": (144, 8192)}
"""Sides of a picture in pixels that NVDEC takes: smaller ones than it allows hang the library."""
_LAYOUTS = ("yuv420p", "yuvj420p")
_COLOURS = {"bt709": "bt709", **dict.fromkeys(("bt470bg", "smpte170m", "unknown"), "smpte170m")}
"""The matrix that it converts by, for each matrix coefficients that it can convert. It looks at the primaries alone, so
primaries, transfer and matrix are all written with that code point."""
_MOST_WORKERS = 16
_WORKERS = 8
_SIZES = ("TELECINE_POOL_SIZE", "VLLM_MEDIA_LOADING_THREAD_COUNT")
"""Variables that say how many workers there are where no request does, the first one first."""
_REFUSALS = 2
"""How often the library may fail at the first picture of a stretch while nothing else has come of the video."""
_GRACE = 5.0
"""Seconds after its own timeout that the library has to answer."""
_WAIT = 0.05
_INSTALL = (
    "pip install 'telecine[deepstream]'; it also needs GStreamer from the system (apt-get install python3-gi "
    "python3-gst-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-libav "
    "libv4l-0), glibc 2.34 or newer, CUDA 13 with NPP, and torch for CUDA"
)
_log = logging.getLogger("telecine.backends.deepstream.backend")


class DeepStreamBackend:
    """Decodes with DeepStream, on the first GPU that torch sees. H.264 and HEVC, 8 bits, 4:2:0, not interlaced.

    Its workers serve the whole process. Each is made when it is needed first, and anew after it has failed.
    """

    options: Mapping[str, Option] = {
        "pool_size": Option(
            int, None, "workers, 1 to 16, in this process; the first value holds. TELECINE_POOL_SIZE, or 8"
        ),
        "timeout_sec": Option(float, 30.0, "seconds for one call of the library", 0.001, 86400),
    }
    tolerances: Mapping[str, int] = {"size": 12}
    differences: Mapping[str, str] = {"noise": "DeepStream does not tell; the frames are as the hardware leaves them"}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: _Workers | None = None
        self._warned = False

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.base.Backend`."""
        try:
            library = _library()
            import torch

            if not torch.cuda.is_available():
                return BackendStatus("deepstream", False, "torch sees no NVIDIA GPU", str(library.__version__))
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            return BackendStatus("deepstream", False, f"it cannot be imported ({reason}): {_INSTALL}", None)
        return BackendStatus("deepstream", True, None, str(library.__version__))

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.base.Backend`."""
        colours = _refuse(request)
        rows = _rows(request)
        _Work(self._ready(request), request, rows, colours).decode()
        return rows.decoded()

    def _ready(self, request: DecodeRequest) -> _Workers:
        wanted = request.options["pool_size"]
        wanted = None if wanted is None else min(max(wanted, 1), _MOST_WORKERS)
        with self._lock:
            if self._workers is None:
                # off, it copies surfaces that may not be ready
                os.environ.setdefault("DS_SYNC_COPY", "1")
                self._workers = _Workers(wanted or _default_size())
            elif wanted not in (None, self._workers.size) and not self._warned:
                self._warned = True
                _log.warning("pool_size is %d; it stays %d, as the first request said", wanted, self._workers.size)
            return self._workers


class _Work:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(self, workers: _Workers, request: DecodeRequest, rows: PinnedRows | TorchRows, colours: str) -> None:
        self._workers, self._request, self._rows, self._colours = workers, request, rows, colours
        self._refusals = 0

    def decode(self) -> None:
        """Fill the rows of what can be had."""
        index = self._request.index
        for splice in self._workers.one_by_one(
            splices(self._request, parts_of(index, self._request.plan.ranges), self._colours), self._request.deadline
        ):
            if not self._fill(splice):
                for part in splice.parts:
                    find_undecodable_targets(index, part, self._retry)

    def _retry(self, run: DecodeRange) -> bool:
        """Decode a run alone; say whether all of its targets came."""
        targets = 0
        for splice in splices(self._request, [run], self._colours):
            if not self._fill(splice):
                return False
            targets += len(splice.targets)
        return targets == len(run.targets)

    def _fill(self, splice: Splice) -> bool:
        """Ask for all targets of a splice at once, and put them in place if what came can be believed."""
        import torch

        wanted = {number - shift for number in splice.targets for shift in {0, splice.optional} if number >= shift}
        asked = sorted(wanted)
        # with room for one more it does not stop at the last one, and counts what it decodes to the end
        result = self._call(splice, target_indices=asked, max_frames=len(asked) + 1)
        missing = splice.count - result.n_total
        came = [number for number in asked if number < result.n_total]
        if result.error or missing not in (0, splice.optional) or result.n_kept != len(came):
            _log.debug("%d pictures of %d: %s", result.n_total, splice.count, result.error or "not believed")
            self._give_up(result)
            return False
        at = {number: place for place, number in enumerate(came)}
        for number, where in splice.targets.items():
            self._rows.put(where, result.frames[at[number - missing]])
        # another worker may get the memory of these frames as soon as they are let go of, and writes to it in a stream
        # of its own that waits for nobody
        torch.cuda.current_stream(torch.device("cuda", 0)).synchronize()
        return True

    def _give_up(self, result: Any) -> None:
        """What the hardware cannot do fails at the first picture, and so again: each time it costs a worker."""
        self._refusals += bool(result.error) and not result.n_total
        if self._refusals >= _REFUSALS and not self._rows.kept.any():
            raise UnsupportedVideoError(f"{self._request.source.name}: deepstream cannot decode it: {result.error}")

    def _call(self, splice: Splice, **targets: Any) -> Any:
        """Let a worker decode, and come back in time even if it does not.

        The library waits without a limit for a worker's answer, and a worker that fails outside its own guard answers
        nothing. So the call is made in a thread that can be left behind; this and the pool of requests are the only
        places that start one.
        """
        request = self._request
        limit = request.options["timeout_sec"]
        worker = self._workers.take(splice.decoder, request.deadline)
        left = request.deadline.remaining()
        answer: list[Any] = []
        done = threading.Event()

        def ask() -> None:
            try:
                answer.append(
                    worker.pool.decode(
                        splice.data,
                        codec=splice.decoder,
                        timeout_sec=limit if left is None else max(0.001, min(limit, left)),
                        **targets,
                    )
                )
            except Exception as error:
                answer.append(error)
            done.set()

        sound = False
        try:
            started = time.monotonic()
            threading.Thread(target=ask, name="telecine-deepstream", daemon=True).start()
            while not done.wait(_WAIT):
                waited = time.monotonic() - started
                request.deadline.check("decoding")
                if waited > limit + _GRACE:
                    raise DeadlineError(f"deepstream gave no answer within {waited:.0f} s (timeout_sec is {limit:g})")
            if isinstance(answer[0], Exception):
                raise BackendUnavailable(f"deepstream: {type(answer[0]).__name__}: {answer[0]}") from answer[0]
            if "timeout" in answer[0].error:
                request.deadline.check("decoding")
                raise DeadlineError(f"deepstream: {answer[0].error} (timeout_sec is {limit:g})")
            # after an error it would stand still for seconds, and after a timeout its late frames would land elsewhere
            sound = not answer[0].error
        finally:
            self._workers.give_back(worker, sound)
        return answer[0]


class _Worker:
    """A pool of the library's with a single worker, so that it is known which decoder a request gets."""

    def __init__(self) -> None:
        try:
            self.pool = _library().DecodePool(num_workers=1)
        except Exception as error:  # torch, CUDA and GStreamer have errors of their own
            raise BackendUnavailable(f"deepstream cannot be started: {type(error).__name__}: {error}") from error
        self.decoder = ""
        """What its decoder was made for."""


class _Workers:
    """At most ``size`` workers. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken = 0
        self._free: list[_Worker] = []  # the one that was used last is the last
        self._changed = threading.Condition()
        self._preparing = threading.Lock()

    def one_by_one(self, found: Iterator[Splice], deadline: Deadline) -> Iterator[Splice]:
        """Let one request at a time make its splices.

        That is work in Python, and so is what the library does at every picture: the fewer threads stand in line for
        the interpreter, the sooner a worker gets it.
        """
        while True:
            while not self._preparing.acquire(timeout=_WAIT):
                deadline.check("waiting for others to read their packets")
            try:
                splice = next(found, None)
            finally:
                self._preparing.release()
            if splice is None:
                return
            yield splice

    def take(self, decoder: str, deadline: Deadline) -> _Worker:
        """A worker for one call: one that has such a decoder, else a new one, else the one that was idle longest.

        Making a decoder takes a third of a second.
        """
        while True:
            deadline.check("waiting for a worker")
            with self._changed:
                if self._taken < self.size:
                    worker = self._choose(decoder)
                    self._taken += 1
                    break
                self._changed.wait(_WAIT)
        if worker is None:
            try:
                worker = _Worker()  # outside of the lock, for it starts CUDA
            except BaseException:
                with self._changed:
                    self._taken -= 1
                    self._changed.notify()
                raise
        worker.decoder = decoder
        return worker

    def _choose(self, decoder: str) -> _Worker | None:
        """One of those that are free; None where a new one is to be made."""
        at = next((at for at, worker in enumerate(self._free) if worker.decoder == decoder), None)
        if at is None and self._taken + len(self._free) < self.size:
            return None
        return self._free.pop(at or 0)

    def give_back(self, worker: _Worker, sound: bool) -> None:
        """End a call. A worker that is not sound is given up."""
        with self._changed:
            self._taken -= 1
            if sound:
                self._free.append(worker)
            self._changed.notify()
        if not sound:
            # it joins its worker, for seconds
            threading.Thread(target=worker.pool.shutdown, name="telecine-deepstream-end", daemon=True).start()


def _library() -> Any:
    from nvidia import deepstream_videodecode

    return deepstream_videodecode


def _refuse(request: DecodeRequest) -> str:
    """Refuse what it cannot decode, or not rightly; say how the colours are to be written into the stream."""
    info, codec = request.info, request.index.codec
    reason = ""
    if codec not in _SIDES:
        reason = f"decodes {' and '.join(_SIDES)} here, not {codec}"
    elif info.pixel_format not in _LAYOUTS:
        reason = f"decodes 4:2:0 with 8 bits rightly, not {info.pixel_format}"
    elif info.interlaced:
        reason = "does not give interlaced video as it is"
    elif info.color_space not in _COLOURS:
        reason = f"converts colours by BT.709 and BT.601, not by {info.color_space}"
    else:
        least, most = _SIDES[codec]
        sides = request.geometry.stored_width, request.geometry.stored_height
        if min(sides) < least or max(sides) > most:
            reason = f"takes pictures of {least} to {most} pixels a side in {codec}, not {sides[0]}x{sides[1]}"
    if reason:
        raise UnsupportedVideoError(f"{request.source.name}: deepstream {reason}; use backend='pyav'")
    point = matrix_code(_COLOURS[info.color_space])
    full = info.color_range == "pc" or info.pixel_format == "yuvj420p"
    names = ("colour_primaries", "transfer_characteristics", "matrix_coefficients")
    return ":".join([*(f"{name}={point}" for name in names), f"video_full_range_flag={int(full)}"])


def _rows(request: DecodeRequest) -> PinnedRows | TorchRows:
    if request.device == "cpu":
        return PinnedRows(request)
    import torch

    if torch.device(request.device).index not in (None, 0):
        raise BackendUnavailable(f"deepstream decodes on the first GPU, cuda:0; device is {request.device!r}")
    return TorchRows(request, torch.device("cuda", 0))


def _default_size() -> int:
    for name in _SIZES:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdecimal():
            return min(max(int(text), 1), _MOST_WORKERS)
    return _WORKERS
