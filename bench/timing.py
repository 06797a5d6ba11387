"""Alternating measurement of several decoders, so that other load on the machine affects all alike."""

from __future__ import annotations

import gc
import mmap
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Times", "ratio", "time_alternately"]

_IDLE_SECONDS = 0.03
_DECODER_BYTES = 200 << 20
"""Approximate memory of the pictures of a decoder."""


@dataclass
class Times:
    """Times of one contender."""

    seconds: list[float] = field(default_factory=list)
    """Wall time of each round."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Processor time of each round, of all threads."""
    busy_after: float = 0.0
    """Largest share of a core that its threads still used after it had returned."""

    @property
    def median(self) -> float:
        """Median of the wall times, seconds."""
        return statistics.median(self.seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the entries for the results file."""
        return {
            "median_seconds": round(self.median, 5),
            "median_cpu_seconds": round(statistics.median(self.cpu_seconds), 5),
            "seconds": [round(second, 5) for second in self.seconds],
            "cpu_seconds": [round(second, 5) for second in self.cpu_seconds],
            "busy_after": round(self.busy_after, 2),
        }


def time_alternately(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, result_bytes: int = 0
) -> dict[str, Times]:
    """Run each contender once per round, in the order A B C A B C, and return their times.

    Args:
        contenders: functions by name. Their results are freed after the clock was stopped.
        rounds: number of times that each one runs.
        result_bytes: size of a result; before each call, that much memory is written to once.
    """
    times = {name: Times() for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            gc.collect()
            _touch_memory(2 * result_bytes + _DECODER_BYTES)
            wall, cpu = time.perf_counter(), time.process_time()
            result = run()
            times[name].seconds.append(time.perf_counter() - wall)
            times[name].cpu_seconds.append(time.process_time() - cpu)
            del result
            gc.collect()
            # threads that keep running would slow the next contender down, so their time is recorded
            cpu = time.process_time()
            time.sleep(_IDLE_SECONDS)
            times[name].busy_after = max(times[name].busy_after, (time.process_time() - cpu) / _IDLE_SECONDS)
    return times


def _touch_memory(size: int) -> None:
    """Allocate memory, write to it, and free it.

    A virtual machine returns memory that was free for a second or two to its host. Getting it back takes longer than
    many decodes (0.3 s for 200 MB were measured), and only the contender that runs after a pause would pay for it.
    """
    np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 1


def ratio(ours: Times, theirs: Times) -> float:
    """Return the median over the rounds of our time divided by theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
