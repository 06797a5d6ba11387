"""How times are taken: in turns, so that what else the machine does meets everybody alike."""

from __future__ import annotations

import gc
import mmap
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Times", "in_turns", "ratio"]

_IDLE_SECONDS = 0.03
_DECODER_BYTES = 200 << 20
"""About what a decoder takes for its pictures."""


@dataclass
class Times:
    """What was measured of one contender."""

    seconds: list[float] = field(default_factory=list)
    """Wall time of each round."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Processor time of each round, of all threads."""
    busy_after: float = 0.0
    """Largest share of a core that its threads still used once it had answered."""

    @property
    def median(self) -> float:
        """Of the wall times."""
        return statistics.median(self.seconds)

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "median_seconds": round(self.median, 5),
            "median_cpu_seconds": round(statistics.median(self.cpu_seconds), 5),
            "seconds": [round(second, 5) for second in self.seconds],
            "cpu_seconds": [round(second, 5) for second in self.cpu_seconds],
            "busy_after": round(self.busy_after, 2),
        }


def in_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int, result_bytes: int = 0) -> dict[str, Times]:
    """Run each once, then each once more, and so on: A B C A B C.

    Args:
        contenders: what to run, by name. The result is dropped after the clock was stopped.
        rounds: how often each runs.
        result_bytes: size of a result; everybody finds the memory for it in the same state.
    """
    times = {name: Times() for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            gc.collect()
            _level_memory(2 * result_bytes + _DECODER_BYTES)
            wall, cpu = time.perf_counter(), time.process_time()
            result = run()
            times[name].seconds.append(time.perf_counter() - wall)
            times[name].cpu_seconds.append(time.process_time() - cpu)
            del result
            gc.collect()
            # whoever leaves threads spinning slows the next one down: a peer's fault must not pass unseen
            cpu = time.process_time()
            time.sleep(_IDLE_SECONDS)
            times[name].busy_after = max(times[name].busy_after, (time.process_time() - cpu) / _IDLE_SECONDS)
    return times


def _level_memory(size: int) -> None:
    """Write to so much memory and free it.

    A virtual machine gives memory that was free for a second or two back to its host, and getting it again takes longer
    than many a decode (0.3 s for 200 MB were seen). It would be paid by whoever comes after a pause, and not by whoever
    comes after somebody who used a lot.
    """
    np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 1


def ratio(ours: Times, theirs: Times) -> float:
    """Median over the rounds of our time to theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
