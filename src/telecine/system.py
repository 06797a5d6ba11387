"""Processor cores and memory that this process may use, by the affinity mask and by its control group."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

__all__ = ["usable_cores", "usable_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_CPU_FILES = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""Files of the CPU quota and its period: cgroup v2, then v1."""
_MEMORY_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Files of the limit, the usage and the statistics, and the statistic of reclaimable page cache: cgroup v2, then v1."""


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that this process may use, at least 1.

    It is the size of the affinity mask, or the CPU quota of the control group if that is less. In a container the mask
    shows every core of the machine. A decoder that starts a thread for each of them is throttled by the quota.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cpu_quota(cgroup))))


def _cpu_quota(cgroup: Path) -> float:
    """Return the CPU quota in cores, infinite if there is none."""
    for files in _CPU_FILES:
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max"
            limit, period = " ".join((cgroup / file).read_text() for file in files).split()
            return int(limit) / int(period) if int(limit) > 0 else math.inf
    return math.inf


def usable_memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of memory that this process can still allocate: the least of the machine's and the cgroup's.

    A control group counts the page cache as used, so that after reading many files nothing seems to be left. The kernel
    reclaims inactive file pages at once; they count as free here. Container tools use the same formula for the working
    set: usage less ``inactive_file`` of ``memory.stat``.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    for limit, usage, stat, reclaimable in _MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            used = int((cgroup / usage).read_text()) - _memory_stat(cgroup / stat, reclaimable)
            found.append(int((cgroup / limit).read_text()) - max(0, used))
    if not found:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(0, min(found))


def _memory_stat(path: Path, name: str) -> int:
    """Return a value of a ``memory.stat`` file; 0 if it is not there."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
