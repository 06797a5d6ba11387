"""Tables that FFmpeg would mend, or that claim what they do not hold, are refused at the cost of their bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from support.clips import CLIPS
from support.mp4_boxes import GROWING_TABLES, box, full_box, movie, tables, track, words
from telecine.bitstream.bit_reader import InvalidHeader
from telecine.container.mp4_fragments import read_fragment_table
from telecine.container.mp4_index import find_movie, read_sample_table

SIZES = full_box(b"stsz", words(0, 3), words(1, 1, 1))
CHUNKS = full_box(b"stsc", words(1, 1, 3, 1)) + full_box(b"stco", words(1, 40))
TIMES = full_box(b"stts", words(1, 3, 10))
PLAIN = SIZES + CHUNKS + TIMES


def read(data: bytes, number: int = 1) -> object:
    view = memoryview(data)

    def read_bytes(offset: int, size: int) -> memoryview:
        return view[offset : offset + size]

    found = find_movie(read_bytes, len(data))
    if found is None:
        return read_fragment_table(read_bytes, len(data), number)
    return read_sample_table(found, len(data), number)


def test_handmade_tables_are_read() -> None:
    table = read_sample_table(memoryview(movie(track(PLAIN)))[52:], 100, 1)  # the payload of the movie box
    assert table.offset.tolist() == [40, 41, 42] and table.size.tolist() == [1, 1, 1]
    assert table.dts.tolist() == table.pts.tolist() == [0, 10, 20] and table.duration.tolist() == [10, 10, 10]
    assert table.key.all() and not table.discard.any() and table.sample_entry == b"jpeg"


def edits(*rows: tuple[int, int, int]) -> bytes:
    return full_box(b"elst", words(len(rows)), *(words(*(value % (1 << 32) for value in row)) for row in rows))


REFUSED: dict[str, Callable[[], bytes]] = {
    "two tables of sizes": lambda: movie(track(PLAIN + SIZES)),
    "an empty sample": lambda: movie(track(full_box(b"stsz", words(0, 3), words(1, 0, 1)) + CHUNKS + TIMES)),
    "fewer sizes than announced": lambda: movie(track(full_box(b"stsz", words(0, 4), words(1, 1, 1)) + CHUNKS + TIMES)),
    "fewer times than samples": lambda: movie(track(SIZES + CHUNKS + full_box(b"stts", words(1, 2, 10)))),
    "a duration of 0": lambda: movie(track(SIZES + CHUNKS + full_box(b"stts", words(2, 2, 10, 1, 0)))),
    "a negative duration": lambda: movie(track(SIZES + CHUNKS + full_box(b"stts", words(2, 2, 10, 1, 0xFFFFFFFF)))),
    "fewer offsets than samples": lambda: movie(track(PLAIN + full_box(b"ctts", words(1, 2, 10)))),
    "an absurd offset": lambda: movie(track(PLAIN + full_box(b"ctts", words(1, 3, 1 << 29)))),
    "no key frames": lambda: movie(track(PLAIN + full_box(b"stss", words(0)))),
    "key frames from 0": lambda: movie(track(PLAIN + full_box(b"stss", words(1, 0)))),
    "key frames that descend": lambda: movie(track(PLAIN + full_box(b"stss", words(2, 3, 1)))),
    "a key frame after the last sample": lambda: movie(track(PLAIN + full_box(b"stss", words(2, 1, 4)))),
    "partial key frames": lambda: movie(track(PLAIN + full_box(b"stps", words(1, 2)))),
    "samples after the end": lambda: movie(
        track(SIZES + full_box(b"stsc", words(1, 1, 3, 1)) + full_box(b"stco", words(1, 1 << 30)) + TIMES)
    ),
    "offsets of 64 bits before the file": lambda: movie(
        track(SIZES + full_box(b"stsc", words(1, 1, 3, 1)) + full_box(b"co64", words(1, 0xFFFFFFFF, 0)) + TIMES)
    ),
    "more samples in chunks": lambda: movie(
        track(SIZES + full_box(b"stsc", words(1, 1, 4, 1)) + full_box(b"stco", words(1, 40)) + TIMES)
    ),
    "another sample description": lambda: movie(
        track(SIZES + full_box(b"stsc", words(1, 1, 3, 2)) + full_box(b"stco", words(1, 40)) + TIMES)
    ),
    "chunks from 2": lambda: movie(
        track(SIZES + full_box(b"stsc", words(1, 2, 3, 1)) + full_box(b"stco", words(1, 40)) + TIMES)
    ),
    "two edits": lambda: movie(track(PLAIN, edits((10, 0, 65536), (10, 10, 65536)))),
    "an edit at another speed": lambda: movie(track(PLAIN, edits((30, 0, 131072)))),
    "an edit before the start": lambda: movie(track(PLAIN, edits((30, -5, 65536)))),
    "an edit of nothing": lambda: movie(track(PLAIN, edits((0, 0, 65536)))),
    "an edit after the end": lambda: movie(track(PLAIN, edits((30, 1000, 65536)))),
    "no tables": lambda: movie(track(b"")),
    "samples of one size": lambda: movie(track(tables(3))),
    "two tracks of one number": lambda: movie(track(PLAIN), track(PLAIN)),
    "another track": lambda: movie(track(PLAIN, number=2)),
    "announced fragments": lambda: movie(track(PLAIN), box(b"mvex")),
    "a box longer than its parent": lambda: movie(track(PLAIN + words(1 << 20) + b"free")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_ffmpeg_reads_in_its_own_way_are_refused(name: str) -> None:
    with pytest.raises(InvalidHeader):
        read(REFUSED[name]())


@pytest.mark.parametrize("name", [name for name in GROWING_TABLES if "compressed" not in name])
def test_tables_that_claim_too_much_take_no_memory(name: str) -> None:
    data = GROWING_TABLES[name]()
    tracemalloc.start()
    with pytest.raises(InvalidHeader):
        read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 + 20 * len(data)


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "h264_fragmented.mp4"])
def test_files_cut_at_any_byte_are_refused_or_read_as_far_as_they_go(name: str) -> None:
    data = CLIPS[name].bytes()
    whole = read(data)
    for stop in [*range(0, 3000, 7), *range(len(data) - 5000, len(data), 31)]:
        with pytest.raises(InvalidHeader):
            read(data[:stop])
    assert len(whole.pts) == CLIPS[name].num_frames  # type: ignore[attr-defined]
