"""Packet indexes remembered: by content, within bounds, and never somebody else's."""

from __future__ import annotations

import numpy as np
import pytest

from clips import CLIPS, clips
from telecine import LimitError, Limits, Pool, load
from telecine.cache import IndexCache, key_of
from telecine.demux import Demuxer
from telecine.errors import DeadlineError
from telecine.index import read_index
from telecine.limits import Deadline
from telecine.probe import describe
from telecine.source import open_source

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


def test_a_pool_without_a_cache_remembers_nothing():
    with Pool(threads=1, cache=0) as pool:
        for _ in range(2):
            assert not pool.load(CLIPS["base.mp4"].path(), num_frames=1).report.index_cached
