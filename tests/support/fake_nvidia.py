"""Fakes that the fake PyNvVideoCodec and DeepStream share: module installation, torch, conversion to RGB."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Geometry

__all__ = ["Tensor", "fake_torch", "install", "to_rgb"]


def install(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Make ``import`` find these modules until the test ends; two underscores in a name mean a dot."""
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name.replace("__", "."), module)


class _Stream(threading.local):
    """The unfinished copies of a thread."""

    def __init__(self) -> None:
        self.unfinished: list[Callable[[], None]] = []

    def synchronize(self) -> None:
        while self.unfinished:
            self.unfinished.pop()()


_STREAM = _Stream()


class Tensor:
    """The used part of a torch tensor. Non-blocking copies complete only when the stream is synchronized."""

    def __init__(self, array: np.ndarray[Any, Any], pinned: bool = False) -> None:
        self.array, self.pinned = array, pinned

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
        def copy() -> None:
            self.array[...] = other.array

        if non_blocking and self.pinned:
            _STREAM.unfinished.append(copy)
        else:
            copy()

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key], self.pinned)

    def __iter__(self) -> Iterator[Tensor]:
        return (Tensor(one) for one in self.array)


def fake_torch(gpus: int = 1) -> Any:
    """Return a module with the used part of torch: GPU detection, pinned memory, streams."""

    def empty(shape: tuple[int, ...], dtype: Any, pin_memory: bool = False) -> Tensor:
        return Tensor(np.empty(shape, dtype), pin_memory)

    module: Any = types.ModuleType("torch")
    module.uint8, module.empty, module.device = np.uint8, empty, lambda *name: name
    module.cuda = types.SimpleNamespace(
        is_available=lambda: gpus > 0, device_count=lambda: gpus, current_stream=lambda device: _STREAM
    )
    return module


def to_rgb(picture: Any) -> np.ndarray[Any, Any]:
    """Convert an ``av.VideoFrame`` to ``uint8 [h, w, 3]`` RGB with the project's filter graph."""
    image = np.empty((picture.height, picture.width, 3), np.uint8)
    Converter(Geometry(picture.height, picture.width, 0, False, picture.height, picture.width))(picture, image)
    return image
