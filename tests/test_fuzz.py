"""Mutated files cause no crash, no hang, no foreign exception, and indices that fit the frames.

The cases run in a child process, many in each, so that a crash is a finding and not the end of the tests. Seeds are
fixed, unless ``TELECINE_FUZZ_SECONDS`` is set: then each run goes on for so long, from new ones. ``TELECINE_FUZZ_SEED``
says where to begin, which repeats a case.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import telecine
from support.children import run_python
from support.clips import CLIPS
from telecine import Limits

SECONDS = float(os.environ.get("TELECINE_FUZZ_SECONDS", "0"))
FIRST_SEED = int(os.environ.get("TELECINE_FUZZ_SEED", "0"))
CASES = 250
"""In each of the two ordinary runs."""
CASE_SECONDS = 20
MEMORY = 6 << 30
"""Address space of the child, bytes: what an input makes FFmpeg take beyond it is a finding."""

SEEDS = [
    "base.mp4", "h264_pyramid.mp4", "h264_open_gop.mp4", "h264_mbaff.mp4", "h264_fragmented.mp4", "h264.ts", "h264.mkv",
    "h264.avi", "h264.flv", "h264_raw.h264", "h264_444.mp4", "hevc.mp4", "hevc_open_gop.mp4", "hevc_raw.hevc",
    "hevc.ts", "hevc_main10.mp4", "hevc_hash.mp4", "vp8_altref.webm", "vp9_altref.webm", "vp9_10bit.webm", "odd.webm",
    "av1_aom.mp4", "av1_svt.webm", "mpeg2.mpg", "mpeg2_open_gop.ts", "mpeg4.avi", "mpeg4.mp4", "mjpeg.avi", "ffv1.mkv",
    "prores.mov", "wmv2_pipe.asf", "theora.ogv", "gif.gif", "trimmed.mp4", "rotated90.mp4", "rotated90.mkv", "vfr.mp4",
    "cover_first.mp4", "two_videos.mkv", "size_change.ts", "interleaved.mp4", "repeated_times.mkv", "one_frame.mp4",
]  # fmt: skip

MAGIC = [
    b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", b"\x1aE\xdf\xa3\x93B\x82\x88matroska", b"\x1aE\xdf\xa3\x87B\x82\x84webm",
    b"RIFF\xff\xff\xff\x7fAVI LIST", b"FLV\1\1\0\0\0\t\0\0\0\0", b"OggS\0\2", b"GIF89a\x40\0\x40\0\xf7\0\0",
    b"\0\0\0\1\x67\x42\0\x1e", b"\0\0\0\1\x40\1\x0c\1", b"\0\0\1\xba\x44\0", b"\0\0\1\xb3\x06\0\x40", b"\0\0\1\xb0\1",
    b"0&\xb2u\x8ef\xcf\x11\xa6\xd9\0\xaa\0b\xcel", b"DKIF\0\0 \0AV01\x40\0\x40\0", b"DKIF\0\0 \0VP90\x40\0\x40\0",
    b"\x06\x0e\x2b\x34\2\5\1\1\x0d\1\2\1\1\2", b"nut/multimedia container\0", b"fLaC\0\0\0\x22",
    b"YUV4MPEG2 W64 H64 F30:1 Ip C420\nFRAME\n",
    b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x40\0\0\0\x40\x08\2", b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    b"\x12\0\x0a\x0b\0\0", b"\x47\x40\x11\x10", b"ID3\3\0\0\0\0\0\0",
]  # fmt: skip


def flip_bits(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Flip a few bits anywhere."""
    for _ in range(chance.choice((1, 3, 10, 100))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_header_bits(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Flip a few bits near the start or the end, where headers and indexes are."""
    for _ in range(chance.choice((1, 2, 5, 20))):
        at = chance.randrange(min(3000, len(data)))
        data[at if chance.random() < 0.6 else -1 - at] ^= 1 << chance.randrange(8)


def truncate(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Remove the end."""
    del data[chance.randrange(len(data)) if chance.random() < 0.7 else chance.randrange(min(3000, len(data))) :]


def remove_middle(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Remove some bytes."""
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 4, 188, 1000, 20_000))]


def repeat_middle(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Repeat some bytes elsewhere."""
    at, to = chance.randrange(len(data)), chance.randrange(len(data))
    data[to:to] = data[at : at + chance.choice((1, 16, 188, 5000))]


def join_two(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Join the start of one container and the end of another."""
    data[chance.randrange(len(data)) :] = other[chance.randrange(len(other)) :]


def insert_other(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Insert bytes of another file."""
    at, start = chance.randrange(len(data)), chance.randrange(len(other))
    data[at : at + chance.choice((0, 0, 4000))] = other[start : start + chance.choice((4, 400, 4000))]


def change_number(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Write an extreme value into a field as wide as lengths, counts and times."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        width = chance.choice((1, 2, 4, 4, 8))
        at = chance.randrange(max(1, min(len(data), 4000) - width))
        if chance.random() < 0.4:
            at = max(0, len(data) - width - at)
        value = chance.choice((0, 1, 2, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, (1 << 8 * width) - 1,
                               chance.getrandbits(8 * width)))  # fmt: skip
        data[at : at + width] = value.to_bytes(width, chance.choice(("big", "little")))


def blank(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Fill a section with one value."""
    at = chance.randrange(len(data))
    size = min(chance.choice((4, 64, 2000)), len(data) - at)
    data[at : at + size] = bytes([chance.choice((0, 255, 0x80))]) * size


def garbage(data: bytearray, other: bytes, chance: random.Random) -> None:
    """Keep the start, and replace the rest by noise."""
    data[:] = chance.choice(MAGIC) + chance.randbytes(chance.choice((10, 300, 5000)))


MUTATIONS: list[Callable[[bytearray, bytes, random.Random], None]] = [
    flip_bits, flip_header_bits, truncate, remove_middle, repeat_middle, join_two, insert_other, change_number,
    change_number, blank, garbage,
]  # fmt: skip


def mutated(seed: int) -> tuple[str, bytes]:
    """Return the name of the mutation and the bytes."""
    chance = random.Random(seed)
    name, other = chance.choice(SEEDS), chance.choice(SEEDS)
    data, done = bytearray(CLIPS[name].bytes()), []
    for _ in range(chance.choice((1, 1, 2, 3))):
        change = chance.choice(MUTATIONS)
        done.append(change.__name__)
        change(data, CLIPS[other].bytes(), chance)
        if not data:
            break
    return f"{name} {' '.join(done)}", bytes(data)


def check(data: bytes, seed: int) -> None:
    """Probe and load; the results must be consistent.

    Raises:
        telecine.TelecineError: which is an answer too.
    """
    chance = random.Random(seed)
    limits = Limits(max_pixels=1 << 22, max_output_bytes=256 << 20, max_packets=50_000)
    info = telecine.probe(data, limits=limits)
    assert info.num_frames > 0 and info.width > 0 and info.height > 0 and info.rotation in (0, 90, 180, 270)
    assert 0 < info.duration <= limits.max_seconds and 0 <= info.average_fps < 1e9 and np.isfinite(info.start_time)
    wanted = [chance.randrange(info.num_frames) for _ in range(5)]
    options = chance.choice(({}, {"num_frames": 4}, {"indices": wanted}, {"fps": 2, "max_frames": 8}, {"size": 32}))
    if info.num_frames > 300:
        options = {"num_frames": 8, "size": 32}
    frames = telecine.load(data, limits=limits, threads=chance.choice((1, 3)), **options)
    assert frames.info == info
    assert len(frames.data) == len(frames.indices) == len(frames.timestamps) > 0
    assert frames.data.dtype == np.uint8 and frames.data.shape[3] == 3
    if "size" not in options:
        assert frames.data.shape[1:3] == (info.height, info.width)
    assert frames.indices.min() >= 0 and frames.indices.max() < info.num_frames
    assert not set(frames.indices.tolist()) & set(frames.report.lost)
    times = frames.timeline.seconds()
    assert len(times) == info.num_frames and times[0] == 0 and (np.diff(times) > 0).all() and times[-1] < info.duration
    assert np.array_equal(frames.timestamps, times[frames.indices])
    if "indices" in options:
        assert frames.indices.tolist() == [index for index in wanted if index not in frames.report.lost]
    json.dumps(frames.metadata())


def run_cases(first: int, count: int, seconds: float, folder: Path) -> None:
    """Run in the child: print each seed before it is tried, and keep the file until the next one."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes: dict[str, int] = {}
    started = time.monotonic()
    for seed in range(first, first + count):
        if seconds and time.monotonic() - started > seconds:
            break
        what, data = mutated(seed)
        (folder / "case").write_bytes(data)
        _tell(f"seed {seed}: {what}")
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        try:
            check(data, seed)
            outcome = "frames"
        except telecine.TelecineError as error:
            outcome = type(error).__name__
        faulthandler.cancel_dump_traceback_later()
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    _tell(json.dumps(outcomes))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_child(first: int, count: int, seconds: float, folder: Path) -> dict[str, int]:
    """Run cases; fail with the seed if the child dies, hangs or finds something."""
    code = "import pathlib, sys, test_fuzz; test_fuzz.run_cases(*map(int, sys.argv[1:4]), pathlib.Path(sys.argv[4]))"
    done = run_python(code, str(first), str(count), str(int(seconds)), folder, timeout=max(110, seconds + 110))
    last = done.stdout.splitlines()[-1] if done.stdout else "nothing"
    if done.returncode:
        kept = (folder / "case").rename(folder / "found")
        pytest.fail(f"{last}\nexit status {done.returncode}; the file is {kept}\n{done.stderr[-3000:]}", pytrace=False)
    assert done.stderr == ""
    outcomes: dict[str, int] = json.loads(last)
    return outcomes


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """The clips are made here, not under the child's bound of memory."""
    for name in SEEDS:
        CLIPS[name].path()


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("first", [FIRST_SEED] if FIRST_SEED else [1, 100_001])
def test_mutated_files_give_frames_or_a_telecine_error(first: int, tmp_path: Path) -> None:
    """The share of each outcome shows that mutations get past the first header."""
    if SECONDS:
        first += int(time.time()) * 1_000_000
    outcomes = run_child(first, 10**6 if SECONDS else CASES, SECONDS, tmp_path)
    total = sum(outcomes.values())
    sys.stdout.write(f"{total} cases from seed {first}: {outcomes}\n")
    assert outcomes["frames"] > total * 0.3
    assert outcomes["SourceError"] > total * 0.03
