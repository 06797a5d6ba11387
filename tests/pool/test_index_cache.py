"""Packet indexes remembered: by content, within bounds, and never somebody else's."""

from __future__ import annotations

import base64
import contextlib
import io
import mmap
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from support.clips import CLIPS, clips
from telecine import LimitError, Limits, Pool, load
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import DeadlineError, TelecineError
from telecine.index.packet_index import read_index
from telecine.index.video_info import describe
from telecine.pool import job
from telecine.pool.index_cache import IndexCache, key_of, version_of
from telecine.source.source import open_source

LIMITS = Limits()


def facts(path):
    with open_source(path, LIMITS, Deadline()) as source, Demuxer(source, Deadline()) as demuxer:
        index = read_index(demuxer, LIMITS, Deadline())
        return key_of(source, LIMITS, Deadline()), index, describe(source, demuxer, index, LIMITS)


@pytest.fixture
def known():
    return facts(CLIPS["base.mp4"].path())


def test_what_was_put_is_found_without_its_packets(known):
    key, index, info = known
    cache = IndexCache(1 << 20)
    assert cache.get(key) is None
    cache.put(key, index, info)
    found, found_info = cache.get(key)
    assert index.packets and found.packets is None
    np.testing.assert_array_equal(found.pts, index.pts)
    assert found_info is info


def test_shared_arrays_cannot_be_written_to(known):
    key, index, info = known
    cache = IndexCache(1 << 20)
    cache.put(key, index, info)
    with pytest.raises(ValueError, match="read-only"):
        cache.get(key)[0].timeline.ticks[0] = 5


def test_the_key_is_the_content_whatever_it_is_given_as(tmp_path, known):
    path = CLIPS["base.mp4"].path()
    other = tmp_path / "other name.mp4"
    other.write_bytes(path.read_bytes())
    for source in (other, path.read_bytes()):
        with open_source(source, LIMITS, Deadline()) as opened:
            assert key_of(opened, LIMITS, Deadline()) == known[0]


def test_one_other_byte_or_limit_is_another_key(known):
    data = bytearray(CLIPS["base.mp4"].path().read_bytes())
    data[len(data) // 2] ^= 1
    with open_source(bytes(data), LIMITS, Deadline()) as opened:
        assert key_of(opened, LIMITS, Deadline()) != known[0]
    with open_source(CLIPS["base.mp4"].path(), LIMITS, Deadline()) as opened:
        assert key_of(opened, Limits(max_packets=3), Deadline()) != known[0]


def test_hashing_looks_at_the_deadline(known):
    deadline = Deadline(1e-9)
    with open_source(CLIPS["base.mp4"].path(), LIMITS, Deadline()) as opened, pytest.raises(DeadlineError):
        key_of(opened, LIMITS, deadline)


def test_the_least_recently_used_goes_first_and_bytes_are_counted(known):
    _, index, info = known
    probe = IndexCache(1 << 20)
    probe.put((b"x", LIMITS), index, info)
    size = probe.nbytes
    cache = IndexCache(3 * size)
    for name in (b"a", b"b", b"c"):
        cache.put((name, LIMITS), index, info)
    cache.get((b"a", LIMITS))
    cache.put((b"d", LIMITS), index, info)
    assert [name for name in (b"a", b"b", b"c", b"d") if cache.get((name, LIMITS))] == [b"a", b"c", b"d"]
    assert cache.nbytes == 3 * size
    cache.put((b"d", LIMITS), index, info)
    assert cache.nbytes == 3 * size and len(cache) == 3


def test_what_is_larger_than_the_cache_is_not_kept(known):
    cache = IndexCache(100)
    cache.put(*known)
    assert len(cache) == 0 and cache.nbytes == 0


@pytest.mark.parametrize("clip", clips("core"), ids=str)
def test_frames_are_the_same_with_a_remembered_index(clip):
    if not clip.num_frames:
        pytest.fail("a core clip has frames")
    expected = load(clip.path())
    with Pool(threads=2) as pool:
        for cached in (False, True, True):
            frames = pool.load(clip.path())
            assert frames.report.index_cached is cached
            np.testing.assert_array_equal(frames.data, expected.data)
            np.testing.assert_array_equal(frames.timestamps, expected.timestamps)
            assert frames.info == expected.info
            assert frames.report.packets_fed == expected.report.packets_fed


def test_tighter_limits_hold_for_a_video_that_was_here_before():
    path = CLIPS["base.mp4"].path()
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=1)
        with pytest.raises(LimitError, match="max_packets"):
            pool.load(path, num_frames=1, limits=Limits(max_packets=3))


def changing(monkeypatch, change):
    """Have something happen once between the hash and the walk."""
    left = [change]

    def hashed(source, limits, deadline):
        key = key_of(source, limits, deadline)
        if left:
            left.pop()()
        return key

    monkeypatch.setattr(job, "key_of", hashed)


def two_clips():
    """The bytes of two videos, as long as each other."""
    contents = [CLIPS[name].path().read_bytes() for name in ("base.mp4", "mpeg4.mp4")]
    size = max(map(len, contents))
    return [content + bytes(size - len(content)) for content in contents]


@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "array", "mmap", "read-only view"])
def test_the_index_of_a_buffer_that_others_may_write_to_is_not_kept(monkeypatch, kind):
    """Its bytes change when they have been hashed: another's video would be decoded by the wrong index."""
    content, other = two_clips()
    if kind == "mmap":
        buffer = mmap.mmap(-1, len(content))
        buffer[:] = content
    else:
        buffer = bytearray(content)
    given = {
        "memoryview": lambda: memoryview(buffer),
        "array": lambda: np.frombuffer(buffer, np.uint8),
        "read-only view": lambda: memoryview(buffer).toreadonly(),
    }.get(kind, lambda: buffer)()

    def change():
        buffer[:] = other

    changing(monkeypatch, change)
    expected = load(content, num_frames=4)
    with Pool(threads=1) as pool:
        with contextlib.suppress(TelecineError):
            pool.load(given, num_frames=4)
        assert pool.status().indexes_cached == 0
        frames = pool.load(content, num_frames=4)
        assert frames.info == expected.info
        np.testing.assert_array_equal(frames.data, expected.data)
        # what was found with bytes that cannot change serves for a buffer of the same bytes as well
        assert pool.load(bytearray(content), num_frames=1).report.index_cached


@pytest.mark.parametrize("give", [str, Path, lambda path: path.open("rb")], ids=["str", "Path", "open file"])
@pytest.mark.parametrize("how", ["write", "write and set the time back", "rename", None])
def test_the_index_of_a_file_is_kept_only_where_it_stayed_as_it_was(tmp_path, monkeypatch, give, how):
    content, other = two_clips()
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))

    def change():
        if how == "rename":
            (tmp_path / "new.mp4").write_bytes(other)
            (tmp_path / "new.mp4").rename(path)
        elif how is not None:
            time.sleep(0.01)  # times of change are as coarse as a tick of the kernel
            with path.open("r+b") as file:
                file.write(other)
        if how == "write and set the time back":
            os.utime(path, ns=(0, 0))

    changing(monkeypatch, change)
    given = give(path)
    with Pool(threads=1) as pool, given if hasattr(given, "close") else contextlib.nullcontext():
        with contextlib.suppress(TelecineError):
            pool.load(given, num_frames=4)
        # renaming over an open file counts as a change of it: it lost its name
        assert pool.status().indexes_cached == (how is None)
        frames = pool.load(content, num_frames=4)
        assert frames.report.index_cached == (how is None)
        np.testing.assert_array_equal(frames.data, load(content, num_frames=4).data)


def test_the_index_of_what_was_copied_is_kept():
    content = CLIPS["base.mp4"].path().read_bytes()

    class Upload(io.RawIOBase):
        def __init__(self):
            self._left = io.BytesIO(content)

        def readable(self):
            return True

        def readinto(self, buffer):
            return self._left.readinto(buffer)

    data_url = "data:video/mp4;base64," + base64.b64encode(content).decode()
    spooled = tempfile.SpooledTemporaryFile()
    with spooled:
        spooled.write(content)
        spooled.seek(0)
        for given in (
            Upload(),
            spooled,
            io.BufferedReader(Upload()),
            data_url,
            io.BytesIO(content),
            memoryview(content),
        ):
            with Pool(threads=1) as pool:
                pool.load(given, num_frames=1)
                assert pool.status().indexes_cached == 1
        assert not spooled._rolled  # it stays in memory


def test_what_cannot_be_asked_has_no_version(tmp_path):
    assert version_of(tmp_path / "none") is None
    assert version_of("file:///etc/hostname") is None
    assert version_of("a\0path") is None
    assert version_of("https://example.com/clip.mp4") == ()
    assert version_of("https-clips/clip.mp4") is None  # a path


def test_a_pool_without_a_cache_remembers_nothing():
    with Pool(threads=1, cache=0) as pool:
        for _ in range(2):
            assert not pool.load(CLIPS["base.mp4"].path(), num_frames=1).report.index_cached
