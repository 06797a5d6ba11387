"""How times are taken: in turns, so that what else the machine does meets everybody alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Times", "in_turns", "ratio"]

_IDLE_SECONDS = 0.03


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


def in_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Times]:
    """Run each once, then each once more, and so on: A B C A B C.

    Args:
        contenders: what to run, by name. The result is dropped after the clock was stopped.
        rounds: how often each runs.
    """
    times = {name: Times() for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            gc.collect()
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


def ratio(ours: Times, theirs: Times) -> float:
    """Median over the rounds of our time to theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
