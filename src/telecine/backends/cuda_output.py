"""What it takes to convert pictures on a GPU, whoever has decoded them there: the kernel, its arguments, its output."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from telecine.backends.base import DecodeRequest
from telecine.bitstream.h273 import matrix_code
from telecine.errors import BackendUnavailable, OverloadedError, TelecineError, UnsupportedVideoError
from telecine.index.video_info import VideoInfo
from telecine.pixels.geometry import Geometry

if TYPE_CHECKING:
    import torch

__all__ = [
    "PIXEL_FORMATS", "Memory", "device_error", "device_number", "extension", "form", "inexact", "native_geometry",
    "torch_memory", "unconvertible",
]  # fmt: skip

_INEXACT = frozenset("mpeg1video mpeg2video mpeg4".split())
"""Their inverse transform is not defined to the bit. NVDEC's differs from FFmpeg's: by up to 7 per channel (measured),
where the contract allows 3."""
PIXEL_FORMATS = {
    f"yuv{full}{chroma}p{depth}": (chroma, int(depth.removesuffix("le") or 8))
    for full in ("", "j")
    for chroma in ("420", "422", "444")
    for depth in ("", "10le", "12le")
}
"""FFmpeg's names of what there is a conversion for: (chroma, bits)."""
_MATRICES = frozenset("unknown bt709 fcc bt470bg smpte170m smpte240m bt2020nc bt2020c".split())
"""FFmpeg's names of the matrix coefficients that the kernel converts by; others are not linear, or not YUV."""


def extension() -> ModuleType:
    """The extension, :mod:`telecine._nvdec`.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        return import_module("telecine._nvdec")
    except ImportError as error:
        raise BackendUnavailable(
            f"the extension telecine._nvdec is missing ({error}); install telecine where a C++ compiler is"
        ) from error


def inexact(codec: str) -> str | None:
    """Why a codec is not decoded on a GPU, if its pictures would be other ones there."""
    if codec not in _INEXACT:
        return None
    return f"the GPU's decoder for {codec} gives other pictures than FFmpeg's, by more than 3 per channel"


def unconvertible(info: VideoInfo, geometry: Geometry) -> str | None:
    """Why the kernel cannot convert a video's pictures, if it cannot."""
    if info.pixel_format not in PIXEL_FORMATS:
        return f"there is no conversion from {info.pixel_format}"
    if info.color_space not in _MATRICES:
        return f"there is no conversion from {info.color_space} colour"
    if PIXEL_FORMATS[info.pixel_format][0] == "422" and geometry.quarter_turns % 2:
        return "turned 4:2:2 video is not converted on the GPU"
    return None


def native_geometry(request: DecodeRequest, nvdec: ModuleType) -> Any:
    """How frames are to look, and the colours of the pictures, as the extension takes it."""
    wanted, info = request.geometry, request.info
    return nvdec.Geometry(
        wanted.width,
        wanted.height,
        wanted.quarter_turns,
        wanted.mirrored,
        matrix=matrix_code(info.color_space),
        full_range=info.color_range == "pc" or info.pixel_format.startswith("yuvj"),
        bicubic=not wanted.resizes,
    )


def form(out: str) -> str:
    """What ``out="auto"`` means here: "torch" or "array"."""
    if out == "auto":
        return "torch" if find_spec("torch") is not None else "array"
    return out


def device_number(device: str) -> int:
    """The number of the GPU that "cuda" or "cuda:N" means."""
    _, colon, number = device.partition(":")
    if colon:
        return int(number)
    if device == "cuda" and find_spec("torch") is not None:
        import torch

        # what torch means by "cuda" is the device that the caller has made current
        return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0
    return 0


_ERRORS: dict[str, type[TelecineError]] = {"unsupported": UnsupportedVideoError, "memory": OverloadedError}


def device_error(subject: str, error: Exception, kind: str = "") -> TelecineError:
    """Convert an error of the extension or of torch: unsupported video, a full device, or no usable one.

    Args:
        subject: begins the message.
        error: what was raised.
        kind: the extension's name for the kind of failure, where the error does not carry it.
    """
    reason, named = error.args[0] if error.args else "", error.args[1] if len(error.args) > 1 else kind
    if type(error).__name__ == "OutOfMemoryError":
        named = "memory"
    first_line = next(iter(str(reason).splitlines()), type(error).__name__)
    return _ERRORS.get(str(named), BackendUnavailable)(f"{subject}: {first_line}")


def torch_memory(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A tensor ``uint8`` to be filled.

    Raises:
        BackendUnavailable: torch knows no such device.
        OverloadedError: the device has no memory left.
    """
    import torch

    try:
        return torch.empty(shape, dtype=torch.uint8, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise device_error(f"no memory for the frames on {device}", error) from error


class Memory:
    """The device memory that the frames are written to, and what becomes of it."""

    def __init__(self, nvdec: ModuleType, device: int, shape: tuple[int, int, int, int], out: str) -> None:
        self._nvdec, self._device, self._shape, self._out = nvdec, device, shape, out
        self.stream = 0
        self._frames: Any
        if out == "torch":
            import torch

            where = torch.device("cuda", device)
            # torch may give memory that was just freed: what writes to it must follow what this stream still does
            self._frames = torch_memory(shape, where)
            self.stream = int(torch.cuda.current_stream(where).cuda_stream)
            self.pointer = int(self._frames.data_ptr())
        else:
            self._frames = nvdec.DeviceArray(device, shape)
            self.pointer = int(self._frames.pointer)

    def finish(self) -> Any:
        """The frames in the form asked for."""
        if self._out == "numpy":
            return self._nvdec.to_host(self._device, self.pointer, self._shape, self.stream)
        if self._out == "array":
            # its users have no stream of ours to wait on
            self._nvdec.synchronize(self._device, self.stream)
        return self._frames
