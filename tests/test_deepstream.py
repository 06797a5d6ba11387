"""The DeepStream backend, over a stand-in for the library."""

from __future__ import annotations

import logging
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import telecine
from clips import CLIPS, read_number
from fake_nvidia import FakeDeepStream, fake_torch, install
from telecine.backends import deepstream
from telecine.backends.deepstream import DeepStreamBackend
from telecine.contract import CASES, Case, run

CLIP = CLIPS["h264_pyramid.mp4"]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDeepStream]:
    """Makes the library, with a backend that has seen no request yet."""

    def make(**faults: Any) -> FakeDeepStream:
        library = FakeDeepStream(**faults)
        package: Any = types.ModuleType("nvidia")
        package.deepstream_videodecode = library
        install(monkeypatch, nvidia=package, nvidia__deepstream_videodecode=library, torch=fake_torch())
        monkeypatch.setitem(sys.modules["telecine.backends"]._made, "deepstream", DeepStreamBackend())
        monkeypatch.setattr(deepstream, "_GRACE", 0.3)
        monkeypatch.delenv("DS_SYNC_COPY", raising=False)
        return library

    return make


def numbers(frames: telecine.Frames) -> list[int]:
    return [read_number(image) for image in frames.data]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(start: Callable[..., FakeDeepStream], case: Case) -> None:
    start()
    outcome = run(case, "deepstream")
    allowed = ("same", "differs") if case.name in ("noise", "size", "ten-bit") else ("same",)
    assert outcome.verdict in allowed, outcome


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "hevc_open_gop.mp4", "hevc_cut.mp4", "trimmed.mp4", "vfr.mp4"])
def test_no_frame_is_a_neighbour(start: Callable[..., FakeDeepStream], name: str) -> None:
    start()
    clip = CLIPS[name]
    for wanted in (range(clip.num_frames), range(0, clip.num_frames, 7)):
        frames = telecine.load(clip.path(), backend="deepstream", indices=list(wanted))
        assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
        assert frames.indices.tolist() == list(wanted)


def test_one_call_where_nothing_is_missing(start: Callable[..., FakeDeepStream]) -> None:
    """By index, with the codec as a hint, and the whole count checked."""
    library = start()
    frames = telecine.load(CLIP.path(), backend="deepstream", indices=[0, 9, 40])
    assert numbers(frames) == [0, 9, 40]
    assert [(call["codec"], call["times"]) for call in library.calls] == [("h264", None)]


def test_partial_results_are_what_they_really_are(start: Callable[..., FakeDeepStream]) -> None:
    """A picture that the decoder does not give shifts all later ones, and nobody says so."""
    start(drops=(9,))
    frames = telecine.load(CLIP.path(), backend="deepstream", indices=list(range(24)))
    assert numbers(frames) == frames.indices.tolist()
    assert 9 in frames.report.lost
    assert {0, 3, 6} <= set(frames.indices.tolist())
    assert set(frames.indices.tolist()) | set(frames.report.lost) == set(range(24))


def test_the_last_frame_is_given(start: Callable[..., FakeDeepStream]) -> None:
    start()
    assert numbers(telecine.load(CLIP.path(), backend="deepstream", indices=[59])) == [59]


def test_a_movie_box_at_the_end_is_no_matter(start: Callable[..., FakeDeepStream], monkeypatch: Any) -> None:
    """GStreamer refuses MP4 with more than 10 MB in front of it; what the library gets is another file."""
    library = start()
    seen = []
    decode = library._decode
    monkeypatch.setattr(library, "_decode", lambda pool, data, **more: seen.append(data) or decode(pool, data, **more))
    telecine.load(CLIPS["base.mp4"].path(), backend="deepstream", num_frames=2)
    assert all(data.startswith(b"\x1a\x45\xdf\xa3") for data in seen)


def test_a_dead_worker_costs_one_request_and_its_pool(start: Callable[..., FakeDeepStream]) -> None:
    """The library would wait for ever."""
    library = start(dead=1)
    telecine.load(CLIP.path(), backend="deepstream", num_frames=1)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError, match="no answer"):
        telecine.load(CLIP.path(), backend="deepstream", num_frames=1, timeout_sec=0.2)
    assert time.monotonic() - began < 5
    assert numbers(telecine.load(CLIP.path(), backend="deepstream", indices=[5])) == [5]
    assert len(library.pools) == 2


def test_the_timeout_of_the_request_holds_too(start: Callable[..., FakeDeepStream]) -> None:
    library = start(dead=0)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError):
        telecine.load(CLIP.path(), backend="deepstream", num_frames=1, timeout=0.4)
    assert time.monotonic() - began < 5
    assert library.calls[0]["timeout"] <= 0.4


def test_after_its_own_timeout_the_pool_is_not_used_again(start: Callable[..., FakeDeepStream]) -> None:
    library = start(slow=True)
    with pytest.raises(telecine.DeadlineError, match="timeout_sec is 2"):
        telecine.load(CLIP.path(), backend="deepstream", num_frames=1, timeout_sec=2)
    library.slow = False
    telecine.load(CLIP.path(), backend="deepstream", num_frames=1)
    assert len(library.pools) == 2
    waited = time.monotonic() + 5
    while not library.pools[0].closed and time.monotonic() < waited:
        time.sleep(0.01)
    assert library.pools[0].closed


def test_one_pool_for_all(start: Callable[..., FakeDeepStream], caplog: pytest.LogCaptureFixture) -> None:
    """Made by the first of many requests at once; its size holds, and another wish is answered once."""
    library = start()
    assert library.pools == []
    threads = [
        threading.Thread(
            target=telecine.load, args=(CLIP.path(),), kwargs={"backend": "deepstream", "num_frames": 1, "pool_size": 3}
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [pool.num_workers for pool in library.pools] == [3]
    with caplog.at_level(logging.WARNING, "telecine"):
        for _ in range(2):
            telecine.load(CLIP.path(), backend="deepstream", num_frames=1, pool_size=5)
    assert [record.getMessage() for record in caplog.records] == [
        "pool_size is 5; it stays 3, as the first request said"
    ]


@pytest.mark.parametrize(
    ("option", "environment", "size"),
    [
        (None, {}, 8),
        (None, {"VLLM_MEDIA_LOADING_THREAD_COUNT": "4"}, 4),
        (None, {"TELECINE_POOL_SIZE": "2", "VLLM_MEDIA_LOADING_THREAD_COUNT": "4"}, 2),
        (None, {"TELECINE_POOL_SIZE": "nonsense"}, 8),
        (None, {"TELECINE_POOL_SIZE": "99"}, 16),
        (40, {}, 16),
        (0, {}, 1),
        (6, {"TELECINE_POOL_SIZE": "2"}, 6),
    ],
)
def test_pool_size(
    start: Callable[..., FakeDeepStream],
    monkeypatch: pytest.MonkeyPatch,
    option: int | None,
    environment: dict[str, str],
    size: int,
) -> None:
    library = start()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    telecine.load(CLIP.path(), backend="deepstream", num_frames=1, pool_size=option)
    assert library.pools[0].num_workers == size


def test_surfaces_are_copied_only_when_they_are_ready(
    start: Callable[..., FakeDeepStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    import os

    telecine.load(CLIP.path(), backend="deepstream", num_frames=1)
    assert os.environ["DS_SYNC_COPY"] == "1"
    monkeypatch.delenv("DS_SYNC_COPY")


def test_rotation_is_applied(start: Callable[..., FakeDeepStream]) -> None:
    start()
    frames = telecine.load(CLIPS["rotated90.mp4"].path(), backend="deepstream", num_frames=3)
    expected = telecine.load(CLIPS["rotated90.mp4"].path(), backend="pyav", num_frames=3)
    assert np.abs(frames.data.astype(np.int16) - expected.data).max() <= 2


def test_other_codecs_are_refused(start: Callable[..., FakeDeepStream]) -> None:
    start()
    with pytest.raises(telecine.BackendUnavailable, match="h264 and hevc"):
        telecine.load(CLIPS["vp9_realtime.webm"].path(), backend="deepstream")


def test_without_a_gpu_it_is_not_usable(start: Callable[..., FakeDeepStream], monkeypatch: Any) -> None:
    start()
    install(monkeypatch, torch=fake_torch(gpus=0))
    with pytest.raises(telecine.BackendUnavailable, match="no NVIDIA GPU"):
        telecine.load(CLIP.path(), backend="deepstream")


def test_each_size_has_a_file_of_its_own(start: Callable[..., FakeDeepStream]) -> None:
    """The library goes on with the first size, whatever comes."""
    start()
    frames = telecine.load(CLIPS["size_change.ts"].path(), backend="deepstream", indices=[5, 29, 30, 45, 59])
    assert numbers(frames) == [5, 29, 30, 45, 59]
