"""The NVDEC extension with the fake driver, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from support.fake_driver import build
from support.fake_driver.stream import REFERENCE, Coded, Shape, expected
from telecine.pixels.geometry import Geometry

CALLER_STREAM = 0x77
_SHAPE = Shape()
HANDLES = ("memory", "pinned", "streams", "events", "decoders", "parsers", "modules")


_FAULTS = (
    "slow_microseconds", "decode_error_at", "create_failures", "create_out_of_memory", "map_failures", "in_progress",
    "parser_failures", "reconfigure_failures", "memory_failures", "pinned_failures", "slow_synchronize_microseconds",
    "slow_status_microseconds", "status_unsupported", "status_failures", "stream_synchronize_failures",
    "event_create_failures", "event_record_failures", "event_synchronize_failures",
)  # fmt: skip


class Double:
    """The NVDEC extension on the fake driver, whose settings and counters the tests use."""

    def __init__(self) -> None:
        self.nvdec: Any = build.native()
        self.path = str(build.fake_driver())
        self._library = ctypes.CDLL(self.path)
        self._library.fake_count.restype = ctypes.c_long

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self._library.fake_set(name.encode(), ctypes.c_long(value))

    def count(self, name: str) -> int:
        return int(self._library.fake_count(name.encode()))

    def decode(
        self,
        pictures: Sequence[Coded | bytes],
        wanted: Sequence[int],
        *,
        shape: Shape = _SHAPE,
        geometry: Geometry | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
        display_order: Sequence[int] | None = None,
        flags: Sequence[int] | None = None,
        **options: Any,
    ) -> tuple[Any, np.ndarray]:
        """Decode and return (result, frames); ``wanted`` has a position in ``pictures`` for each output row."""
        nvdec = self.nvdec
        geometry = geometry or upright(shape)
        packets = [p if isinstance(p, bytes) else p.packet() for p in pictures]
        if display_order is None:
            display_order = [p.order if isinstance(p, Coded) else -1 - i for i, p in enumerate(pictures)]
        if flags is None:
            flags = [
                (nvdec.CLOSED if isinstance(p, Coded) and p.starts else 0)
                | (nvdec.REQUIRED if not isinstance(p, Coded) or p.kind & REFERENCE else 0)
                for p in pictures
            ]
        frames = nvdec.DeviceArray(0, (max(1, len(wanted)), geometry.height, geometry.width, 3))
        result = nvdec.decode(
            0,
            "h264",
            shape.extradata(),
            packets,
            np.array(display_order, np.int64),
            np.array(flags, np.uint8),
            np.array(ranges or [(0, len(packets))], np.int64).reshape(-1, 2),
            np.array([(p, row) for row, p in enumerate(wanted)], np.int64).reshape(-1, 2),
            nvdec.Geometry(
                geometry.width,
                geometry.height,
                geometry.quarter_turns,
                geometry.mirrored,
                bicubic=not geometry.resizes,
            ),
            nvdec.Output(frames.pointer, max(1, len(wanted)), CALLER_STREAM),
            **options,
        )
        return result, frames.to_host()


def upright(shape: Shape) -> Geometry:
    width, height = shape.shown
    return Geometry(height, width, 0, False, height, width)


@pytest.fixture(scope="module", name="engine")
def engine_fixture() -> Iterator[Double]:
    double = Double()
    double.nvdec.shutdown()
    double.nvdec.load(double.path, double.path)
    yield double
    double.nvdec.shutdown()
    double.nvdec.load("libcuda.so.1", "libnvcuvid.so.1")


@pytest.fixture(name="double")
def double_fixture(engine: Double) -> Iterator[Double]:
    """Check that no handle is left from the test before, and none after this one."""
    engine.nvdec.shutdown()
    before = {name: engine.count(name) for name in (*HANDLES, "violations")}
    assert all(before[name] == 0 for name in HANDLES), before
    engine.nvdec.configure(0, session_bytes=None, idle_sessions=16)
    yield engine
    engine.set(**dict.fromkeys(_FAULTS, 0))
    engine.nvdec.shutdown()
    leaked = {name: engine.count(name) for name in HANDLES if engine.count(name)}
    assert not leaked, leaked
    assert engine.count("violations") == before["violations"], "forbidden calls of the driver; see stderr"


def check_frames(frames: np.ndarray, numbers: Sequence[int], shape: Shape, geometry: Geometry | None = None) -> None:
    for row, number in enumerate(numbers):
        reference = expected(number, shape, geometry or upright(shape)).astype(int)
        assert frames[row].shape == reference.shape
        difference = np.abs(frames[row].astype(int) - reference).max()
        assert difference <= 3, f"row {row} is not picture {number}: off by {difference}"


def numbers_at(pictures: Sequence[Coded], wanted: Sequence[int]) -> list[int]:
    return [pictures[position].number for position in wanted]
