"""Output buffers: the frames of a request in host or GPU memory, filled from pictures that libraries return."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Decoded, DecodeRequest
from telecine.backends.cuda_output import allocate_tensor
from telecine.notes import Note
from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Geometry

if TYPE_CHECKING:
    import torch

__all__ = ["HostOutput", "PinnedOutput", "TorchOutput", "allocate_frames", "size_notes"]

_MAX_PINNED_BYTES = 1 << 30
"""Pinned memory of one request at most: torch never returns such memory to the system."""


@dataclass(frozen=True)
class _RgbGeometry(Geometry):
    """Geometry for pictures that a library has converted to RGB already.

    The rule scales luma and chroma separately. Scaling RGB instead differs by up to 20 levels at coloured edges; after
    conversion back to the source's chroma subsampling it differs by 4 at most.
    """

    subsampling: str = ""

    def filters(self, planar: bool = False) -> list[tuple[str, str]]:
        if not self.subsampling:
            return super().filters(planar)
        back = [("scale", "flags=area+accurate_rnd+full_chroma_inp"), ("format", f"pix_fmts={self.subsampling}")]
        return [*back, *super().filters(planar)]


def _rgb_converter(request: DecodeRequest) -> Converter:
    found = re.match(r"(?:yuv|yuvj|yuva|nv|p0)?.*?(420|422|444)", request.info.pixel_format)
    is_rgb = request.info.pixel_format.startswith(("gbr", "rgb", "bgr"))
    subsampling = f"yuv{found[1]}p" if found and not is_rgb else ""
    return Converter(_RgbGeometry(**vars(request.geometry), subsampling=subsampling))


def _shape(request: DecodeRequest) -> tuple[int, int, int, int]:
    return len(request.plan.frames), request.geometry.height, request.geometry.width, 3


def allocate_frames(request: DecodeRequest, count: int, planar: bool) -> npt.NDArray[np.uint8]:
    """Return host memory for frames, ``uint8 [count, H, W, 3]``; a view of memory ``[count, 3, H, W]`` if planar."""
    height, width = request.geometry.height, request.geometry.width
    if planar:
        return np.empty((count, 3, height, width), np.uint8).transpose(0, 2, 3, 1)
    return np.empty((count, height, width, 3), np.uint8)


def size_notes(sizes: Collection[tuple[int, int]]) -> tuple[Note, ...]:
    """Return a note for the report if pictures have more than one size, each (height, width)."""
    if len(sizes) < 2:
        return ()
    listed = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
    text = f"the picture size changes in mid-stream ({listed}): all frames are scaled to the first size"
    return (Note("size-changes", text),)


class HostOutput:
    """Frames in host memory, of the order ``[N, 3, H, W]`` if planar. Not thread-safe; see :meth:`share`."""

    def __init__(
        self, request: DecodeRequest, memory: npt.NDArray[np.uint8] | None = None, planar: bool = False
    ) -> None:
        geometry, count = request.geometry, len(request.plan.frames)
        self.data = allocate_frames(request, count, planar) if memory is None else memory
        self.kept = np.zeros(count, np.bool_)
        self._geometry, self._planar = geometry, planar
        self._stored = geometry.stored_height, geometry.stored_width, 3
        self._keeps_shape = not (geometry.resizes or geometry.quarter_turns or geometry.mirrored)
        self._rgb_resizer = _rgb_converter(request)
        self._converter = Converter(geometry, planar=planar)
        self._sizes = [self._converter.sizes]

    def share(self) -> HostOutput:
        """Return a buffer of the same rows for another thread, which may fill other rows at the same time."""
        other = copy.copy(self)
        other._converter = Converter(self._geometry, planar=self._planar)
        self._sizes.append(other._converter.sizes)
        return other

    def is_frame_shape(self, shape: tuple[int, ...]) -> bool:
        """Return True if a picture ``[h, w, 3]`` needs no resizing or turning. Records its size for the notes."""
        self._sizes[0].add((shape[0], shape[1]))
        return self._keeps_shape and shape == self._stored

    def write(self, rows: tuple[int, ...], picture: npt.NDArray[np.uint8], layout: str = "rgb24") -> None:
        """Fill rows from a picture as stored, ``uint8 [h, w, 3]``, of layout "rgb24" or "bgr24"."""
        if self.is_frame_shape(picture.shape) and layout == "rgb24":
            self.data[rows[0]] = picture
        else:
            from av import VideoFrame

            convert = self._rgb_resizer if self._geometry.resizes or picture.shape != self._stored else self._converter
            convert(VideoFrame.from_ndarray(np.ascontiguousarray(picture), layout), self.data[rows[0]])
        self.repeat_first(rows)

    def write_tensor(self, rows: tuple[int, ...], picture: torch.Tensor) -> None:
        """Fill rows from a torch tensor in host memory, ``uint8 [h, w, 3]`` RGB as stored."""
        self.write(rows, picture.numpy())

    def write_frame(self, rows: tuple[int, ...], picture: Any) -> None:
        """Fill rows from a decoded ``av.VideoFrame`` with its own colour tags."""
        self._converter(picture, self.data[rows[0]])
        self.repeat_first(rows)

    def repeat_first(self, rows: tuple[int, ...]) -> None:
        """Copy the first of these rows to the others, and mark all as kept."""
        for other in rows[1:]:
            self.data[other] = self.data[rows[0]]
        self.kept[list(rows)] = True

    def decoded(self, notes: tuple[Note, ...] = ()) -> Decoded:
        """Return the result of the decode."""
        return Decoded(self.data, self.kept, "cpu", notes + size_notes(set().union(*self._sizes)))


class PinnedOutput(HostOutput):
    """Frames in pinned host memory, filled from torch tensors on a GPU. Not thread-safe.

    Into memory that is not pinned, the driver copies in small steps through a buffer of its own.
    """

    def __init__(self, request: DecodeRequest) -> None:
        self._tensor = _pinned_tensor(_shape(request))
        super().__init__(request, self._tensor.numpy())

    def write_tensor(self, rows: tuple[int, ...], picture: torch.Tensor) -> None:
        """Fill rows from a picture as stored, ``uint8 [h, w, 3]`` RGB; valid once its stream has synchronized."""
        shape = tuple(picture.shape)
        if self.is_frame_shape(shape):
            for row in rows:
                self._tensor[row].copy_(picture, non_blocking=True)
            self.kept[list(rows)] = True
        else:
            host = _pinned_tensor(shape)
            host.copy_(picture)
            self.write(rows, host.numpy())


def _pinned_tensor(shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    if math.prod(shape) <= _MAX_PINNED_BYTES:
        try:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # the system pins no more
            pass
    return torch.empty(shape, dtype=torch.uint8)


class TorchOutput:
    """Frames in a torch tensor on a GPU. Not thread-safe.

    Pictures are turned on the GPU. They are resized on the CPU, because torch has no filter that follows the rule of
    :mod:`telecine.pixels.geometry`.
    """

    def __init__(self, request: DecodeRequest, device: str) -> None:
        self._geometry = request.geometry
        self.data = allocate_tensor(_shape(request), device)
        self.kept = np.zeros(len(self.data), np.bool_)
        self._resize = _rgb_converter(request)

    def write_tensor(self, rows: tuple[int, ...], picture: torch.Tensor) -> None:
        """Fill rows from a picture as stored, ``uint8 [h, w, 3]`` RGB on the device."""
        import torch

        geometry = self._geometry
        if geometry.resizes or tuple(picture.shape) != (geometry.stored_height, geometry.stored_width, 3):
            from av import VideoFrame

            host = np.empty((geometry.height, geometry.width, 3), np.uint8)
            self._resize(VideoFrame.from_ndarray(np.ascontiguousarray(picture.cpu().numpy()), "rgb24"), host)
            frame = torch.from_numpy(host)
        else:
            frame = torch.rot90(picture, -geometry.quarter_turns, (0, 1))
            frame = frame.flip(1) if geometry.mirrored else frame
        for row in rows:
            self.data[row].copy_(frame)
        self.kept[list(rows)] = True

    def decoded(self, notes: tuple[Note, ...] = ()) -> Decoded:
        """Return the result of the decode."""
        return Decoded(self.data, self.kept, str(self.data.device), notes)
