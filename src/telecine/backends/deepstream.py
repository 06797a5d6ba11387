"""NVIDIA's DeepStream decoder (``nvidia-deepstream-videodecode``), given a reel in memory.

What its pool gives back is a tensor of frames in order, and how many: not which. So nothing is believed that cannot be
proven. A reel in which every packet brings a frame is asked for by index, and believed if the decoder gave exactly as
many pictures as there are. Otherwise each frame is asked for alone, by time, together with the one behind it: only if
two different ones come back can the first be the wanted one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.backends.placing import HostRows, TorchRows
from telecine.errors import BackendUnavailable, DeadlineError
from telecine.options import Option
from telecine.plan import Run
from telecine.reel import STEP, Reel, chapters, cut, doubtful, make_reel, only

__all__ = ["DeepStreamBackend"]

_CODECS = ("h264", "hevc")
_MOST_WORKERS = 16
_WORKERS = 8
_SIZES = ("TELECINE_POOL_SIZE", "VLLM_MEDIA_LOADING_THREAD_COUNT")
"""Variables that say how large the pool is where no request does, the first one first."""
_GRACE = 5.0
"""Seconds after its own timeout that the library has to answer."""
_WAIT = 0.05
_INSTALL = (
    "pip install 'telecine[deepstream]'; it also needs GStreamer from the system (apt-get install python3-gi "
    "python3-gst-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-libav "
    "libv4l-0), glibc 2.34 or newer, CUDA 13 with NPP, and torch for CUDA"
)
_NANOSECONDS = STEP * 1_000_000
_log = logging.getLogger("telecine.backends.deepstream")


class DeepStreamBackend:
    """Decodes with DeepStream, on the GPU that torch uses. H.264 and HEVC.

    One pool for the process is made by the first request, and made anew after one of its workers has died.
    """

    options: Mapping[str, Option] = {
        "pool_size": Option(
            int, None, "workers of the pool, 1 to 16, in this process; the first value holds. TELECINE_POOL_SIZE, or 8"
        ),
        "timeout_sec": Option(float, 30.0, "seconds for one call of the library", 0.001, 86400),
    }
    tolerances: Mapping[str, int] = {"size": 12}
    differences: Mapping[str, str] = {"noise": "DeepStream does not tell; the frames are as the hardware leaves them"}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Any = None
        self._size = 0
        self._warned = False

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
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
        """See :class:`telecine.backends.Backend`."""
        rows = _rows(request)
        for runs in cut(request.plan.runs):
            reel = make_reel(request.demuxer, request.index, runs, request.deadline)
            if not (_complete(request, reel) and self._by_index(request, reel, rows)):
                for run in runs:
                    for part in chapters(request.index, run):
                        self._by_time(request, part, rows)
        return rows.decoded()

    def _by_index(self, request: DecodeRequest, reel: Reel, rows: HostRows | TorchRows) -> bool:
        """Ask for all at once, and say whether what came can be believed."""
        wanted = list(reel.targets)
        # with room for one more it does not stop at the last one, and counts what it decodes to the end
        result = self._call(request, reel, target_indices=wanted, max_frames=len(wanted) + 1)
        if result.error or result.n_total != reel.expected or result.n_kept != len(wanted):
            return False
        for position, picture in zip(wanted, result.frames, strict=True):
            _put(rows, reel.targets[position], picture)
        return True

    def _by_time(self, request: DecodeRequest, part: Run, rows: HostRows | TorchRows) -> None:
        """Ask for each frame of a part alone."""
        lost: set[int] = set()
        corrupt: frozenset[int] = frozenset()
        for ordinal in sorted(part.targets):
            reel = make_reel(request.demuxer, request.index, (only(request.index, part, (ordinal,)),), request.deadline)
            corrupt |= reel.corrupt
            position = reel.position[ordinal]
            times = _times(reel, position)
            result = None
            if position in reel.present():
                result = self._call(request, reel, target_pts_ns=times, max_frames=len(times))
            if result is None or result.error or result.n_kept != len(times):
                lost.add(ordinal)
            else:
                _put(rows, part.targets[ordinal], result.frames[0])
        for ordinal in doubtful(request.index, (part,), lost | corrupt):
            rows.kept[list(part.targets[ordinal])] = False

    def _call(self, request: DecodeRequest, reel: Reel, **targets: Any) -> Any:
        """Let the pool decode, and come back in time even if it does not.

        The pool waits without a limit for a worker's answer, and a worker that fails outside its own guard answers
        nothing. So the call is made in a thread that can be left behind; this and the pool of requests are the only
        places that start one.
        """
        limit = request.options["timeout_sec"]
        left = request.deadline.remaining()
        pool = self._ready_pool(request)
        answer: list[Any] = []
        done = threading.Event()

        def ask() -> None:
            try:
                answer.append(
                    pool.decode(
                        reel.data,
                        codec=request.index.codec,
                        timeout_sec=limit if left is None else max(0.001, min(limit, left)),
                        **targets,
                    )
                )
            except Exception as error:
                answer.append(error)
            done.set()

        started = time.monotonic()
        threading.Thread(target=ask, name="telecine-deepstream", daemon=True).start()
        while not done.wait(_WAIT):
            waited = time.monotonic() - started
            try:
                request.deadline.check("decoding")
                if waited > limit + _GRACE:
                    raise DeadlineError(f"deepstream gave no answer within {waited:.0f} s (timeout_sec is {limit:g})")
            except BaseException:
                self._replace(pool)
                raise
        if isinstance(answer[0], Exception):
            self._replace(pool)
            raise BackendUnavailable(f"deepstream: {type(answer[0]).__name__}: {answer[0]}") from answer[0]
        if "timeout" in answer[0].error:
            # the chain still runs, and its late frames would land in the next request
            self._replace(pool)
            request.deadline.check("decoding")
            raise DeadlineError(f"deepstream: {answer[0].error} (timeout_sec is {limit:g})")
        return answer[0]

    def _ready_pool(self, request: DecodeRequest) -> Any:
        wanted = request.options["pool_size"]
        wanted = None if wanted is None else min(max(wanted, 1), _MOST_WORKERS)
        with self._lock:
            if not self._size:
                self._size = wanted or _default_size()
            elif wanted not in (None, self._size) and not self._warned:
                self._warned = True
                _log.warning("pool_size is %d; it stays %d, as the first request said", wanted, self._size)
            if self._pool is None:
                # off, it copies surfaces that may not be ready, and frames come out torn under load
                os.environ.setdefault("DS_SYNC_COPY", "1")
                self._pool = _library().DecodePool(num_workers=self._size)
            return self._pool

    def _replace(self, pool: Any) -> None:
        """Give a pool up; the next request makes another."""
        with self._lock:
            if self._pool is not pool:
                return
            self._pool = None
        # it joins its workers, for seconds each
        threading.Thread(target=pool.shutdown, name="telecine-deepstream-end", daemon=True).start()


def _library() -> Any:
    from nvidia import deepstream_videodecode

    return deepstream_videodecode


def _rows(request: DecodeRequest) -> HostRows | TorchRows:
    if request.index.codec not in _CODECS:
        raise BackendUnavailable(
            f"{request.source.name}: deepstream decodes {' and '.join(_CODECS)} here, not {request.index.codec}; "
            "use backend='pyav'"
        )
    if request.device == "cpu":
        return HostRows(request)
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    if torch.device(request.device).index not in (None, device.index):
        raise BackendUnavailable(
            f"deepstream decodes on torch's current device, which is {device}; device is {request.device!r}"
        )
    return TorchRows(request, device)


def _default_size() -> int:
    for name in _SIZES:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdecimal():
            return min(max(int(text), 1), _MOST_WORKERS)
    return _WORKERS


def _complete(request: DecodeRequest, reel: Reel) -> bool:
    """Whether every packet of a reel brings a frame of one size, so that the n-th picture is the n-th position."""
    fields = sum(int(request.index.second_field[ordinal]) for ordinal in reel.position)
    first = min(reel.position.items())[1]
    return not (first or fields or reel.corrupt or reel.changes) and reel.expected == len(reel.position)


def _times(reel: Reel, position: int) -> list[int]:
    """The times to ask for, in nanoseconds, such that as many frames come only if the first is at ``position``.

    A time stands for the first frame at or behind it, and one frame may serve several. Half a step in front of each is
    clear of any rounding. A random access point behind is asked for too, or the library drops the pictures that follow
    it in decoding order.
    """
    later = [at for at in reel.present() if at > position]
    keys = [at for at, key in reel.present().items() if key and at > position]
    wanted = sorted({position, *later[:1], *keys[-1:]})
    return [max(0, round((at - 0.5) * _NANOSECONDS)) for at in wanted]


def _put(rows: HostRows | TorchRows, where: tuple[int, ...], picture: Any) -> None:
    if isinstance(rows, TorchRows):
        rows.put(where, picture)
    else:
        rows.put(where, picture.cpu().numpy())
