"""Fixtures and checks for the tests of the pool."""

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

__all__ = ["MB", "assert_seconds", "best_of_five", "gate", "has_frames", "is_idle", "path", "pool", "until"]

MB = 1 << 20


@pytest.fixture
def path() -> Path:
    """Path of a small clip."""
    return CLIPS["base.mp4"].path()


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Pool of two cores. Its requests are cancelled at the end of the test."""
    with Pool(threads=2) as made:
        yield made
        made.close(cancel=True)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Gate that is opened at the end of the test at the latest."""
    made = Gate()
    yield made
    made.open()


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.002)


class TooSlowError(AssertionError):
    """A duration is out of its bounds."""


def assert_seconds(taken: float, *, below: float, above: float = 0.0) -> None:
    """Check a measured duration. In a test with ``best_of_five`` it is measured again if it is out of bounds."""
    if not above < taken < below:
        raise TooSlowError(f"it took {taken:.3f} s; allowed is more than {above} s and less than {below} s")


def best_of_five(test: Callable[..., None]) -> Callable[..., None]:
    """Repeat a test up to five times while ``assert_seconds`` fails: a busy machine adds delays of its own."""

    @functools.wraps(test)
    def repeated(*arguments: Any, **fixtures: Any) -> None:
        for attempt in range(5):
            try:
                return test(*arguments, **fixtures)
            except TooSlowError:
                if attempt == 4:
                    raise
        return None

    return repeated


def is_idle(pool: Pool) -> bool:
    """Return True if no request is queued or running, and no memory is leased."""
    status = pool.status()
    return (status.queued, status.running, status.memory_leased, status.vram_leased) == (0, 0, 0, 0)


def has_frames(frames: Frames, indices: list[int]) -> bool:
    """Return True if the frames are those that the backend ``fake`` makes for these indices."""
    return frames.indices.tolist() == indices and frames.data[:, 0, 0, 0].tolist() == indices
