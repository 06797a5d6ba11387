"""The packet index cache: what identifies a source, the bound on its memory, and changes of a source."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path

import numpy as np
import pytest

from support.clips import CLIPS, clips
from telecine import DeadlineError, LimitError, Limits, OptionsError, Pool, load
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import TelecineError
from telecine.index.packet_index import read_index
from telecine.index.video_info import make_video_info
from telecine.pipeline import IndexAndInfo
from telecine.pool import index_cache
from telecine.pool.index_cache import IndexCache, SourceIdentity, hash_content, settled_file_version
from telecine.pool.job import Job
from telecine.source.source import open_source

LIMITS = Limits()


@pytest.fixture
def path() -> Path:
    """Path of a small clip that has not changed recently."""
    found = CLIPS["base.mp4"].path()
    wait_until_cacheable(found)
    return found


def wait_until_cacheable(path: Path) -> None:
    while settled_file_version(path) is None:
        time.sleep(0.005)


@pytest.fixture
def index_and_info(path: Path) -> IndexAndInfo:
    with open_source(path, LIMITS, Deadline()) as source, Demuxer(source, Deadline()) as demuxer:
        index = read_index(demuxer, LIMITS, Deadline())
        return index, make_video_info(source, demuxer, index, LIMITS)


# the cache


def test_a_cached_index_is_returned_without_its_packets(index_and_info):
    index, info = index_and_info
    cache = IndexCache(1 << 20)
    assert cache.get("key") is None
    cache.put("key", index, info)
    found, found_info = cache.get("key")
    assert index.packets and found.packets is None
    np.testing.assert_array_equal(found.pts, index.pts)
    assert found_info is info


def test_arrays_of_a_cached_index_are_read_only(index_and_info):
    cache = IndexCache(1 << 20)
    cache.put("key", *index_and_info)
    with pytest.raises(ValueError, match="read-only"):
        cache.get("key")[0].timeline.ticks[0] = 5


def test_the_least_recently_used_index_is_removed_first(index_and_info):
    probe = IndexCache(1 << 20)
    probe.put("x", *index_and_info)
    size = probe.nbytes
    cache = IndexCache(3 * size)
    for name in "abc":
        cache.put(name, *index_and_info)
    cache.get("a")
    cache.put("d", *index_and_info)
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    assert cache.nbytes == 3 * size
    cache.put("d", *index_and_info)
    assert cache.nbytes == 3 * size and len(cache) == 3


def test_an_index_larger_than_the_cache_is_not_cached(index_and_info):
    cache = IndexCache(100)
    cache.put("key", *index_and_info)
    assert len(cache) == 0 and cache.nbytes == 0


# identity of a source


def key_of(given, limits=LIMITS, cache_key=None, may_hash=False):
    identity = SourceIdentity(given, cache_key, may_hash)
    with open_source(given, limits, Deadline()) as opened:
        return identity.key(opened, limits, Deadline())


def test_a_path_is_identified_by_its_file_and_never_read_for_it(path, monkeypatch):
    monkeypatch.setattr(index_cache, "hash_content", None)
    status = os.stat(path)
    assert settled_file_version(path)[:4] == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    assert key_of(path) == key_of(str(path), may_hash=True) == key_of(os.path.relpath(path))


def test_a_link_and_its_file_have_the_same_key(tmp_path, path):
    (tmp_path / "link.mp4").symlink_to(path)
    assert key_of(tmp_path / "link.mp4") == key_of(path)


def test_other_limits_are_another_key(path):
    assert key_of(path, Limits(max_packets=3)) != key_of(path)


def test_content_is_hashed_only_if_that_is_asked_for(path):
    content = path.read_bytes()
    assert key_of(content) is None
    key = key_of(content, may_hash=True)
    assert key is not None and key == key_of(memoryview(bytes(content)), may_hash=True)
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    assert key_of(bytes(changed), may_hash=True) != key


@pytest.mark.parametrize(
    "give",
    [bytearray, np.frombuffer, io.BytesIO, lambda content: memoryview(bytearray(content)).toreadonly()],
    ids=["bytearray", "array", "BytesIO", "read-only view of a bytearray"],
)
def test_a_source_whose_bytes_may_change_has_no_key(path, give):
    content = path.read_bytes()
    given = give(content, np.uint8) if give is np.frombuffer else give(content)
    assert key_of(given, may_hash=True) is None


def test_an_open_file_has_no_key(path):
    """It is read from its position on, which the inode does not tell."""
    with path.open("rb") as file:
        assert key_of(file, may_hash=True) is None


def test_a_key_of_the_caller_identifies_any_source(path):
    content = path.read_bytes()
    assert key_of(content, cache_key="etag") == key_of(bytearray(content), cache_key="etag")
    assert key_of(content, cache_key="etag") != key_of(content, cache_key="other")
    assert key_of(content, cache_key="etag") != key_of(content + b"0", cache_key="etag")


def test_hashing_checks_the_deadline(path):
    with open_source(path, LIMITS, Deadline()) as opened, pytest.raises(DeadlineError):
        hash_content(opened, Deadline(1e-9))


@pytest.mark.parametrize(
    "source", ["/no/such/file", "file:///etc/hostname", "a\0path", "https://example.com/a", b"x", 7]
)
def test_a_source_that_is_no_accessible_path_has_no_file_version(source):
    assert settled_file_version(source) is None


def test_a_file_that_changed_just_now_has_no_version(tmp_path):
    """A second change within the resolution of the file system's clock would leave the times as they are."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"content")
    assert settled_file_version(path) is None
    wait_until_cacheable(path)
    before = settled_file_version(path)
    path.write_bytes(b"changed")
    os.utime(path, ns=(before[3], before[3]))
    wait_until_cacheable(path)
    assert settled_file_version(path) != before


# the cache in a pool


@pytest.mark.parametrize("clip", clips("core"), ids=str)
def test_frames_are_the_same_with_a_cached_index(clip):
    expected = load(clip.path())
    wait_until_cacheable(clip.path())
    with Pool(threads=2) as pool:
        for cached in (False, True, True):
            frames = pool.load(clip.path())
            assert frames.report.index_cached is cached
            np.testing.assert_array_equal(frames.data, expected.data)
            np.testing.assert_array_equal(frames.timestamps, expected.timestamps)
            assert frames.info == expected.info
            assert frames.report.packets_fed == expected.report.packets_fed


def test_tighter_limits_hold_for_a_video_whose_index_is_cached(path):
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=1)
        with pytest.raises(LimitError, match="max_packets"):
            pool.load(path, num_frames=1, limits=Limits(max_packets=3))


def test_a_pool_caches_bytes_by_the_callers_key_or_by_their_hash(path):
    content = path.read_bytes()
    with Pool(threads=1) as pool:
        for cached in (False, True):
            assert pool.load(content, num_frames=1, cache_key="clip").report.index_cached is cached
            assert not pool.load(content, num_frames=1).report.index_cached
        with pytest.raises(OptionsError, match="cache_key is a list"):
            pool.submit(content, cache_key=[1])
    with Pool(threads=1, hash_content=True) as pool:
        for cached in (False, True):
            assert pool.load(content, num_frames=1).report.index_cached is cached


def test_a_pool_without_a_cache_caches_nothing(path):
    with Pool(threads=1, cache=0) as pool:
        for _ in range(2):
            assert not pool.load(path, num_frames=1).report.index_cached


# sources that change


def two_clips() -> tuple[bytes, bytes]:
    """Return two videos of the same number of bytes."""
    contents = [CLIPS[name].path().read_bytes() for name in ("base.mp4", "mpeg4.mp4")]
    size = max(map(len, contents))
    first, second = (content + bytes(size - len(content)) for content in contents)
    return first, second


CHANGES = ["write", "write and set the time back", "rename"]


def change_file(path: Path, content: bytes, how: str) -> None:
    """Replace the content of a file, in place or by renaming another file over it."""
    before = path.stat()
    if how == "rename":
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").rename(path)
    else:
        with path.open("r+b") as file:
            file.write(content)
    if how == "write and set the time back":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("moment", ["before opening", "before reading the packets", "after reading the packets"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changes_during_a_request_is_not_cached(tmp_path, monkeypatch, how, moment):
    content, other = two_clips()
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    wait_until_cacheable(path)
    changes = [lambda: change_file(path, other, how)]
    get_index = Job.get_index

    def change() -> None:
        if changes:
            changes.pop()()

    def get_index_with_change(self, source, limits, read):
        def read_with_change():
            if moment == "before reading the packets":
                change()
            found = read()
            change()
            return found

        return get_index(self, source, limits, read_with_change)

    monkeypatch.setattr(Job, "get_index", get_index_with_change)
    with Pool(threads=1) as pool:
        if moment == "before opening":
            monkeypatch.setattr(Job, "start", lambda job, start=Job.start: (change(), start(job)))
        with contextlib.suppress(TelecineError):
            pool.load(path, num_frames=4)
        assert not changes and pool.status().indexes_cached == 0
        np.testing.assert_array_equal(pool.load(path, num_frames=4).data, load(path, num_frames=4).data)


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changed_is_not_decoded_by_its_old_index(tmp_path, how):
    content, other = two_clips()
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    wait_until_cacheable(path)
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=4)
        assert pool.load(path, num_frames=4).report.index_cached
        change_file(path, other, how)
        frames = pool.load(path, num_frames=4)
        assert not frames.report.index_cached
        np.testing.assert_array_equal(frames.data, load(path, num_frames=4).data)


def test_a_file_that_changes_while_its_request_is_queued_is_not_decoded_by_its_old_index(tmp_path, monkeypatch):
    content, other = two_clips()
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    wait_until_cacheable(path)
    with Pool(threads=1) as pool:
        pool.load(path, num_frames=4)
        start = Job.start
        monkeypatch.setattr(Job, "start", lambda job: (change_file(path, other, "write"), start(job)))
        frames = pool.load(path, num_frames=4)
        assert not frames.report.index_cached
        np.testing.assert_array_equal(frames.data, load(other, num_frames=4).data)
