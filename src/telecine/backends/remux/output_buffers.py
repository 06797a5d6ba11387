"""Where whole-file backends put the pictures that their libraries give: into the rows of the output, by the rule."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Decoded, DecodeRequest
from telecine.backends.cuda_output import allocate_tensor
from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Geometry

if TYPE_CHECKING:
    import torch

__all__ = ["HostRows", "PinnedRows", "TorchRows"]


_MOST_PINNED = 1 << 30
"""Bytes that are pinned for one request: torch never gives such memory back to the system."""


@dataclass(frozen=True)
class _FromRgb(Geometry):
    """Resizes a picture that a library has turned into RGB already.

    The rule scales luma and chroma apart. Scaling RGB is another thing, up to 20 levels off at the edges of colours;
    from the source's own subsampling it is 4 at most.
    """

    subsampling: str = ""

    def filters(self, planar: bool = False) -> list[tuple[str, str]]:
        """See :meth:`telecine.pixels.geometry.Geometry.filters`."""
        if not self.subsampling:
            return super().filters(planar)
        back = [("scale", "flags=area+accurate_rnd+full_chroma_inp"), ("format", f"pix_fmts={self.subsampling}")]
        return [*back, *super().filters(planar)]


def _from_rgb(request: DecodeRequest) -> Converter:
    found = re.match(r"(?:yuv|yuvj|yuva|nv|p0)?.*?(420|422|444)", request.info.pixel_format)
    is_rgb = request.info.pixel_format.startswith(("gbr", "rgb", "bgr"))
    subsampling = f"yuv{found[1]}p" if found and not is_rgb else ""
    return Converter(_FromRgb(**vars(request.geometry), subsampling=subsampling))


class HostRows:
    """Rows in host memory. Not thread-safe: one per decode.

    Args:
        request: says how many rows, and how pictures become frames.
        memory: ``uint8 [N, H, W, 3]`` to be filled; memory of its own without it.
    """

    def __init__(self, request: DecodeRequest, memory: npt.NDArray[np.uint8] | None = None) -> None:
        geometry = request.geometry
        self.data = np.empty(_shape(request), np.uint8) if memory is None else memory
        self.kept = np.zeros(len(self.data), np.bool_)
        self._stored = geometry.stored_height, geometry.stored_width, 3
        self._resizes = geometry.resizes
        self._plain = not (geometry.resizes or geometry.quarter_turns or geometry.mirrored)
        self._scale = _from_rgb(request)
        self._convert = Converter(geometry)
        self._sizes: set[tuple[int, int]] = set()

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a picture ``[h, w, 3]`` is a frame as it is, not to be turned or resized. Its size is noted."""
        self._sizes.add((shape[0], shape[1]))
        return self._plain and shape == self._stored

    def put(self, rows: tuple[int, ...], picture: npt.NDArray[np.uint8], layout: str = "rgb24") -> None:
        """Fill rows from a picture as stored, but already in RGB.

        Args:
            rows: that get the same frame.
            picture: ``uint8 [h, w, 3]``.
            layout: the order of its channels: "rgb24" or "bgr24".
        """
        if self.takes(picture.shape) and layout == "rgb24":
            self.data[rows[0]] = picture
        else:
            from av import VideoFrame

            convert = self._scale if self._resizes or picture.shape != self._stored else self._convert
            convert(VideoFrame.from_ndarray(np.ascontiguousarray(picture), layout), self.data[rows[0]])
        self.filled(rows)

    def put_frame(self, rows: tuple[int, ...], picture: Any) -> None:
        """Fill rows from a picture that is a frame of PyAV, as decoded, with its own colour tags."""
        self._convert(picture, self.data[rows[0]])
        self.filled(rows)

    def filled(self, rows: tuple[int, ...]) -> None:
        """Say that the first of these rows was filled; the others get copies."""
        for other in rows[1:]:
            self.data[other] = self.data[rows[0]]
        self.kept[list(rows)] = True

    def decoded(self, notes: tuple[str, ...] = ()) -> Decoded:
        """The result."""
        sizes = self._convert.sizes | self._sizes
        if len(sizes) > 1:
            shown = ", ".join(f"{width}x{height}" for height, width in sorted(sizes))
            notes += (f"the picture size changes in mid-stream ({shown}): all frames are scaled to the first size",)
        return Decoded(self.data, self.kept, "cpu", notes)


class PinnedRows:
    """Rows in host memory that a GPU writes to, from pictures there that are torch tensors.

    It is pinned: into other memory the driver copies piece by piece, through a buffer of its own. Not thread-safe: one
    per decode.

    Args:
        request: as of :class:`HostRows`.
    """

    def __init__(self, request: DecodeRequest) -> None:
        self._tensor = _pinned(_shape(request))
        self._rows = HostRows(request, self._tensor.numpy())
        self.kept = self._rows.kept

    def put(self, rows: tuple[int, ...], picture: torch.Tensor) -> None:
        """Fill rows from a picture as stored, ``uint8 [h, w, 3]`` RGB on a device; complete once its stream is."""
        shape = tuple(picture.shape)
        if self._rows.takes(shape):
            for row in rows:
                self._tensor[row].copy_(picture, non_blocking=True)
            self.kept[list(rows)] = True
        else:
            host = _pinned(shape)
            host.copy_(picture)
            self._rows.put(rows, host.numpy())

    def decoded(self, notes: tuple[str, ...] = ()) -> Decoded:
        """The result."""
        return self._rows.decoded(notes)


def _shape(request: DecodeRequest) -> tuple[int, int, int, int]:
    return len(request.plan.frames), request.geometry.height, request.geometry.width, 3


def _pinned(shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    if math.prod(shape) <= _MOST_PINNED:
        try:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # the system pins no more
            pass
    return torch.empty(shape, dtype=torch.uint8)


class TorchRows:
    """Rows of a torch tensor on a GPU. Not thread-safe: one per decode.

    Turning is done on the GPU. Resizing is not: torch has no filter that follows the rule, so a picture that must be
    resized makes a detour through host memory.

    Args:
        request: as of :class:`HostRows`.
        device: where the rows are.
    """

    def __init__(self, request: DecodeRequest, device: torch.device) -> None:
        self._geometry = request.geometry
        self.data = allocate_tensor(_shape(request), device)
        self.kept = np.zeros(len(self.data), np.bool_)
        self._convert = _from_rgb(request)

    def put(self, rows: tuple[int, ...], picture: torch.Tensor) -> None:
        """Fill rows from a picture as stored, ``uint8 [h, w, 3]`` RGB on the device."""
        import torch

        geometry = self._geometry
        if geometry.resizes or tuple(picture.shape) != (geometry.stored_height, geometry.stored_width, 3):
            from av import VideoFrame

            host = np.empty((geometry.height, geometry.width, 3), np.uint8)
            self._convert(VideoFrame.from_ndarray(np.ascontiguousarray(picture.cpu().numpy()), "rgb24"), host)
            turned = torch.from_numpy(host)
        else:
            turned = torch.rot90(picture, -geometry.quarter_turns, (0, 1))
            turned = turned.flip(1) if geometry.mirrored else turned
        for row in rows:
            self.data[row].copy_(turned)
        self.kept[list(rows)] = True

    def decoded(self, notes: tuple[str, ...] = ()) -> Decoded:
        """The result."""
        return Decoded(self.data, self.kept, str(self.data.device), notes)
