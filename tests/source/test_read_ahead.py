"""Of a large mapped file only the parts that are asked for are read, not the megabytes around them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from telecine.deadline import Deadline
from telecine.limits import Limits
from telecine.source import read_ahead
from telecine.source.read_ahead import ReadAhead
from telecine.source.source import open_source


class Mapping:
    """A mapping of 100 pages that records the advice."""

    def __init__(self) -> None:
        self.advice: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return 100 * mmap.PAGESIZE

    def madvise(self, *given: int) -> None:
        self.advice.append(given)


def test_parts_are_prefetched_in_whole_pages_up_to_the_end_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MIN_BYTES", 0)
    mapping = Mapping()
    ahead = ReadAhead(mapping, start=10)  # type: ignore[arg-type]
    ahead.prefetch(2 * mmap.PAGESIZE - 10, 5)
    ahead.prefetch(0, 1 << 40)
    ahead.prefetch(7, 0)
    will_need = mmap.MADV_WILLNEED
    assert mapping.advice == [
        (mmap.MADV_RANDOM,), (will_need, 2 * mmap.PAGESIZE, 5), (will_need, 0, 100 * mmap.PAGESIZE),
    ]  # fmt: skip
    ahead.read_in_order()
    ahead.read_in_order()
    ahead.prefetch(0, 5)
    assert mapping.advice[3:] == [(mmap.MADV_NORMAL,)]


def test_small_files_and_memory_get_no_advice() -> None:
    mapping = Mapping()
    ReadAhead(mapping).prefetch(0, 10)  # type: ignore[arg-type]
    ReadAhead(None).prefetch(0, 10)
    assert mapping.advice == []


def test_a_closed_source_ignores_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MIN_BYTES", 0)
    (tmp_path / "file").write_bytes(bytes(10_000))
    source = open_source(tmp_path / "file", Limits(), Deadline())
    source.close()
    source.read_ahead.prefetch(0, 10)
    source.read_ahead.read_in_order()


def resident_pages(path: Path) -> int:
    """Return how many pages of a file are in memory."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(mapped)), pages) == 0
    return sum(page & 1 for page in pages)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mincore and posix_fadvise")
def test_one_page_of_a_large_file_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20) * 40)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_pages(path):
        pytest.skip("the temporary folder is in memory")
    with open_source(path, Limits(), Deadline()) as source:
        assert len(bytes(source.data[20 << 20 : (20 << 20) + 10])) == 10
        assert resident_pages(path) < 64
