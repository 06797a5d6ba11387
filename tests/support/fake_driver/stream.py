"""Writer of the bitstream that the fake driver decodes, and the pictures in it; see fake_cuvid.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from telecine.pixels.geometry import Geometry

INTRA, REFERENCE, FIELD, SECOND, BAD, IGNORED = 1, 2, 4, 8, 16, 32


def _sevens(*values: tuple[int, int]) -> bytes:
    """Return (value, bytes) pairs with 7 bits in each byte."""
    return bytes(0x80 | value >> 7 * (count - 1 - i) & 127 for value, count in values for i in range(count))


@dataclass(frozen=True)
class Shape:
    """The format in the sequence header."""

    width: int = 64
    height: int = 48
    shown_width: int | None = None
    shown_height: int | None = None
    chroma: int = 1
    depth: int = 8
    surfaces: int = 5

    @property
    def shown(self) -> tuple[int, int]:
        """(width, height)."""
        return self.shown_width or self.width, self.shown_height or self.height

    def sps(self) -> bytes:
        sizes = _sevens(*((side, 2) for side in (self.width, self.height, *self.shown)))
        return b"\x67" + sizes + _sevens((self.chroma, 1), (self.depth, 1), (self.surfaces, 1))

    def extradata(self, length_size: int = 4) -> bytes:
        """Return avcC."""
        sps, pps = self.sps(), b"\x68\x80"
        sets = b"\xe1" + len(sps).to_bytes(2, "big") + sps + b"\x01" + len(pps).to_bytes(2, "big") + pps
        return bytes([1, 100, 0, 40, 0xFC | length_size - 1]) + sets


@dataclass(frozen=True)
class Coded:
    """One coded picture."""

    number: int
    order: int
    kind: int = 0
    references: Sequence[int] = field(default_factory=tuple)
    starts: bool = False

    def nal(self) -> bytes:
        body = _sevens((self.kind, 1), (self.number, 2), (self.order, 2), (len(self.references), 1))
        return (b"\x65" if self.starts else b"\x41") + body + _sevens(*((number, 2) for number in self.references))

    def packet(self, length_size: int = 4) -> bytes:
        nal = self.nal()
        return len(nal).to_bytes(length_size, "big") + nal

    def but(self, **changes: object) -> Coded:
        return replace(self, **changes)  # type: ignore[arg-type]


def gop(first: int = 0, count: int = 12) -> list[Coded]:
    """Return ``count`` pictures in decode order: I P B P B ...; ``order`` is the position in display order."""
    pictures = [Coded(first, first, INTRA | REFERENCE, (), True)]
    previous, at = first, first + 1
    while at < first + count:
        if at + 1 < first + count:
            pictures.append(Coded(at + 1, at + 1, REFERENCE, (previous,)))
            pictures.append(Coded(at, at, 0, (previous, at + 1)))
            previous, at = at + 1, at + 2
        else:
            pictures.append(Coded(at, at, REFERENCE, (previous,)))
            at += 1
    return pictures


def planes(number: int, shape: Shape) -> list[npt.NDArray[np.uint16]]:
    """Return the planes of the display area of a decoded picture."""
    width, height = shape.shown
    sub = 0 if shape.chroma == 3 else 1
    result = []
    for plane in range(3):
        wide, tall = (width, height) if plane == 0 else (-(-width >> sub), -(-height >> sub))
        y, x = np.mgrid[:tall, :wide]
        if plane == 0:
            value = 40 + (number * 29 + x * 3 + y * 5) % 160
        else:
            value = 98 + (number * (13 if plane == 1 else 17) + x * 2 + y * 3) % 60
        result.append((value << (shape.depth - 8)).astype(np.uint16))
    return result


def expected(
    number: int, shape: Shape, geometry: Geometry, space: str = "unknown", full: bool = False
) -> npt.NDArray[np.uint8]:
    """Return FFmpeg's conversion of a picture: ``uint8 [H, W, 3]``."""
    import av
    from av.filter import Graph

    name = {1: "yuv420p", 2: "yuv422p", 3: "yuv444p"}[shape.chroma] + (f"{shape.depth}le" if shape.depth > 8 else "")
    width, height = shape.shown
    frame = av.VideoFrame(width, height, name)
    for target, source in zip(frame.planes, planes(number, shape), strict=True):
        packed = source.astype(np.uint8 if shape.depth == 8 else np.uint16)
        rows = np.zeros((source.shape[0], target.line_size), np.uint8)
        rows[:, : packed.shape[1] * packed.itemsize] = packed.view(np.uint8).reshape(source.shape[0], -1)
        target.update(rows.tobytes() + bytes(target.buffer_size - rows.size))
    frame.pts, frame.time_base = 0, Fraction(1, 30)
    graph = Graph()
    nodes = [graph.add_buffer(width=width, height=height, format=frame.format, time_base=frame.time_base)]
    nodes.append(graph.add("setparams", f"colorspace={space}:range={'pc' if full else 'tv'}"))
    nodes += [graph.add(name, arguments or None) for name, arguments in geometry.filters()]
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes)
    graph.configure()
    graph.push(frame)
    return graph.pull().to_ndarray()  # type: ignore[union-attr]
