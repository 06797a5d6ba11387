"""The DeepStream backend: NVIDIA's ``nvidia-deepstream-videodecode``, which is given small files made in memory.

The library returns frames in display order and the number of pictures that it decoded, but not which frames they are.
So every file is decoded to its end, and the result is used only if the number of pictures is the one expected (see
:mod:`telecine.backends.deepstream.bitstream_builder`). Otherwise its decode ranges are tried one by one, and frames
that stay unverified are lost.

The library reuses a decoder until the codec hint or the picture size changes. A decoder that was created for a stream
with fewer reference pictures returns wrong pictures without an error, so the hint contains the parameter sets.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost, first_line
from telecine.backends.cuda_output import hardware_refusal, parse_device_index
from telecine.backends.deepstream.bitstream_builder import InputFile, build_files, plan_ranges
from telecine.backends.remux.output_buffers import PinnedOutput, TorchOutput
from telecine.backends.session_pool import POLL_SECONDS, Session, SessionPool
from telecine.bitstream.h273 import matrix_code
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, DeadlineError, UnsupportedVideoError
from telecine.plan.ranges import DecodeRange, find_undecodable_targets
from telecine.validation import Option

__all__ = ["DeepStreamBackend"]

_MIN_SIZES = {"h264": (48, 16), "hevc": (144, 144)}
"""Minimum (width, height) of pictures, for GPUs that cannot be asked. The library hangs on smaller ones."""
_MAX_SIDES = {"h264": 4096, "hevc": 8192}
"""Maximum picture side in pixels."""
_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_CONVERTED_AS = {"bt709": "bt709", **dict.fromkeys(("bt470bg", "smpte170m", "unknown"), "smpte170m")}
"""The matrix coefficients that the library converts with, by those of the video."""
_MAX_WORKERS = 16
_DEFAULT_WORKERS = 8
_WORKER_VARIABLES = ("TELECINE_POOL_SIZE", "VLLM_MEDIA_LOADING_THREAD_COUNT")
"""Environment variables with the number of workers, for requests without ``pool_size``; the first one set is used."""
_MAX_REFUSALS = 2
"""Failures at the first picture of a file, while no frame has come out of the video, after which it is unsupported."""
_GRACE_SECONDS = 5.0
"""Time to answer that the library has after its own timeout."""
_INSTALL = (
    "pip install 'telecine[deepstream]'; it also needs GStreamer from the system (apt-get install python3-gi "
    "python3-gst-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-libav "
    "libv4l-0), glibc 2.34 or newer, CUDA 13 with NPP, and torch for CUDA"
)
_log = logging.getLogger("telecine.backends.deepstream.backend")
_building = threading.Lock()


class DeepStreamBackend(Backend):
    """Decodes with DeepStream, on the first GPU that torch sees. H.264 and HEVC, 8 bits, 4:2:0, progressive.

    Its workers serve the whole process. Each is created when it is first needed, and again after it has failed.
    """

    name = "deepstream"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "pool_size": Option(int),  # clamped to 1 to 16
        "timeout_sec": Option(float, 30.0, low=0.001, high=86400),
    }
    detects_damage = False
    tolerances: Mapping[str, int] = {"size": 12}
    refused_cases = frozenset({"10-bit", "hdr", "hdr-rotated", "interlaced", "odd-size"})

    def __init__(self) -> None:
        self._workers: SessionPool[_Worker] = SessionPool("pool_size")

    def status(self) -> BackendStatus:
        try:
            import torch
            from nvidia import deepstream_videodecode as library

            if not torch.cuda.is_available():
                return self.make_status(str(library.__version__), "torch sees no NVIDIA GPU")
        except Exception as error:
            return self.make_status(None, f"it cannot be imported ({first_line(error)}): {_INSTALL}")
        return self.make_status(str(library.__version__))

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        super().check_device(device, options)
        if parse_device_index(device):
            raise BackendUnavailable(f"deepstream decodes on the first GPU, cuda:0; device is {device!r}")

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        return request.gpu_cost(on_host=request.device == "cpu")

    def decode(self, request: DecodeRequest) -> Decoded:
        _refuse_unsupported(request)
        on_host = request.device == "cpu"
        output = PinnedOutput(request) if on_host else TorchOutput(request, "cuda:0")
        _FileDecoder(self._workers, request, output).decode()
        return output.decoded()


class _Worker(Session):
    """A pool of the library with a single worker, so that it is known which decoder a call gets."""

    def __init__(self) -> None:
        # without it the library copies surfaces that may not be complete
        os.environ.setdefault("DS_SYNC_COPY", "1")
        try:
            from nvidia import deepstream_videodecode

            self.pool = deepstream_videodecode.DecodePool(num_workers=1)
        except Exception as error:  # torch, CUDA and GStreamer have errors of their own
            raise BackendUnavailable(f"deepstream cannot be started: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        # it waits for the worker, for seconds
        threading.Thread(target=self.pool.shutdown, name="telecine-deepstream-end", daemon=True).start()


class _FileDecoder:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(
        self, workers: SessionPool[_Worker], request: DecodeRequest, output: PinnedOutput | TorchOutput
    ) -> None:
        self._workers, self._request, self._output = workers, request, output
        self._color_options = _color_options(request)
        self._num_refusals = 0

    def decode(self) -> None:
        """Fill the rows of the frames that can be decoded and verified."""
        index, deadline = self._request.index, self._request.deadline
        ranges = plan_ranges(index, self._request.plan.frames)
        for file in _build_in_turn(build_files(self._request, ranges, self._color_options), deadline):
            if not self._decode_file(file):
                for range_ in file.ranges:
                    find_undecodable_targets(index, range_, self._decode_range)

    def _decode_range(self, range_: DecodeRange) -> bool:
        """Decode a range in a file of its own. Return True if it filled the rows of all targets."""
        num_targets = 0
        for file in build_files(self._request, [range_], self._color_options):
            if not self._decode_file(file):
                return False
            num_targets += len(file.targets)
        return num_targets == len(range_.targets)

    def _decode_file(self, file: InputFile) -> bool:
        """Decode a file and fill the rows of its targets. Return False, with no row filled, if it is not verified."""
        import torch

        request = self._request
        shifts = {0, file.num_optional}
        wanted = sorted({number - shift for number in file.targets for shift in shifts if number >= shift})
        # with room for one more frame it does not stop at the last one wanted, and counts all pictures
        result = self._call(file, target_indices=wanted, max_frames=len(wanted) + 1)
        missing = file.num_pictures - result.n_total
        found = [number for number in wanted if number < result.n_total]
        if result.error or missing not in shifts or result.n_kept != len(found):
            _log.debug("%d pictures of %d: %s", result.n_total, file.num_pictures, result.error or "not verified")
            self._count_refusal(result)
            return False
        stored = request.geometry.stored_height, request.geometry.stored_width
        if found and file.size != stored and tuple(result.frames.shape[1:3]) == stored:
            raise UnsupportedVideoError(
                f"{request.source.name}: the picture size changes in mid-stream, and deepstream scales the pictures to "
                "the first size by a rule of its own; use backend='pyav'"
            )
        position = {number: i for i, number in enumerate(found)}
        for number, rows in file.targets.items():
            self._output.write_tensor(rows, result.frames[position[number - missing]])
        # once freed, the memory of these frames may go to another worker, which writes to it in a stream of its own
        torch.cuda.current_stream(torch.device("cuda", 0)).synchronize()
        return True

    def _count_refusal(self, result: Any) -> None:
        """Give up on a video that the hardware does not support: each attempt fails and costs a worker."""
        self._num_refusals += bool(result.error) and not result.n_total
        if self._num_refusals >= _MAX_REFUSALS and not self._output.kept.any():
            raise UnsupportedVideoError(f"{self._request.source.name}: deepstream cannot decode it: {result.error}")

    def _call(self, file: InputFile, **targets: Any) -> Any:
        """Decode a file with a worker, in a thread that can be left behind: a worker that dies never answers."""
        deadline, options, pool = self._request.deadline, self._request.options, self._workers
        size, limit = options["pool_size"], options["timeout_sec"]
        size = None if size is None else _clamp(size)
        with (
            pool.slot(size, _default_size(), deadline),
            pool.session(file.decoder_key, lambda idle: idle or _Worker()) as worker,
        ):
            left = deadline.remaining()
            timeout = limit if left is None else max(0.001, min(limit, left))
            future: Future[Any] = Future()

            def call() -> None:
                try:
                    future.set_result(
                        worker.pool.decode(file.data, codec=file.decoder_key, timeout_sec=timeout, **targets)
                    )
                except Exception as error:
                    future.set_exception(error)

            started = time.monotonic()
            threading.Thread(target=call, name="telecine-deepstream", daemon=True).start()
            while not wait([future], POLL_SECONDS).done:
                waited = time.monotonic() - started
                deadline.check("decoding")
                if waited > limit + _GRACE_SECONDS:
                    raise DeadlineError(f"deepstream gave no answer within {waited:.0f} s (timeout_sec is {limit:g})")
            if (error := future.exception()) is not None:
                raise BackendUnavailable(f"deepstream: {type(error).__name__}: {error}") from error
            answer = future.result()
            if "timeout" in answer.error:
                deadline.check("decoding")
                raise DeadlineError(f"deepstream: {answer.error} (timeout_sec is {limit:g})")
            # after an error the worker stalls for seconds; after a timeout its late frames get into the next result
            worker.is_reusable = not answer.error
        return answer


def _build_in_turn(files: Iterator[InputFile], deadline: Deadline) -> Iterator[InputFile]:
    """Yield files, each built by one request at a time."""
    # the library runs Python code at every picture: the fewer threads compete for the interpreter, the faster it is
    while True:
        while not _building.acquire(timeout=POLL_SECONDS):
            deadline.check("waiting for others to read their packets")
        try:
            file = next(files, None)
        finally:
            _building.release()
        if file is None:
            return
        yield file


def _refuse_unsupported(request: DecodeRequest) -> None:
    """Raise UnsupportedVideoError if the library cannot decode the video, or returns wrong pixels."""
    info, codec = request.info, request.index.codec
    reason = ""
    if codec not in _MAX_SIDES:
        reason = f"decodes {' and '.join(_MAX_SIDES)} here, not {codec}"
    elif info.pixel_format not in _PIXEL_FORMATS:
        reason = f"decodes 4:2:0 with 8 bits rightly, not {info.pixel_format}"
    elif request.index.crops_left:
        reason = "does not crop pictures on the left"
    elif info.interlaced:
        reason = "does not give interlaced video as it is"
    elif info.color_space not in _CONVERTED_AS:
        reason = f"converts colours by BT.709 and BT.601, not by {info.color_space}"
    else:
        width, height = request.geometry.stored_width, request.geometry.stored_height
        minimum, maximum = _MIN_SIZES[codec], _MAX_SIDES[codec]
        if width < minimum[0] or height < minimum[1] or max(width, height) > maximum:
            allowed = f"from {minimum[0]}x{minimum[1]} to {maximum}x{maximum}"
            reason = f"takes pictures {allowed} in {codec}, not {width}x{height}"
        elif hardware := hardware_refusal(request):
            reason = f"cannot decode it: {hardware}"
    if reason:
        raise UnsupportedVideoError(f"{request.source.name}: deepstream {reason}; use backend='pyav'")


def _color_options(request: DecodeRequest) -> str:
    """Return options of FFmpeg's ``h264_metadata`` and ``hevc_metadata`` that write the colours into the stream."""
    # the library chooses the matrix by the primaries, so primaries, transfer and matrix get the same code point
    info = request.info
    code = matrix_code(_CONVERTED_AS[info.color_space])
    full = info.color_range == "pc" or info.pixel_format == "yuvj420p"
    names = ("colour_primaries", "transfer_characteristics", "matrix_coefficients")
    return ":".join([*(f"{name}={code}" for name in names), f"video_full_range_flag={int(full)}"])


def _default_size() -> int:
    for name in _WORKER_VARIABLES:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdecimal():
            return _clamp(int(text))
    return _DEFAULT_WORKERS


def _clamp(num_workers: int) -> int:
    return min(max(num_workers, 1), _MAX_WORKERS)
