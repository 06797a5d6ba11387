"""Conversion of pictures decoded by another library with the kernel of the NVDEC engine, with the fake driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.fake_driver.double import (
    CALLER_STREAM,
    Double,
    check_frames,
    double_fixture,  # noqa: F401, fixtures
    engine_fixture,  # noqa: F401, fixtures
)
from support.fake_driver.stream import Shape, planes
from telecine.pixels.geometry import Geometry


class Memory:
    """A picture in the layout of a decoder, in host memory as the fake driver expects; padding is 0xA5."""

    def __init__(self, number: int, shape: Shape, pitch: int = 0, rows: int = 0) -> None:
        self.shape = shape
        width, height = shape.shown
        self.rows = rows or height
        kind = np.uint8 if shape.depth == 8 else np.uint16
        luma, *chroma = [(plane << (0 if shape.depth == 8 else 16 - shape.depth)) for plane in planes(number, shape)]
        if shape.chroma == 3:
            parts = [luma, *chroma]
        else:
            parts = [luma, np.stack(chroma, axis=-1).reshape(chroma[0].shape[0], -1)]
        self.pitch = pitch or (width if shape.chroma == 3 else width + width % 2) * kind().itemsize
        self.data = np.full((self.rows * len(parts), self.pitch), 0xA5, np.uint8).view(kind)
        for at, part in enumerate(parts):
            self.data[at * self.rows : at * self.rows + part.shape[0], : part.shape[1]] = part

    def surface(self, nvdec: Any, **other: Any) -> Any:
        width, height = self.shape.shown
        facts = {
            "address": self.data.ctypes.data, "pitch": self.pitch, "rows": self.rows, "width": width, "height": height,
            "depth": self.shape.depth, "chroma": "444" if self.shape.chroma == 3 else "420",
        }  # fmt: skip
        return nvdec.Surface(**{**facts, **other})


class Target:
    """An output of a few rows, and the converter that fills it."""

    def __init__(self, nvdec: Any, geometry: Geometry, count: int = 3) -> None:
        self.frames = nvdec.DeviceArray(0, (count, geometry.height, geometry.width, 3))
        self.frames.fill(np.zeros(self.frames.shape, np.uint8))
        turned = nvdec.Geometry(
            geometry.width, geometry.height, geometry.quarter_turns, geometry.mirrored, bicubic=not geometry.resizes
        )
        output = nvdec.Output(self.frames.pointer, count, CALLER_STREAM)
        self.converter = nvdec.SurfaceConverter(0, turned, output)

    def put(self, surface: Any, *rows: int) -> None:
        self.converter.put(surface, np.array(rows, np.int64))

    def finish(self) -> np.ndarray:
        self.converter.finish()
        result: np.ndarray = self.frames.to_host()
        return result


def plain(shape: Shape) -> Geometry:
    width, height = shape.shown
    return Geometry(height, width, 0, False, height, width)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape(64, 48), None),
        (Shape(63, 47), None),
        (Shape(64, 48, depth=10), None),
        (Shape(61, 47, depth=12), None),
        (Shape(64, 48, chroma=3), None),
        (Shape(63, 47, chroma=3, depth=10), None),
        (Shape(192, 108), (36, 64)),
        (Shape(64, 48), (60, 101)),
        (Shape(192, 112, depth=10), (30, 50)),
        (Shape(192, 112, chroma=3), (30, 50)),
    ],
)
@pytest.mark.parametrize("orientation", [(0, False), (1, False), (2, True), (3, True)])
def test_kernel_output_matches_the_ffmpeg_filter_chain(
    double: Double, shape: Shape, size: tuple[int, int] | None, orientation: tuple[int, bool]
) -> None:
    width, height = shape.shown
    turned = (height, width) if orientation[0] % 2 == 0 else (width, height)
    geometry = Geometry(height, width, *orientation, *(size or turned))
    target = Target(double.nvdec, geometry)
    pictures = [Memory(number, shape) for number in (3, 8)]
    target.put(pictures[0].surface(double.nvdec), 1)
    target.put(pictures[1].surface(double.nvdec), 2, 0)
    frames = target.finish()
    check_frames(frames, [8, 3, 8], shape, geometry)


def test_pitch_and_plane_height_may_exceed_the_picture(double: Double) -> None:
    for shape in (Shape(62, 46), Shape(62, 46, depth=10), Shape(62, 46, chroma=3)):
        memory = Memory(5, shape, pitch=256, rows=64)
        target = Target(double.nvdec, plain(shape), count=1)
        target.put(memory.surface(double.nvdec), 0)
        check_frames(target.finish(), [5], shape)


def test_pictures_of_two_sizes_fill_one_output(double: Double) -> None:
    small, large = Shape(64, 48), Shape(192, 112)
    geometry = Geometry(48, 64, 0, False, 48, 64)
    target = Target(double.nvdec, geometry, count=2)
    memory = [Memory(1, small), Memory(2, large)]
    for row, one in enumerate(memory):
        target.put(one.surface(double.nvdec), row)
    frames = target.finish()
    check_frames(frames[:1], [1], small, geometry)
    check_frames(frames[1:], [2], large, geometry)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"address": 0}, "address"),
        ({"address": 0x1001, "depth": 10, "pitch": 128}, "address"),
        ({"pitch": 0}, "pitch"),
        ({"pitch": -64}, "pitch"),
        ({"pitch": 63}, "pitch"),
        ({"width": 63, "pitch": 63}, "pitch"),
        ({"depth": 10}, "pitch"),
        ({"depth": 10, "pitch": 129}, "pitch"),
        ({"rows": 47}, "rows"),
        ({"rows": 1 << 30}, "rows"),
        ({"width": 0}, "width"),
        ({"height": -1}, "width and a height"),
        ({"width": 1 << 20, "pitch": 1 << 20}, "width and a height"),
        ({"depth": 9}, "depth"),
        ({"depth": 0}, "depth"),
        ({"chroma": "411"}, "chroma must be"),
        ({"chroma": "400"}, "chroma"),
    ],
)
def test_impossible_surfaces_raise_value_error(double: Double, wrong: dict[str, Any], message: str) -> None:
    memory = Memory(0, Shape(64, 48))
    with pytest.raises(ValueError, match=message):
        memory.surface(double.nvdec, **wrong)


def test_impossible_outputs_and_rows_raise_value_error(double: Double) -> None:
    nvdec = double.nvdec
    memory = Memory(0, Shape(64, 48))
    target = Target(nvdec, plain(memory.shape), count=2)
    for rows in ([], [2], [0, -1]):
        with pytest.raises(ValueError, match="row"):
            target.put(memory.surface(nvdec), *rows)
    for output in (nvdec.Output(0, 1), nvdec.Output(target.frames.pointer, 0)):
        with pytest.raises(ValueError, match="output must have"):
            nvdec.SurfaceConverter(0, nvdec.Geometry(64, 48), output)
    for sides in ((0, 48), (64, -1), (1 << 17, 48)):
        with pytest.raises(ValueError, match="width and a height"):
            nvdec.SurfaceConverter(0, nvdec.Geometry(*sides), nvdec.Output(target.frames.pointer, 1))
    with pytest.raises(nvdec.NvdecError, match="no GPU 5"):
        nvdec.SurfaceConverter(5, nvdec.Geometry(64, 48), nvdec.Output(target.frames.pointer, 1))
    assert not target.finish().any()


def test_rotating_422_by_90_degrees_raises_value_error(double: Double) -> None:
    memory = Memory(0, Shape(64, 96))
    for turns, mirrored in ((1, False), (3, True)):
        target = Target(double.nvdec, Geometry(48, 64, turns, mirrored, 64, 48))
        with pytest.raises(ValueError, match="4:2:2"):
            target.put(memory.surface(double.nvdec, rows=48, height=48, chroma="422"), 0)


def test_conversion_works_again_after_a_failed_allocation(double: Double) -> None:
    memory = Memory(0, Shape(64, 48))
    target = Target(double.nvdec, Geometry(48, 64, 0, False, 20, 30))
    double.set(memory_failures=1)
    with pytest.raises(double.nvdec.NvdecError, match="allocating GPU memory"):
        target.put(memory.surface(double.nvdec), 0)
    target.put(memory.surface(double.nvdec), 0)
    check_frames(target.finish()[:1], [0], memory.shape, Geometry(48, 64, 0, False, 20, 30))


def test_filter_tables_are_freed_only_after_the_conversions_that_use_them(double: Double) -> None:
    """With more sizes than the cache keeps."""
    memory = Memory(0, Shape(64, 48))
    targets = [Target(double.nvdec, Geometry(48, 64, 0, False, 20 + i, 30), count=1) for i in range(70)]
    before = double.count("memory")
    for target in targets:
        target.put(memory.surface(double.nvdec), 0)
    assert double.count("memory") == before + 70
    for target in targets:
        target.finish()
    assert double.count("memory") == before + 64
