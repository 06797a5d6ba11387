"""Frames on a GPU: the conversion kernel's capabilities and arguments, and the arrays that frames are written to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import DecodeRequest, first_line
from telecine.bitstream.h273 import matrix_code
from telecine.errors import BackendUnavailable, LimitError, OverloadedError, TelecineError, UnsupportedVideoError
from telecine.index.video_info import VideoInfo
from telecine.pixels.geometry import Geometry

if TYPE_CHECKING:
    import torch

__all__ = [
    "NVDEC_CODECS", "PIXEL_FORMATS", "OutputArray", "allocate_tensor", "check_gpu", "check_picture_size",
    "codec_refusal", "conversion_refusal", "convert_errors", "device_error", "hardware_refusal", "load_extension",
    "make_native_geometry", "parse_device_index", "resolve_array_kind", "upload",
]  # fmt: skip

NVDEC_CODECS = frozenset("h264 hevc vp8 vp9".split())
"""Codecs that the extension decodes."""
_INEXACT_CODECS = frozenset("mpeg1video mpeg2video mpeg4".split())
"""Codecs whose inverse transform is not defined to the bit. NVDEC differs from FFmpeg there by up to 7 per channel
(measured); the contract allows 3."""
PIXEL_FORMATS = {
    f"yuv{full}{chroma}p{depth}": (chroma, int(depth.removesuffix("le") or 8))
    for full in ("", "j")
    for chroma in ("420", "422", "444")
    for depth in ("", "10le", "12le")
}
"""The pixel formats that the kernel converts, by FFmpeg's names: (chroma format, bits per component)."""
_MATRICES = frozenset("unknown bt709 fcc bt470bg smpte170m smpte240m bt2020nc bt2020c".split())
"""FFmpeg's names of the matrix coefficients that the kernel converts by; others are not linear, or not YUV."""
_log = logging.getLogger(__name__)
_ERRORS: dict[str, type[TelecineError]] = {
    "unsupported": UnsupportedVideoError,
    "limit": LimitError,
    "memory": OverloadedError,
    "threads": OverloadedError,
}
"""By the extension's kinds of failure; other kinds mean that the device cannot be used."""


def load_extension() -> ModuleType:
    """Import the extension :mod:`telecine._nvdec`."""
    try:
        return import_module("telecine._nvdec")
    except ImportError as error:
        raise BackendUnavailable(
            f"the extension telecine._nvdec is missing ({error}); install telecine on a machine with a C++ compiler"
        ) from error


def codec_refusal(codec: str, crops_left: bool) -> str | None:
    """Return the reason not to decode a video on a GPU although the hardware can; None if there is none."""
    if crops_left:
        return "pictures that are cropped on the left come out wrong"
    if codec not in _INEXACT_CODECS:
        return None
    return f"the GPU's decoder for {codec} gives other pictures than FFmpeg's, by more than 3 per channel"


def conversion_refusal(info: VideoInfo, geometry: Geometry) -> str | None:
    """Return the reason why the kernel cannot convert a video's pictures; None if it can."""
    if info.pixel_format not in PIXEL_FORMATS:
        return f"there is no conversion from {info.pixel_format}"
    if info.color_space not in _MATRICES:
        return f"there is no conversion from {info.color_space} colour"
    if PIXEL_FORMATS[info.pixel_format][0] == "422" and geometry.quarter_turns % 2:
        return "rotated 4:2:2 video is not converted on the GPU"
    return None


def hardware_refusal(request: DecodeRequest) -> str | None:
    """Return the reason why the GPU cannot decode a video; None if it can, or if it cannot be asked.

    For backends whose libraries hang, or return neither frames nor an error, if the GPU cannot decode a video.
    """
    # such a library's own query of the capabilities may create a CUDA context beside torch's
    info, geometry = request.info, request.geometry
    # planes of RGB are stored as 4:4:4
    stored = PIXEL_FORMATS.get(info.pixel_format.replace("gbrp", "yuv444p"))
    if stored is None or request.index.codec == "av1":  # the extension does not know AV1
        return None
    try:
        nvdec = load_extension()
    except BackendUnavailable:
        return None
    gpu = 0 if request.device == "cpu" else parse_device_index(request.device)
    try:
        size = geometry.stored_width, geometry.stored_height
        reason: str | None = nvdec.refusal(gpu, request.index.codec, *stored, *size)
    except nvdec.NvdecError as error:
        _log.debug("the GPU was not asked what it decodes: %s", error.args[0])
        return None
    return reason


def check_picture_size(subject: str, width: int, height: int, max_pixels: int) -> None:
    """Raise LimitError if a picture, whose size may change in mid-stream, has too many pixels."""
    if width * height > max_pixels:
        raise LimitError(f"{subject}: the picture grows to {width}x{height}; limits.max_pixels is {max_pixels}")


def make_native_geometry(request: DecodeRequest, nvdec: ModuleType) -> Any:
    """Return the extension's ``Geometry``: size and orientation of the frames, colours of the pictures."""
    geometry, info = request.geometry, request.info
    return nvdec.Geometry(
        geometry.width,
        geometry.height,
        geometry.quarter_turns,
        geometry.mirrored,
        matrix=matrix_code(info.color_space),
        full_range=info.color_range == "pc" or info.pixel_format.startswith("yuvj"),
        bicubic=not geometry.resizes,
    )


def resolve_array_kind(out: str) -> str:
    """Replace "auto" by "torch" if torch is installed, else by "array"."""
    if out == "auto":
        return "torch" if find_spec("torch") is not None else "array"
    return out


def parse_device_index(device: str) -> int:
    """Return the index of the GPU that "cuda" or "cuda:N" names; "cuda" alone is torch's current device."""
    _, colon, number = device.partition(":")
    if colon:
        return int(number)
    if device == "cuda" and find_spec("torch") is not None:
        import torch

        return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0
    return 0


def check_gpu(device: str, out: str) -> None:
    """Raise BackendUnavailable if torch, or else the driver, finds no such GPU ("cuda" or "cuda:N")."""
    index, count, finder = parse_device_index(device), 0, "PyTorch"
    if resolve_array_kind(out) == "torch":
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    else:
        nvdec, finder = load_extension(), "the NVIDIA driver"
        with convert_errors(f"device is {device!r}, but it cannot be used"):
            count = nvdec.device_count()
    if index >= count:
        raise BackendUnavailable(
            f'device is {device!r}, but there is no GPU {index}: {finder} finds {count}; choose another or device="cpu"'
        )


def device_error(subject: str, error: Exception, kind: str = "") -> TelecineError:
    """Convert an error of the extension or of torch: unsupported video, a limit, a full machine, or no usable GPU."""
    reason, named = error.args[0] if error.args else "", error.args[1] if len(error.args) > 1 else kind
    if type(error).__name__ == "OutOfMemoryError":
        named = "memory"
    return _ERRORS.get(str(named), BackendUnavailable)(f"{subject}: {first_line(error, reason)}")


@contextmanager
def convert_errors(subject: str) -> Iterator[None]:
    """Convert the errors of the extension and of torch that the block raises, as :func:`device_error` does."""
    try:
        yield
    except TelecineError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise device_error(subject, error) from error


def upload(frames: npt.NDArray[np.uint8], device: str, out: str) -> tuple[Any, str]:
    """Copy ``uint8 [N, H, W, 3]`` from host memory to a GPU. Return the array, and the device's name with its index."""
    index = parse_device_index(device)
    with convert_errors(f"device is {device!r}, but it cannot be used"):
        if resolve_array_kind(out) == "torch":
            import torch

            return torch.from_numpy(frames).to(torch.device("cuda", index)), f"cuda:{index}"
        array = load_extension().DeviceArray(index, frames.shape)
        array.fill(frames)
        return array, f"cuda:{index}"


def allocate_tensor(shape: tuple[int, ...], device: torch.device | str) -> torch.Tensor:
    """Return an uninitialised ``uint8`` tensor."""
    import torch

    with convert_errors(f"no memory for the frames on {device}"):
        return torch.empty(shape, dtype=torch.uint8, device=device)


class OutputArray:
    """The ``uint8 [N, H, W, 3]`` array in GPU memory that the kernel writes frames to."""

    def __init__(self, nvdec: ModuleType, device: int, shape: tuple[int, int, int, int], kind: str) -> None:
        self._nvdec, self._device, self._shape, self._kind = nvdec, device, shape, kind
        self.stream = 0
        self._frames: Any
        if kind == "torch":
            import torch

            gpu = torch.device("cuda", device)
            # torch may return memory that was just freed: writes to it must follow the pending work of this stream
            self._frames = allocate_tensor(shape, gpu)
            self.stream = int(torch.cuda.current_stream(gpu).cuda_stream)
            self.pointer = int(self._frames.data_ptr())
        else:
            self._frames = nvdec.DeviceArray(device, shape)
            self.pointer = int(self._frames.pointer)

    def finish(self) -> Any:
        """Return the frames as the kind of array asked for: "torch", "array", or "numpy" in host memory."""
        if self._kind == "numpy":
            return self._nvdec.to_host(self._device, self.pointer, self._shape, self.stream)
        if self._kind == "array":
            # its users do not know our stream, so it must be complete
            self._nvdec.synchronize(self._device, self.stream)
        return self._frames
