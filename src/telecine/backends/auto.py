"""The backend for GPUs when none is named: NVDEC, and FFmpeg on the CPU for videos that the hardware cannot decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import check_gpu, upload
from telecine.backends.nvdec.backend import OUT
from telecine.backends.registry import get_backend
from telecine.errors import BackendUnavailable, LimitError, OverloadedError, UnsupportedVideoError
from telecine.plan.decode_plan import make_plan
from telecine.validation import Option

__all__ = ["AutoBackend"]

_REFUSALS = (UnsupportedVideoError, BackendUnavailable, LimitError, OverloadedError)
"""Errors of NVDEC after which the CPU decodes. It can return the frames before a picture that exceeds a limit."""


class AutoBackend(Backend):
    """Decodes on the GPU. Videos that it cannot decode, or not completely, are decoded on the CPU and uploaded."""

    name = "auto"
    devices = ("cuda",)
    options: Mapping[str, Option] = {"out": OUT, "threads": Option(int, low=1, high=64)}  # "threads" of the CPU decoder

    def status(self) -> BackendStatus:
        return replace(get_backend("pyav").status(), name=self.name, devices=self.devices)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        super().check_device(device, options)
        if options["out"] != "numpy":  # the CPU can make those alone
            check_gpu(device, options["out"])

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        return request.gpu_cost() + request.cpu_cost(request.options["threads"] or 1)

    def decode(self, request: DecodeRequest) -> Decoded:
        try:
            decoded = get_backend("nvdec").decode(_for_gpu(request))
        except _REFUSALS as error:
            return _upload(request, get_backend("pyav").decode(_for_cpu(request)), str(error))
        return self._decode_lost(request, decoded)

    def decode_chunks(self, request: DecodeRequest, chunk_frames: int) -> Iterator[Decoded]:
        index, frames, done = request.index, request.plan.frames, 0
        try:
            for decoded in get_backend("nvdec").decode_chunks(_for_gpu(request), chunk_frames):
                start, done = done, done + len(decoded.kept)
                yield self._decode_lost(replace(request, plan=make_plan(index, frames[start:done])), decoded)
        except _REFUSALS as error:
            rest = replace(request, plan=make_plan(index, frames[done:]))
            for decoded in get_backend("pyav").decode_chunks(_for_cpu(rest), chunk_frames):
                yield _upload(request, decoded, str(error))

    def _decode_lost(self, request: DecodeRequest, decoded: Decoded) -> Decoded:
        """Decode on the CPU what the GPU decoded with losses: the result with more frames counts."""
        if decoded.kept.all():
            return replace(decoded, backend="nvdec")
        # FFmpeg may decode packets that the hardware parser rejected
        missing = int((~decoded.kept).sum())
        again = get_backend("pyav").decode(_for_cpu(request))
        if again.kept.sum() <= decoded.kept.sum():
            return replace(decoded, backend="nvdec")
        again = replace(again, packets_fed=decoded.packets_fed)
        return _upload(request, again, f"nvdec: {missing} of {len(decoded.kept)} frames could not be decoded")


def _for_gpu(request: DecodeRequest) -> DecodeRequest:
    return replace(request, options={"out": request.options["out"]})


def _for_cpu(request: DecodeRequest) -> DecodeRequest:
    layout = request.layout if request.options["out"] == "numpy" else "NHWC"  # uploads take contiguous memory
    return replace(request, device="cpu", options={"threads": request.options["threads"]}, layout=layout)


def _upload(request: DecodeRequest, decoded: Decoded, reason: str) -> Decoded:
    """Put frames of the CPU where the request wants them, and say why the CPU decoded them."""
    out = request.options["out"]
    if out != "numpy":
        data, device = upload(decoded.data, request.device, out)
        decoded = replace(decoded, data=data, device=device)
    return replace(decoded, backend="pyav", fallback_reason=reason)
