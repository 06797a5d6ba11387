"""The pictures of PyNvVideoCodec as its decoder has them, in host or device memory, and the rows that they fill."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Decoded, DecodeRequest
from telecine.backends.cuda_output import Memory, device_error, device_number, extension, form, native_geometry
from telecine.bitstream.h273 import matrix_code, range_code
from telecine.errors import UnsupportedVideoError

__all__ = ["Surface", "SurfaceRows", "as_frame", "surface_of"]

_LAYOUTS = {"NV12": ("420", 8), "P016": ("420", 16), "NV16": ("422", 8), "P216": ("422", 16), "YUV444": ("444", 8),
            "YUV444_16Bit": ("444", 16)}  # fmt: skip
"""By the library's names of formats: chroma, bits of a sample in memory."""
_SHIFTS = {"420": (1, 1), "422": (1, 0), "444": (0, 0)}


@dataclass(frozen=True)
class Surface:
    """Where a picture is: rows of luma, and those of chroma behind them.

    Chroma is interleaved, but in planes of its own where it is 4:4:4.
    """

    address: int
    pitch: int
    """Bytes from row to row."""
    height: int
    width: int
    chroma: str
    """"420", "422" or "444"."""
    bits: int
    """Of a sample in memory: 8 or 16."""
    depth: int
    """Bits that are used; those on top."""

    @property
    def rows(self) -> int:
        """Of luma and chroma together."""
        across, down = _SHIFTS[self.chroma]
        return self.height + (-(-self.height >> down) if across else 2 * self.height)


def surface_of(request: DecodeRequest, frame: Any) -> Surface:
    """Find the picture of a frame of the library.

    Raises:
        UnsupportedVideoError: there is no conversion from it, or it is larger than allowed.
    """
    name = str(frame.format).rpartition(".")[2]
    if name not in _LAYOUTS:
        raise UnsupportedVideoError(f"pynvvideocodec: there is no conversion from its pixel format {name}")
    chroma, bits = _LAYOUTS[name]
    # its shape may have a last axis of 1, and its planes are one below the other
    tall, wide = (int(side) for side in tuple(frame.shape)[:2])
    height, width = _height(tall, chroma), wide
    if abs(width - request.geometry.stored_width) <= 1:  # chroma makes an odd width even
        width = request.geometry.stored_width
    if height * width > request.max_pixels:
        raise UnsupportedVideoError(
            f"pynvvideocodec: the picture grows to {width}x{height}, and {request.max_pixels} pixels are allowed"
        )
    # its strides are in samples or in bytes, as the version has it
    strides = tuple(getattr(frame, "strides", ()))
    pitch = max(wide * (bits // 8), int(strides[0]) if strides else 0)
    depth = bits if bits == 8 else (request.info.bit_depth if request.info.bit_depth in (10, 12) else 16)
    return Surface(int(frame.GetPtrToPlane(0)), pitch, height, width, chroma, bits, depth)


def _height(tall: int, chroma: str) -> int:
    """The height of a picture from that of all its planes, in which half a row may have been rounded away."""
    if chroma == "444":
        return tall // 3
    if chroma == "422":
        return tall // 2
    height = tall * 2 // 3
    return height + (height + -(-height // 2) < tall)


def as_frame(request: DecodeRequest, surface: Surface) -> Any:
    """A picture in host memory as one of PyAV's, planar, as FFmpeg's own decoder would give it."""
    from av import VideoFrame

    planes = _planes(surface)
    if surface.depth != surface.bits:
        planes = [plane >> (surface.bits - surface.depth) for plane in planes]
    # planes of RGB come in the order of FFmpeg's gbrp
    is_rgb = request.info.pixel_format.startswith("gbr") and surface.chroma == "444"
    kind = "gbrp" if is_rgb else f"yuv{surface.chroma}p"
    picture = VideoFrame(surface.width, surface.height, kind + (f"{surface.depth}le" if surface.bits == 16 else ""))
    for target, plane in zip(picture.planes, planes, strict=True):
        view = np.frombuffer(memoryview(target), np.uint8).reshape(-1, target.line_size)
        raw = np.ascontiguousarray(plane).view(np.uint8).reshape(plane.shape[0], -1)
        view[: raw.shape[0], : raw.shape[1]] = raw
    picture.colorspace = matrix_code(request.info.color_space)
    picture.color_range = range_code(request.info.color_range)
    return picture


def _planes(surface: Surface) -> list[npt.NDArray[Any]]:
    """Luma and the two of chroma: views of a picture in host memory."""
    memory = (ctypes.c_uint8 * (surface.rows * surface.pitch)).from_address(surface.address)
    kind = np.uint8 if surface.bits == 8 else np.uint16
    samples: npt.NDArray[Any] = np.ctypeslib.as_array(memory).view(kind).reshape(surface.rows, -1)
    height, width = surface.height, surface.width
    if surface.chroma == "444":
        return [samples[plane * height : (plane + 1) * height, :width] for plane in range(3)]
    chroma = samples[height:, : 2 * -(-width // 2)]
    return [samples[:height, :width], chroma[:, 0::2], chroma[:, 1::2]]


class SurfaceRows:
    """Rows on a GPU, filled from pictures there by the kernel of the NVDEC engine. Not thread-safe: one per decode.

    Args:
        request: says how many rows, and how pictures become frames.

    Raises:
        BackendUnavailable: the extension is missing, or there is no such device.
    """

    def __init__(self, request: DecodeRequest) -> None:
        nvdec = extension()
        geometry, count = request.geometry, len(request.plan.frames)
        self.device = device_number(request.device)
        self.kept = np.zeros(count, np.bool_)
        self._nvdec = nvdec
        try:
            self._memory = Memory(nvdec, self.device, (count, geometry.height, geometry.width, 3), form("auto"))
            output = nvdec.Output(self._memory.pointer, count, self._memory.stream)
            self._converter = nvdec.SurfaceConverter(self.device, native_geometry(request, nvdec), output)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise device_error(f"device is {request.device!r}, but it cannot be used", error) from error

    def put(self, rows: tuple[int, ...], surface: Surface) -> None:
        """Begin to fill rows from a picture. It must not change before :meth:`flush`."""
        native = self._nvdec.Surface(
            surface.address, surface.pitch, surface.height, surface.width, surface.height, surface.depth, surface.chroma
        )
        try:
            self._converter.put(native, np.array(rows, np.int64))
        except self._nvdec.NvdecError as error:
            raise device_error("pynvvideocodec", error) from error
        self.kept[list(rows)] = True

    def flush(self) -> None:
        """Wait until all that was put is written."""
        try:
            self._converter.finish()
        except self._nvdec.NvdecError as error:
            raise device_error("pynvvideocodec", error) from error

    def decoded(self, notes: tuple[str, ...] = ()) -> Decoded:
        """The result."""
        return Decoded(self._memory.finish(), self.kept, f"cuda:{self.device}", notes)
