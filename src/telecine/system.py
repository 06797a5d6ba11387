"""How many processor cores this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores of the affinity mask, or of the control group's quota where that is less; at least 1.

    In a container the mask shows every core of the machine, and a decoder that starts a thread for each is stopped by
    the quota most of the time.

    Args:
        cgroup: where control groups are mounted.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores that the control group allows, or None; version 2 first, then version 1."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
