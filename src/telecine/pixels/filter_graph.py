"""FFmpeg filter graph that converts decoded pictures by the rule of :mod:`telecine.pixels.geometry`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.pixels.geometry import Geometry

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["Converter"]

_PLANES = (1, 2, 0)
"""Channel of RGB in each plane of FFmpeg's gbrp."""


class Converter:
    """Converts pictures into rows of the output array. Not thread-safe: one per decode.

    Args:
        geometry: geometry of the request.
        threads: threads that FFmpeg uses to convert one picture.
        planar: True if the rows are views of three planes; resized pictures are then copied plane by plane.
    """

    def __init__(self, geometry: Geometry, threads: int = 1, planar: bool = False) -> None:
        self._geometry = geometry
        self._planar = planar and geometry.resizes
        self._threads = threads
        self._graph: Any = None
        self._configured_for: tuple[Any, ...] = ()
        self.sizes: set[tuple[int, int]] = set()
        """(height, width) of the pictures converted so far."""

    def __call__(self, picture: VideoFrame, row: npt.NDArray[np.uint8]) -> None:
        """Convert ``picture`` into ``row``, ``uint8 [H, W, 3]``. Raises FFmpegError for unknown pixel formats."""
        # a filter graph accepts one picture format; a stream may change it at any key frame
        picture_format = (picture.format.name, picture.width, picture.height, picture.colorspace, picture.color_range)
        if picture_format != self._configured_for:
            self._graph = self._build(picture)
            self._configured_for = picture_format
            self.sizes.add((picture.height, picture.width))
        self._graph.push(picture)
        converted = self._graph.pull()
        if not self._planar:
            row[:] = converted.to_ndarray()
            return
        for plane, channel in zip(converted.planes, _PLANES, strict=True):
            lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
            row[..., channel] = lines[: row.shape[0], : row.shape[1]]

    def _build(self, picture: VideoFrame) -> Any:
        from av.filter import Graph

        graph = Graph()
        graph.threads = self._threads
        # the time base has no effect, but a buffer source requires one
        nodes = [
            graph.add_buffer(
                width=picture.width, height=picture.height, format=picture.format, time_base=Fraction(1, 1000)
            )
        ]
        for name, arguments in self._geometry.filters(self._planar):
            nodes.append(graph.add(name, arguments or None))
        nodes.append(graph.add("buffersink"))
        graph.link_nodes(*nodes)
        graph.configure()
        return graph
