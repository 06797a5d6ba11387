"""The NVDEC backend: feed the planned packets to the video engines of an NVIDIA GPU and convert only wanted frames.

The engine is :mod:`telecine._nvdec`, in C++; docs/nvdec.md says how it works. This module checks that the hardware can
decode the video, passes the planned packets to the engine in batches, and allocates the memory for the frames.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import (
    NVDEC_CODECS,
    PIXEL_FORMATS,
    OutputArray,
    check_gpu,
    codec_refusal,
    conversion_refusal,
    convert_errors,
    device_error,
    load_extension,
    make_native_geometry,
    parse_device_index,
    resolve_array_kind,
)
from telecine.backends.nvdec.batches import read_batches
from telecine.errors import DeadlineError, OptionsError, UnsupportedVideoError
from telecine.notes import Note
from telecine.validation import Option

__all__ = ["OUT", "NvdecBackend", "stats", "warm_up"]

_LOSS_REASONS = {1: "missing", 2: "damaged", 3: "with contradictory times", 4: "not decoded because of an error"}
"""By the engine's codes."""

OUT = Option(str, "auto", choices=("auto", "torch", "array", "numpy"))


class NvdecBackend(Backend):
    """Executes a plan on a GPU."""

    name = "nvdec"
    chunks_per_group = 8  # decoded at the same time if they start at closed random access points
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {"out": OUT}
    refused_cases = frozenset({"odd-size"})

    def __init__(self) -> None:
        self._devices: set[int] = set()

    def gauges(self) -> dict[str, float]:
        """Return the number of decoder sessions and their bytes, summed over all GPUs that have decoded something."""
        counters = [stats(device) for device in sorted(self._devices)]
        gone = sum(each["sessions_evicted"] + each["sessions_destroyed_after_error"] for each in counters)
        return {
            "telecine_sessions": float(sum(each["sessions_made"] for each in counters) - gone),
            "telecine_vram_bytes": float(sum(each["session_bytes"] for each in counters)),
        }

    def status(self) -> BackendStatus:
        try:
            nvdec = load_extension()
        except ImportError as error:
            return self.make_status(None, str(error))
        try:
            nvdec.device_count()
            return self.make_status(f"CUDA {nvdec.driver_version()}")
        except nvdec.NvdecError as error:
            return self.make_status(None, str(error.args[0]))

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        super().check_device(device, options)
        out = options["out"]
        if device != "cpu":
            check_gpu(device, out)
        elif out not in ("auto", "numpy"):
            raise OptionsError(f'out is {out!r}, but device is "cpu"; choose device="cuda" or out="numpy"')

    def decodes_on_cpu(self, device: str) -> bool:
        return False

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        return request.gpu_cost(on_host=_array_kind(request) == "numpy")

    def decode(self, request: DecodeRequest) -> Decoded:
        nvdec = load_extension()
        kind = _array_kind(request)
        device = parse_device_index(request.device)
        try:
            _refuse_unsupported(request, nvdec, device)
            self._devices.add(device)
            return _decode(request, nvdec, device, kind)
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
    """Create decoder sessions in advance, so that the first requests do not wait for them.

    Args:
        codecs: FFmpeg's names.
        sizes: (height, width) of stored pictures; every video of the same size class can use the sessions.
        count: sessions for each codec and size; as many as the GPU has engines when omitted.
        depth: bits per component.
        device: "cuda" or "cuda:N".

    Raises:
        BackendUnavailable: NVDEC does not work here; the message says why.
    """
    nvdec = load_extension()
    index = parse_device_index(device)
    wanted = list(sizes)
    with convert_errors("nvdec"):
        for codec in codecs:
            sessions = count or nvdec.caps(index, codec, "420", depth)["num_engines"]
            for height, width in wanted:
                nvdec.warm_up(index, codec, "420", depth, width, height, sessions)


def stats(device: int = 0) -> dict[str, int]:
    """Return the counters of a GPU's engine: sessions made, reused and evicted, their bytes, decode ranges waiting.

    Raises:
        BackendUnavailable: NVDEC does not work here; the message says why.
    """
    with convert_errors("nvdec"):
        return dict(load_extension().stats(device))


def _array_kind(request: DecodeRequest) -> str:
    return "numpy" if request.device == "cpu" else resolve_array_kind(str(request.options.get("out", "auto")))


def _refuse_unsupported(request: DecodeRequest, nvdec: ModuleType, device: int) -> None:
    """Raise UnsupportedVideoError with the reason if the hardware or the conversion kernel cannot do this video."""
    info, geometry = request.info, request.geometry
    reason = codec_refusal(info.codec, request.index.crops_left)
    if reason is None and info.codec not in NVDEC_CODECS:
        reason = f"{info.codec} is not decoded on the GPU"
    reason = reason or conversion_refusal(info, geometry)
    if reason is None:
        size = geometry.stored_width, geometry.stored_height
        reason = nvdec.refusal(device, info.codec, *PIXEL_FORMATS[info.pixel_format], *size)
    if reason is not None:
        raise UnsupportedVideoError(f"nvdec: {reason}")


def _decode(request: DecodeRequest, nvdec: ModuleType, device: int, kind: str) -> Decoded:
    count = len(request.plan.frames)
    started = time.perf_counter()
    output = OutputArray(nvdec, device, (count, request.geometry.height, request.geometry.width, 3), kind)
    geometry = make_native_geometry(request, nvdec)
    loss = np.ones(count, np.uint8)
    failures: dict[str, None] = {}
    fed = 0
    for batch in read_batches(request):
        request.deadline.check("decoding", fed, request.plan.packets_fed)
        fed += len(batch.packets)
        result = nvdec.decode(
            device,
            request.index.codec,
            request.demuxer.extradata,
            batch.packets,
            batch.display_order,
            batch.flags,
            batch.ranges,
            batch.targets,
            geometry,
            nvdec.Output(output.pointer, count, output.stream),
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
        loss[batch.targets[:, 1]] = np.frombuffer(result.loss, np.uint8)
    decoded = time.perf_counter()
    data = output.finish()
    seconds = {"gpu": decoded - started, "copy": time.perf_counter() - decoded}
    device_name = "cpu" if kind == "numpy" else f"cuda:{device}"
    return Decoded(data, loss == 0, device_name, tuple(_notes(loss, failures)), seconds)


def _notes(loss: npt.NDArray[np.uint8], failures: dict[str, None]) -> Iterator[Note]:
    for code, reason in _LOSS_REASONS.items():
        rows = int((loss == code).sum())
        if rows:
            yield Note("damaged-rows", f"{rows} rows are {reason}")
    yield from (Note("engine", failure) for failure in failures)
