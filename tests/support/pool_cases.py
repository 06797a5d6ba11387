"""What the tests of the pool share: a clip, a pool of two cores, a gate, and words for what is expected of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clips import CLIPS
from support.fake_backends import Gate
from telecine import Frames, Pool

__all__ = ["MB", "best_of_five", "gate", "is_idle", "is_right", "path", "pool", "until"]

MB = 1 << 20


@pytest.fixture
def path() -> Path:
    """Of a small clip."""
    return CLIPS["base.mp4"].path()


@pytest.fixture
def pool() -> Iterator[Pool]:
    """One of two cores; what is left in it at the end of the test is withdrawn."""
    with Pool(threads=2) as made:
        yield made
        made.close(cancel=True)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end of the test at the latest."""
    made = Gate()
    yield made
    made.open()


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.002)


def best_of_five(test: Callable[..., None]) -> Callable[..., None]:
    """For what is about delays: a busy machine adds its own, and the least of some is the pool's."""

    @functools.wraps(test)
    def patient(*arguments: Any, **fixtures: Any) -> None:
        for attempt in range(5):
            try:
                return test(*arguments, **fixtures)
            except AssertionError:
                if attempt == 4:
                    raise
        return None

    return patient


def is_idle(pool: Pool) -> bool:
    """Whether nothing is queued, running or leased."""
    status = pool.status()
    return (status.queued, status.running, status.memory_leased, status.vram_leased) == (0, 0, 0, 0)


def is_right(frames: Frames, indices: list[int]) -> bool:
    """Whether these are the frames of the backend ``fake`` for these indices."""
    return frames.indices.tolist() == indices and frames.data[:, 0, 0, 0].tolist() == indices
