"""Tables of MP4 files that claim more than they hold are refused before FFmpeg takes memory for them."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

import telecine
from support.children import run_python
from support.clips import CLIPS
from support.mp4_boxes import GROWING_TABLES, box, full_box, movie, sound_track, tables, track, words
from telecine.container.mp4_tables import check_tables
from telecine.deadline import Deadline
from telecine.errors import Cancelled, LimitError

MEASURE = """
    import json, sys, time
    import telecine
    from support.children import memory
    from support.clips import CLIPS
    telecine.load(CLIPS["base.mp4"].path(), size=32)  # imports what is imported on first use
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest so far starts again
    before, started = memory("VmHWM"), time.perf_counter()
    try:
        said = repr(telecine.load(sys.argv[1], timeout=30))
    except telecine.TelecineError as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([said, memory("VmHWM") - before, time.perf_counter() - started]))
"""


@pytest.mark.parametrize("name", GROWING_TABLES)
def test_tables_that_claim_too_much_are_refused_before_memory_is_taken(name: str, tmp_path: Path) -> None:
    (tmp_path / "growing.mp4").write_bytes(GROWING_TABLES[name]())
    done = run_python(MEASURE, tmp_path / "growing.mp4")
    assert done.returncode == 0, done.stderr
    said, grown, seconds = json.loads(done.stdout)
    assert said.startswith("LimitError: growing.mp4: ") and ("memory" in said or "compressed" in said)
    assert grown < 40 << 20
    assert seconds < 5


def test_tables_of_all_clips_are_accepted() -> None:
    for clip in CLIPS.values():
        check_tables(memoryview(clip.bytes()), clip.name, Deadline())


def test_tables_of_a_long_recording_are_accepted() -> None:
    """Hours of uncompressed sound are hundreds of millions of samples, which FFmpeg does not index one by one."""
    hours = 4 * 3600
    pictures = full_box(b"stsz", words(0, 30 * hours), words(5000) * (30 * hours))
    sound = tables(8000 * hours, duration=1, chunks=hours, chunk_samples=8000)
    edits = full_box(b"elst", words(50), words(1000, 500, 65536) * 50)
    data = movie(track(tables(30 * hours, pictures, duration=33), edits), sound_track(sound))
    check_tables(memoryview(data), "long", Deadline())


def test_tables_with_cut_off_or_random_fields_raise_no_other_error() -> None:
    """Every field of a box may be missing or have any value."""
    rng = random.Random(7)
    files = [build() for name, build in GROWING_TABLES.items() if "many tracks" not in name and "four bits" not in name]
    files += [CLIPS[name].bytes() for name in ("base.mp4", "hevc.mp4")]
    for _ in range(3000):
        data = bytearray(rng.choice(files))
        header = max(0, data.rfind(b"moov") - 30)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(header, len(data))] = rng.choice((0, 1, 128, 255, rng.randrange(256)))
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        with suppress(LimitError):
            check_tables(memoryview(bytes(data)), "random", Deadline())


def test_boxes_are_read_under_the_deadline() -> None:
    deadline = Deadline()
    deadline.cancel()
    with pytest.raises(Cancelled, match="tables of the file"):
        check_tables(memoryview(box(b"free") * 1001), "many", deadline)


def test_a_source_is_checked_once_for_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr("telecine.container.demuxer.check_tables", lambda data, name, deadline: checked.append(name))
    with telecine.open(CLIPS["base.mp4"].path()) as video:
        video.load(num_frames=1)
        video.load(num_frames=2)
    assert len(checked) == 1
