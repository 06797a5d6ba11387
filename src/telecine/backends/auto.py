"""The backend for GPUs when none is named: NVDEC, and FFmpeg on the CPU for videos that the hardware cannot decode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import check_gpu, upload
from telecine.backends.nvdec.backend import OUT
from telecine.backends.registry import get_backend
from telecine.errors import BackendUnavailable, OverloadedError, UnsupportedVideoError
from telecine.validation import Option

__all__ = ["AutoBackend"]


class AutoBackend(Backend):
    """Decodes on the GPU. Videos that it cannot decode, or not completely, are decoded on the CPU and uploaded."""

    name = "auto"
    devices = ("cuda",)
    options: Mapping[str, Option] = {
        "out": OUT,
        "threads": Option(int, None, "decoder threads for a video that is decoded on the CPU instead", 1, 64),
    }

    def status(self) -> BackendStatus:
        """See :meth:`telecine.backends.Backend.status`."""
        return replace(get_backend("pyav").status(), name=self.name, devices=self.devices)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        """See :meth:`telecine.backends.Backend.check_device`. NumPy arrays need no GPU."""
        super().check_device(device, options)
        if options["out"] != "numpy":
            check_gpu(device, options["out"])

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """See :meth:`telecine.backends.Backend.memory_cost`. The CPU decodes with one thread if a pool shares it."""
        return request.gpu_cost() + request.cpu_cost(request.options["threads"] or 1)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :meth:`telecine.backends.Backend.decode`."""
        on_gpu = replace(request, options={"out": request.options["out"]})
        try:
            decoded = get_backend("nvdec").decode(on_gpu)
        except (UnsupportedVideoError, BackendUnavailable, OverloadedError) as error:
            return self._decode_on_cpu(request, str(error))
        if decoded.kept.all():
            return replace(decoded, backend="nvdec")
        # FFmpeg may decode packets that the hardware parser rejected: the result with more frames counts
        missing = int((~decoded.kept).sum())
        again = self._decode_on_cpu(request, f"nvdec: {missing} of {len(decoded.kept)} frames could not be decoded")
        return again if again.kept.sum() > decoded.kept.sum() else replace(decoded, backend="nvdec")

    def _decode_on_cpu(self, request: DecodeRequest, reason: str) -> Decoded:
        out, threads = request.options["out"], request.options["threads"]
        layout = request.layout if out == "numpy" else "NHWC"  # uploads take contiguous memory
        on_cpu = replace(request, device="cpu", options={"threads": threads}, layout=layout)
        decoded = get_backend("pyav").decode(on_cpu)
        if out != "numpy":
            data, device = upload(decoded.data, request.device, out)
            decoded = replace(decoded, data=data, device=device)
        return replace(decoded, backend="pyav", fallback_reason=reason)
