"""The cores and the memory that this process may use, by affinity mask and control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telecine.system import usable_cores, usable_memory


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1), ("9900000 100000", 8)],
)
def test_cpu_quota_of_cgroup_v2_limits_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    """A fraction of a core counts as one, and the affinity mask is the upper bound."""
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("150000", 2), ("400000", 4)])
def test_cpu_quota_of_cgroup_v1_limits_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    """A quota of -1 is none."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize("content", ["", "nonsense", "1 2 3", "max", "100000 0", "x 100000"])
def test_unreadable_cpu_quota_is_ignored(tmp_path: Path, content: str) -> None:
    """An unknown kernel must not stop a decode."""
    (tmp_path / "cpu.max").write_text(content)
    assert usable_cores(tmp_path) == 8


def test_affinity_mask_counts_without_control_groups(tmp_path: Path) -> None:
    """A machine without containers has no quota."""
    assert usable_cores(tmp_path / "absent") == 8


def test_cores_of_the_machine_count_without_affinity_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems have no affinity, and may not even know their number of cores."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(tmp_path) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_usable_memory_is_the_least_of_machine_and_cgroup(tmp_path: Path) -> None:
    """A limit of "max" is none, and usage above the limit leaves nothing."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:      64 kB\n")
    assert usable_memory(tmp_path, meminfo) == 65536
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert usable_memory(tmp_path, meminfo) == 65536
    (tmp_path / "memory.max").write_text("5000\n")
    assert usable_memory(tmp_path, meminfo) == 4000
    (tmp_path / "memory.max").write_text("500\n")
    assert usable_memory(tmp_path, meminfo) == 0


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "line"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ],
    ids=["v2", "v1"],
)
def test_reclaimable_page_cache_counts_as_usable_memory(
    tmp_path: Path, limit: str, usage: str, stat: str, line: str
) -> None:
    """The statistic is read a moment later than the usage, and may exceed it."""
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("8000\n")
    (tmp_path / usage).write_text("7900\n")
    (tmp_path / stat).write_text(f"anon 300\nfile 7500\nactive_file 500\n{line} 7000\n")
    assert usable_memory(tmp_path, tmp_path / "none") == 7100
    (tmp_path / stat).write_text(f"{line} 7950\n")
    assert usable_memory(tmp_path, tmp_path / "none") == 8000
    (tmp_path / stat).write_text("anon 300\n")
    assert usable_memory(tmp_path, tmp_path / "none") == 100


def test_usable_memory_without_any_source_is_half_of_the_machine(tmp_path: Path) -> None:
    """Neither control groups nor meminfo exist."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert usable_memory(tmp_path, tmp_path / "none") == total // 2
