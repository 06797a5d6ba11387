"""Pictures of PyNvVideoCodec as its decoder stores them, in host or GPU memory, and the output rows that they fill."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Decoded, DecodeRequest
from telecine.backends.cuda_output import (
    OutputArray,
    check_picture_size,
    convert_errors,
    load_extension,
    make_native_geometry,
    parse_device_index,
    resolve_array_kind,
)
from telecine.backends.remux.output_buffers import HostOutput
from telecine.bitstream.h273 import matrix_code, range_code
from telecine.errors import UnsupportedVideoError
from telecine.index.video_info import VideoInfo
from telecine.notes import Note

__all__ = ["GpuSurfaceOutput", "HostSurfaceOutput", "Surface", "locate_surface", "make_video_frame"]

_FORMATS = {"NV12": ("420", 8), "P016": ("420", 16), "NV16": ("422", 8), "P216": ("422", 16), "YUV444": ("444", 8),
            "YUV444_16Bit": ("444", 16)}  # fmt: skip
"""The library's pixel formats: (chroma format, bits of a sample in memory)."""
_CHROMA_SHIFTS = {"420": (1, 1), "422": (1, 0), "444": (0, 0)}


@dataclass(frozen=True)
class Surface:
    """The memory of a picture: rows of luma, then rows of chroma.

    Chroma is interleaved in 4:2:0 and 4:2:2, and in two planes in 4:4:4.
    """

    address: int
    pitch: int
    """Bytes from row to row."""
    height: int
    width: int
    chroma: str
    """Chroma format: "420", "422" or "444"."""
    bits: int
    """Bits of a sample in memory: 8 or 16."""
    depth: int
    """Bits per component; the most significant ones of a sample."""

    @property
    def rows(self) -> int:
        """Rows of luma and chroma together."""
        across, down = _CHROMA_SHIFTS[self.chroma]
        return self.height + (-(-self.height >> down) if across else 2 * self.height)


def locate_surface(request: DecodeRequest, frame: Any, frame_width: int | None = None) -> Surface:
    """Return the memory of a frame of the library, which must not be larger than ``request.max_pixels``.

    Args:
        request: the request that is decoded.
        frame: the library's object.
        frame_width: width of the picture, if it is known; otherwise that of the first picture is tried.
    """
    name = str(frame.format).rpartition(".")[2]
    if name not in _FORMATS:
        raise UnsupportedVideoError(f"pynvvideocodec: there is no conversion from its pixel format {name}")
    chroma, bits = _FORMATS[name]
    # the shape is that of all planes below each other, and may have a last axis of 1
    rows, columns = (int(side) for side in tuple(frame.shape)[:2])
    height, width = _picture_height(rows, chroma), columns
    known = frame_width or request.geometry.stored_width
    if abs(width - known) <= 1:  # chroma makes an odd width even
        width = known
    check_picture_size("pynvvideocodec", width, height, request.max_pixels)
    # strides are in samples or in bytes, depending on the library's version
    strides = tuple(getattr(frame, "strides", ()))
    pitch = max(columns * (bits // 8), int(strides[0]) if strides else 0)
    depth = bits if bits == 8 else (request.info.bit_depth if request.info.bit_depth in (10, 12) else 16)
    return Surface(int(frame.GetPtrToPlane(0)), pitch, height, width, chroma, bits, depth)


def _picture_height(rows: int, chroma: str) -> int:
    """Return the height of a picture from the rows of all its planes, of which half a chroma row may be missing."""
    if chroma == "444":
        return rows // 3
    if chroma == "422":
        return rows // 2
    height = rows * 2 // 3
    return height + (height + -(-height // 2) < rows)


def make_video_frame(info: VideoInfo, surface: Surface) -> Any:
    """Copy a picture in host memory to a planar ``av.VideoFrame``, equal to the output of FFmpeg's own decoder."""
    from av import VideoFrame

    planes = _planes(surface)
    if surface.depth != surface.bits:
        planes = [plane >> (surface.bits - surface.depth) for plane in planes]
    # planes of RGB come in the order of FFmpeg's gbrp
    is_rgb = info.pixel_format.startswith("gbr") and surface.chroma == "444"
    kind = "gbrp" if is_rgb else f"yuv{surface.chroma}p"
    picture = VideoFrame(surface.width, surface.height, kind + (f"{surface.depth}le" if surface.bits == 16 else ""))
    for target, plane in zip(picture.planes, planes, strict=True):
        view = np.frombuffer(memoryview(target), np.uint8).reshape(-1, target.line_size)
        raw = np.ascontiguousarray(plane).view(np.uint8).reshape(plane.shape[0], -1)
        view[: raw.shape[0], : raw.shape[1]] = raw
    picture.colorspace = matrix_code(info.color_space)
    picture.color_range = range_code(info.color_range)
    return picture


def _planes(surface: Surface) -> list[npt.NDArray[Any]]:
    """Return views of luma and both chroma components of a picture in host memory."""
    memory = (ctypes.c_uint8 * (surface.rows * surface.pitch)).from_address(surface.address)
    kind = np.uint8 if surface.bits == 8 else np.uint16
    samples: npt.NDArray[Any] = np.ctypeslib.as_array(memory).view(kind).reshape(surface.rows, -1)
    height, width = surface.height, surface.width
    if surface.chroma == "444":
        return [samples[plane * height : (plane + 1) * height, :width] for plane in range(3)]
    chroma = samples[height:, : 2 * -(-width // 2)]
    return [samples[:height, :width], chroma[:, 0::2], chroma[:, 1::2]]


class HostSurfaceOutput(HostOutput):
    """Frames in host memory, converted by FFmpeg from pictures in host memory."""

    gpu = 0
    on_gpu = False

    def __init__(self, request: DecodeRequest) -> None:
        super().__init__(request)
        self._info = request.info

    def write_surface(self, rows: tuple[int, ...], surface: Surface) -> None:
        """Fill rows from a picture."""
        self.write_frame(rows, make_video_frame(self._info, surface))

    def flush(self) -> None:
        """Do nothing: rows are filled when :meth:`write_surface` returns."""


class GpuSurfaceOutput:
    """Frames on a GPU, converted by the kernel of the NVDEC engine from pictures there. Not thread-safe."""

    on_gpu = True

    def __init__(self, request: DecodeRequest) -> None:
        nvdec = load_extension()
        geometry, count = request.geometry, len(request.plan.frames)
        self.gpu = parse_device_index(request.device)
        self.kept = np.zeros(count, np.bool_)
        self._nvdec = nvdec
        with convert_errors(f"device is {request.device!r}, but it cannot be used"):
            self._array = OutputArray(
                nvdec, self.gpu, (count, geometry.height, geometry.width, 3), resolve_array_kind("auto")
            )
            output = nvdec.Output(self._array.pointer, count, self._array.stream)
            self._converter = nvdec.SurfaceConverter(self.gpu, make_native_geometry(request, nvdec), output)

    def write_surface(self, rows: tuple[int, ...], surface: Surface) -> None:
        """Start filling rows from a picture. The picture must not change before :meth:`flush`."""
        native = self._nvdec.Surface(
            surface.address, surface.pitch, surface.height, surface.width, surface.height, surface.depth, surface.chroma
        )
        with convert_errors("pynvvideocodec"):
            self._converter.put(native, np.array(rows, np.int64))
        self.kept[list(rows)] = True

    def flush(self) -> None:
        """Wait until all rows of :meth:`write_surface` are written."""
        with convert_errors("pynvvideocodec"):
            self._converter.finish()

    def decoded(self, notes: tuple[Note, ...] = ()) -> Decoded:
        """Return the rows as the backend's result."""
        return Decoded(self._array.finish(), self.kept, f"cuda:{self.gpu}", notes)
