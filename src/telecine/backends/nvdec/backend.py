"""The NVDEC backend: the planned packets go to the video engines of an NVIDIA GPU; only wanted frames are converted.

The engine is :mod:`telecine._nvdec`, in C++; docs/nvdec.md says how it works. Here is what Python does: check that the
hardware can do the video, cut the plan into stretches that different engines decode at the same time, give the packets
in batches, and hand out the memory for the frames.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import BackendStatus, Decoded, DecodeRequest
from telecine.backends.cuda_output import (
    PIXEL_FORMATS,
    Memory,
    device_error,
    device_number,
    extension,
    form,
    inexact,
    native_geometry,
    unconvertible,
)
from telecine.backends.nvdec.batches import batches
from telecine.errors import DeadlineError, OptionsError, UnsupportedVideoError
from telecine.validation import Option

__all__ = ["OUT", "NvdecBackend", "stats", "upload", "warm_up"]

_CODECS = frozenset("h264 hevc vp8 vp9".split())
_FAILED = 4
_REASONS = {1: "missing", 2: "damaged", 3: "with contradictory times", _FAILED: "not decoded because of an error"}


OUT = Option(
    str,
    "auto",
    "what the frames are: a torch tensor, an array with DLPack, or NumPy; torch where it is installed",
    choices=("auto", "torch", "array", "numpy"),
)


class NvdecBackend:
    """Executes a plan on a GPU."""

    options: Mapping[str, Option] = {"out": OUT}

    def __init__(self) -> None:
        self._devices: set[int] = set()

    def gauges(self) -> dict[str, float]:
        """Sessions that exist, and the bytes that they hold, on all GPUs that have decoded something: docs/pool.md."""
        counters = [stats(device) for device in sorted(self._devices)]
        gone = sum(each["sessions_evicted"] + each["sessions_destroyed_after_error"] for each in counters)
        return {
            "telecine_sessions": float(sum(each["sessions_made"] for each in counters) - gone),
            "telecine_vram_bytes": float(sum(each["session_bytes"] for each in counters)),
        }

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.base.Backend`."""
        try:
            nvdec = extension()
        except ImportError as error:
            return BackendStatus("nvdec", False, str(error), None)
        try:
            nvdec.device_count()
            return BackendStatus("nvdec", True, None, f"CUDA {nvdec.driver_version()}")
        except nvdec.NvdecError as error:
            return BackendStatus("nvdec", False, str(error.args[0]), None)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.base.Backend`."""
        nvdec = extension()
        out = _output(request)
        device = device_number(request.device)
        try:
            _require(request, nvdec, device)
            self._devices.add(device)
            return _decode(request, nvdec, device, out)
        except nvdec.NvdecError as error:
            raise device_error("nvdec", error) from error


def warm_up(
    codecs: Iterable[str] = ("h264", "hevc"),
    sizes: Iterable[tuple[int, int]] = ((1080, 1920),),
    *,
    count: int | None = None,
    depth: int = 8,
    device: str = "cuda",
) -> None:
    """Make sessions of the NVDEC engine now, so that the first requests do not wait for them.

    Args:
        codecs: FFmpeg's names.
        sizes: (height, width) of stored pictures; every video of the same size class can use the sessions.
        count: sessions for each codec and size; as many as the GPU has engines when omitted.
        depth: bits per component.
        device: "cuda" or "cuda:N".

    Raises:
        BackendUnavailable: it does not work here; the message says why.
    """
    nvdec = extension()
    number = device_number(device)
    wanted = list(sizes)
    try:
        for codec in codecs:
            each = count or nvdec.caps(number, codec, "420", depth)["num_engines"]
            for height, width in wanted:
                nvdec.warm_up(number, codec, "420", depth, width, height, each)
    except nvdec.NvdecError as error:
        raise device_error("nvdec", error) from error


def upload(frames: npt.NDArray[np.uint8], device: str, out: str) -> tuple[Any, str]:
    """Bring frames from the host to a GPU: (what ``out`` asks for, the device's full name).

    Raises:
        BackendUnavailable: there is no such device.
    """
    number = device_number(device)
    if form(out) == "torch":
        import torch

        try:
            return torch.from_numpy(frames).to(torch.device("cuda", number)), f"cuda:{number}"
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise device_error(f"device is {device!r}, but PyTorch cannot use it", error) from error
    nvdec = extension()
    try:
        array = nvdec.DeviceArray(number, frames.shape)
        array.fill(frames)
    except nvdec.NvdecError as error:
        raise device_error(f"device is {device!r}, but it cannot be used", error) from error
    return array, f"cuda:{number}"


def stats(device: int = 0) -> dict[str, int]:
    """Counters of a GPU's engine: sessions made, reused and evicted, bytes they hold, runs waiting.

    Raises:
        BackendUnavailable: it does not work here; the message says why.
    """
    nvdec = extension()
    try:
        return dict(nvdec.stats(device))
    except nvdec.NvdecError as error:
        raise device_error("nvdec", error) from error


def _output(request: DecodeRequest) -> str:
    out = str(request.options.get("out", "auto"))
    if request.device == "cpu":
        if out not in ("auto", "numpy"):
            raise OptionsError(f'out is {out!r}, but device is "cpu"; choose device="cuda" or out="numpy"')
        return "numpy"
    return form(out)


def _require(request: DecodeRequest, nvdec: ModuleType, device: int) -> None:
    """Raise UnsupportedVideoError with the reason if the hardware, or the conversion, cannot do this video."""
    info, geometry = request.info, request.geometry
    reason = inexact(info.codec)
    if reason is None and info.codec not in _CODECS:
        reason = f"{info.codec} is not decoded on the GPU"
    reason = reason or unconvertible(info, geometry)
    if reason is None:
        size = geometry.stored_width, geometry.stored_height
        reason = nvdec.refusal(device, info.codec, *PIXEL_FORMATS[info.pixel_format], *size)
    if reason is not None:
        raise UnsupportedVideoError(f"nvdec: {reason}")


def _decode(request: DecodeRequest, nvdec: ModuleType, device: int, out: str) -> Decoded:
    count = len(request.plan.frames)
    started = time.perf_counter()
    memory = Memory(nvdec, device, (count, request.geometry.height, request.geometry.width, 3), out)
    geometry = native_geometry(request, nvdec)
    loss = np.ones(count, np.uint8)
    failures: dict[str, None] = {}
    fed = 0
    for batch in batches(request):
        request.deadline.check("decoding", fed, request.plan.packets_fed)
        fed += len(batch.packets)
        result = nvdec.decode(
            device,
            request.index.codec,
            request.demuxer.extradata,
            batch.packets,
            batch.orders,
            batch.flags,
            batch.runs,
            batch.wanted,
            geometry,
            nvdec.Output(memory.pointer, count, memory.stream),
            timeout=request.deadline.remaining(),
            cancelled=lambda: request.deadline.cancelled,
            trust_references=request.index.exact_random_access,
            max_pixels=request.max_pixels,
        )
        if result.stopped:
            request.deadline.check("decoding", fed, request.plan.packets_fed)
            raise DeadlineError("the decode was stopped before its end")
        if result.failure is not None:
            if result.failure_kind != "driver":
                raise device_error("nvdec", RuntimeError(result.failure), result.failure_kind)
            failures[result.failure] = None
        loss[batch.wanted[:, 1]] = np.frombuffer(result.loss, np.uint8)
    decoding = time.perf_counter()
    data = memory.finish()
    seconds = {"gpu": decoding - started, "copy": time.perf_counter() - decoding}
    where = "cpu" if out == "numpy" else f"cuda:{device}"
    return Decoded(data, loss == 0, where, tuple(_notes(loss, failures)), seconds)


def _notes(loss: npt.NDArray[np.uint8], failures: dict[str, None]) -> Iterator[str]:
    for code, reason in _REASONS.items():
        rows = int((loss == code).sum())
        if rows:
            yield f"{rows} rows are {reason}"
    yield from failures
