"""Backends whose behaviour a test chooses, for the tests of the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from telecine.backends import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost, registry

__all__ = ["Costly", "Gate", "fakes", "filled", "steps"]


def filled(request: DecodeRequest) -> Decoded:
    """Return frames in which every byte is the frame index modulo 256."""
    wanted, geometry = request.plan.frames, request.geometry
    data = np.empty((len(wanted), geometry.height, geometry.width, 3), np.uint8)
    data[:] = (wanted % 256)[:, None, None, None]
    return Decoded(data, np.ones(len(wanted), np.bool_), request.device)


def steps(count: int, seconds: float) -> Callable[[DecodeRequest], None]:
    """Return a function that works in small steps and checks the deadline, as a packet backend does."""

    def work(request: DecodeRequest) -> None:
        for step in range(count):
            request.deadline.check("decoding", step, count)
            time.sleep(seconds)

    return work


class Fake(Backend):
    """Calls the option ``do`` with the request, if it is given, and returns frames of their indices."""

    name = "fake"
    devices = ("cpu", "cuda")
    options = None

    def decode(self, request: DecodeRequest) -> Decoded:
        do = request.options.get("do")
        answer = None if do is None else do(request)
        return filled(request) if answer is None else answer

    def status(self) -> BackendStatus:
        return self.make_status(None)


class Costly(Fake):
    """Takes as much memory as the options ``host`` and ``gpu`` say, bytes."""

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        return MemoryCost(request.options.get("host", 0), request.options.get("gpu", 0))

    def gauges(self) -> dict[str, float]:
        return {"telecine_sessions": 3.0, "telecine_vram_bytes": 4096.0}


class Unmakeable(Fake):
    def __init__(self) -> None:
        raise RuntimeError("no driver")


class CostRaises(Fake):
    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        raise ZeroDivisionError


class Gate:
    """Blocks backends until the test opens it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.arrived = threading.Semaphore(0)

    def __call__(self, request: DecodeRequest) -> None:
        """Wait, and check the deadline."""
        self.arrived.release()
        while not self._open.wait(0.005):
            request.deadline.check("decoding")

    def block(self, request: DecodeRequest) -> None:
        """Wait without checking the deadline, as a library does that hangs."""
        self.arrived.release()
        self._open.wait(60)

    def wait_for(self, count: int) -> None:
        """Wait until this number of backends is blocked."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=20)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the backends ``fake``, ``costly`` and some that raise, for one test."""
    monkeypatch.setattr(registry, "_instances", {})
    table: dict[str, Any] = {
        "fake": "support.fake_backends:Fake",
        "costly": "support.fake_backends:Costly",
        "unmakeable": "support.fake_backends:Unmakeable",
        "cost_raises": "support.fake_backends:CostRaises",
        "missing": "no_such_module:Backend",
    }
    for name, where in table.items():
        monkeypatch.setitem(registry.BUILT_IN, name, where)
    yield
