"""Fixtures of the tests of live streams: no thread and no descriptor is left, and retries are quick."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from telecine.live import capture


def live_threads() -> list[str]:
    """Return the names of the threads of live streams."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("telecine-live")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    end = time.monotonic() + 15
    while (live_threads() or len(os.listdir("/proc/self/fd")) > before) and time.monotonic() < end:
        time.sleep(0.05)
    assert live_threads() == []
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between attempts to connect."""
    monkeypatch.setattr(capture, "_MIN_BACKOFF", 0.05)
    monkeypatch.setattr(capture, "_MAX_BACKOFF", 0.2)
