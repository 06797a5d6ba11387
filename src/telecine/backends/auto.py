"""What "auto" means for a GPU: NVDEC where it can, FFmpeg on the CPU where it cannot, and the report says which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from telecine.backends.base import BackendStatus, Decoded, DecodeRequest, get
from telecine.backends.cuda_output import upload
from telecine.backends.nvdec.backend import OUT
from telecine.errors import BackendUnavailable, OverloadedError, UnsupportedVideoError
from telecine.validation import Option

__all__ = ["NvdecOrPyAV"]


class NvdecOrPyAV:
    """Decodes on the GPU, and on the CPU what the hardware cannot do or gives up half-way.

    Frames decoded on the CPU are uploaded to the device that was asked for.
    """

    options: Mapping[str, Option] = {
        "out": OUT,
        "threads": Option(int, None, "decoder threads where it falls back to the CPU", 1, 64),
    }

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.base.Backend`."""
        return replace(get("pyav").status(), name="auto")

    @property
    def gauges(self) -> Any:
        """Those of the NVDEC backend: the very same method, so that the metrics ask it once."""
        return cast(Any, get("nvdec")).gauges

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.base.Backend`."""
        on_gpu = replace(request, options={"out": request.options["out"]})
        try:
            decoded = get("nvdec").decode(on_gpu)
        except (UnsupportedVideoError, BackendUnavailable, OverloadedError) as error:
            return self._on_cpu(request, str(error))
        if decoded.kept.all():
            return replace(decoded, backend="nvdec")
        # the parser may have rejected what FFmpeg still reads: once more, and the better one counts
        missing = int((~decoded.kept).sum())
        again = self._on_cpu(request, f"nvdec: {missing} of {len(decoded.kept)} frames could not be decoded")
        return again if again.kept.sum() > decoded.kept.sum() else replace(decoded, backend="nvdec")

    def _on_cpu(self, request: DecodeRequest, reason: str) -> Decoded:
        layout = request.layout if request.options["out"] == "numpy" else "NHWC"  # uploads take contiguous memory
        decoded = get("pyav").decode(replace(request, options={"threads": request.options["threads"]}, layout=layout))
        data, device = decoded.data, decoded.device
        if request.options["out"] != "numpy":
            data, device = upload(data, request.device, request.options["out"])
        return replace(decoded, data=data, device=device, backend="pyav", fallback_reason=reason)
