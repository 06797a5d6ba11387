"""How many cores this process may use, by affinity and by control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telecine.system import usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1), ("9900000 100000", 8)],
)
def test_quota_of_version_2(tmp_path: Path, quota: str, cores: int) -> None:
    """Part of a core counts as one, and the mask is the upper bound."""
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("150000", 2), ("400000", 4)])
def test_quota_of_version_1(tmp_path: Path, quota: str, cores: int) -> None:
    """-1 means none."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize("content", ["", "nonsense", "1 2 3", "max", "100000 0", "x 100000"])
def test_files_that_make_no_sense_set_no_quota(tmp_path: Path, content: str) -> None:
    """An unknown kernel must not stop a decode."""
    (tmp_path / "cpu.max").write_text(content)
    assert usable_cores(tmp_path) == 8


def test_without_control_groups_the_mask_counts(tmp_path: Path) -> None:
    """As on a plain machine."""
    assert usable_cores(tmp_path / "absent") == 8


def test_without_a_mask_the_cores_of_the_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems have no affinity, and may not even know their cores."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores(tmp_path) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1
