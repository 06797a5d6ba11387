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
from support.clips import CLIPS, read_number
from support.fake_nvidia import FakeDeepStream, fake_torch, install
from telecine.backends.deepstream import backend as deepstream
from telecine.backends.deepstream.backend import DeepStreamBackend
from telecine.backends.remux import output_buffers as placing
from telecine.testing import CASES, Case, run
from telecine.testing.clips import clip as contract_clip

CLIP = CLIPS["h264_pyramid.mp4"]
_REFUSED = {"ten-bit", "interlaced", "odd-size"}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDeepStream]:
    """Makes the library, with a backend that has seen no request yet."""

    def make(**faults: Any) -> FakeDeepStream:
        library = FakeDeepStream(**faults)
        package: Any = types.ModuleType("nvidia")
        package.deepstream_videodecode = library
        install(monkeypatch, nvidia=package, nvidia__deepstream_videodecode=library, torch=fake_torch())
        monkeypatch.setitem(sys.modules["telecine.backends.base"]._made, "deepstream", DeepStreamBackend())
        monkeypatch.setattr(deepstream, "_GRACE_SECONDS", 0.3)
        # the clips of the tests are smaller than what the hardware takes of HEVC
        monkeypatch.setitem(deepstream._SIDE_LIMITS, "hevc", (16, 8192))
        monkeypatch.delenv("DS_SYNC_COPY", raising=False)
        return library

    return make


def numbers(frames: telecine.Frames) -> list[int]:
    return [read_number(image) for image in frames.data]


def load(name: str, **arguments: Any) -> telecine.Frames:
    return telecine.load(CLIPS[name].path(), backend="deepstream", **arguments)


@pytest.mark.parametrize(("bound", "pinned"), [(1 << 30, [True]), (1000, [False])])
def test_frames_are_copied_once_into_pinned_memory_up_to_a_bound(
    start: Callable[..., FakeDeepStream], monkeypatch: pytest.MonkeyPatch, bound: int, pinned: list[bool]
) -> None:
    """What torch has pinned it never gives back to the system."""
    start()
    made: list[bool] = []
    empty = sys.modules["torch"].empty

    def watched(*args: Any, pin_memory: bool = False, **more: Any) -> Any:
        made.append(pin_memory)
        return empty(*args, pin_memory=pin_memory, **more)

    monkeypatch.setattr(sys.modules["torch"], "empty", watched)
    monkeypatch.setattr(placing, "_MOST_PINNED", bound)
    frames = load("h264_pyramid.mp4", indices=[3, 40, 3])
    assert numbers(frames) == [3, 40, 3]
    assert made == pinned
    made.clear()
    # what must be turned or resized comes to memory of its own first
    assert numbers(load("h264_pyramid.mp4", indices=[7], size=96)) == [7]
    assert made == 2 * pinned


def test_where_the_system_pins_no_more_other_memory_does(
    start: Callable[..., FakeDeepStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    empty = sys.modules["torch"].empty

    def poor(*args: Any, pin_memory: bool = False, **more: Any) -> Any:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*args, **more)

    monkeypatch.setattr(sys.modules["torch"], "empty", poor)
    assert numbers(load("h264_pyramid.mp4", indices=[3, 40])) == [3, 40]


def closes(pool: Any) -> bool:
    """Whether a pool is shut down, which another thread does, soon."""
    waited = time.monotonic() + 5
    while not pool.closed and time.monotonic() < waited:
        time.sleep(0.01)
    return bool(pool.closed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(start: Callable[..., FakeDeepStream], case: Case) -> None:
    start()
    outcome = run(case, "deepstream")
    allowed = (
        {"refused"} if case.name in _REFUSED else {"same", "differs"} if case.name in ("noise", "size") else {"same"}
    )
    assert outcome.verdict in allowed, outcome


@pytest.mark.parametrize(
    "name",
    [
        "h264_open_gop.mp4", "h264_cut.mp4", "h264_many_refs.mp4", "h264_no_vui.ts", "h264_uneven_keys.mp4",
        "hevc_open_gop.mp4", "hevc_cut.mp4", "hevc_cra_first.mp4", "hevc_radl.mp4", "hevc_temporal_layers.mp4",
        "hevc_raw.hevc", "trimmed.mp4", "vfr.mp4", "repeated_times.mkv", "few_times.ts", "negative_offsets.mp4",
        "size_change.ts",
    ],
)  # fmt: skip
def test_no_frame_is_a_neighbour_and_none_is_lost(start: Callable[..., FakeDeepStream], name: str) -> None:
    start()
    clip = CLIPS[name]
    for wanted in (range(clip.num_frames), range(0, clip.num_frames, 7), [clip.num_frames - 1]):
        frames = load(name, indices=list(wanted))
        assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
        assert frames.indices.tolist() == list(wanted)


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "h264_uneven_keys.mp4"])
def test_one_call_however_far_apart(start: Callable[..., FakeDeepStream], name: str) -> None:
    """By number, also where the plan restarts at points that look back."""
    library = start()
    assert numbers(load(name, indices=[0, 29, 59])) == [0, 29, 59]
    assert len(library.calls) == 1


def test_another_stream_gets_another_decoder(start: Callable[..., FakeDeepStream]) -> None:
    """One that was made for fewer pictures gives wrong ones: the size of the pictures is the same in all of these."""
    library = start()
    for _ in range(2):
        for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_many_refs.mp4"):
            assert numbers(load(name, indices=[7, 40], pool_size=1)) == [7, 40]
    assert len(library.pools) == 1
    assert len({call["codec"] for call in library.calls}) == 3
    assert all(call["codec"].startswith("h264:") for call in library.calls)


def test_a_decoder_of_the_same_kind_is_used_again(start: Callable[..., FakeDeepStream]) -> None:
    library = start()
    for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_no_b.mp4", "h264_pyramid.mp4"):
        load(name, indices=[7])
    assert [pool.hint for pool in library.pools] == list(dict.fromkeys(call["codec"] for call in library.calls))


def test_the_one_that_was_idle_longest_is_made_anew(start: Callable[..., FakeDeepStream]) -> None:
    library = start()
    for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_no_b.mp4", "h264_many_refs.mp4"):
        load(name, indices=[7], pool_size=2)
    hints = [call["codec"] for call in library.calls]
    assert [pool.hint for pool in library.pools] == [hints[0], hints[3]]


@pytest.mark.parametrize("name", ["bt709", "bt709-full", "bt601", "untagged"])
def test_colours_are_written_where_the_library_looks(start: Callable[..., FakeDeepStream], name: str) -> None:
    """It goes by the primaries, which these clips do not tell, and keeps to those it saw first."""
    start()
    for other in ("bt709-full", name):
        frames = telecine.load(contract_clip(other).data, backend="deepstream", pool_size=1)
    assert np.abs(frames.data.astype(np.int16) - (192, 64, 32)).max() <= 4


def test_partial_results_are_what_they_really_are(start: Callable[..., FakeDeepStream]) -> None:
    """A picture that the decoder does not give shifts all later ones, and nobody says so."""
    start(drops=(9,))
    frames = load("h264_pyramid.mp4", indices=list(range(24)))
    assert numbers(frames) == frames.indices.tolist()
    assert 9 in frames.report.lost
    assert {0, 3, 6} <= set(frames.indices.tolist())
    assert set(frames.indices.tolist()) | set(frames.report.lost) == set(range(24))


def test_what_a_gap_leaves_is_not_asked_for(start: Callable[..., FakeDeepStream]) -> None:
    """The count would be right, and the pictures would not."""
    library = start()
    known = contract_clip("bad-packet")
    frames = telecine.load(known.data, backend="deepstream")
    assert set(frames.report.lost) == known.lost
    assert len(library.calls) == 1


@pytest.mark.parametrize("leading", [False, True])
def test_what_looks_back_at_nothing_that_is_there_may_come_or_not(
    start: Callable[..., FakeDeepStream], leading: bool
) -> None:
    start(leading=leading)
    clip = CLIPS["h264_cut.mp4"]
    frames = load("h264_cut.mp4")
    assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
    assert not frames.report.lost


def test_a_movie_box_at_the_end_is_no_matter(start: Callable[..., FakeDeepStream]) -> None:
    """GStreamer refuses MP4 with more than 10 MB in front of it; what the library gets is another file."""
    library = start()
    load("base.mp4", num_frames=2)
    assert all(call["data"].startswith(b"\x1a\x45\xdf\xa3") for call in library.calls)


def test_a_dead_worker_costs_one_request_and_itself(start: Callable[..., FakeDeepStream]) -> None:
    """The library would wait for ever."""
    library = start(dead=1)
    load("h264_pyramid.mp4", num_frames=1)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError, match="no answer"):
        load("h264_pyramid.mp4", num_frames=1, timeout_sec=0.2)
    assert time.monotonic() - began < 5
    assert numbers(load("h264_pyramid.mp4", indices=[5])) == [5]
    assert len(library.pools) == 2
    assert closes(library.pools[0])


def test_the_timeout_of_the_request_holds_too(start: Callable[..., FakeDeepStream]) -> None:
    library = start(dead=0)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError):
        load("h264_pyramid.mp4", num_frames=1, timeout=0.4)
    assert time.monotonic() - began < 5
    assert library.calls[0]["timeout"] <= 0.4


def test_after_its_own_timeout_a_worker_is_not_used_again(start: Callable[..., FakeDeepStream]) -> None:
    library = start(slow=True)
    with pytest.raises(telecine.DeadlineError, match="timeout_sec is 2"):
        load("h264_pyramid.mp4", num_frames=1, timeout_sec=2)
    library.slow = False
    load("h264_pyramid.mp4", num_frames=1)
    assert len(library.pools) == 2
    assert closes(library.pools[0])


def test_what_the_hardware_refuses_is_refused_with_its_reason(start: Callable[..., FakeDeepStream]) -> None:
    """And soon: each try costs a worker."""
    library = start(fails="Failed to process frame.")
    with pytest.raises(telecine.UnsupportedVideoError, match="cannot decode it: Failed to process frame"):
        load("h264_long_gop.mp4")
    assert len(library.calls) == 2
    assert all(closes(pool) for pool in library.pools)


def test_waiting_for_a_worker_ends_with_the_deadline(start: Callable[..., FakeDeepStream]) -> None:
    start(dead=0)

    def occupy() -> None:
        with pytest.raises(telecine.DeadlineError):
            load("h264_pyramid.mp4", timeout=1.5, pool_size=1)

    first = threading.Thread(target=occupy)
    first.start()
    time.sleep(0.5)
    with pytest.raises(telecine.DeadlineError, match="waiting for a worker"):
        load("h264_pyramid.mp4", timeout=0.3)
    first.join()


def test_workers_are_made_as_they_are_needed(
    start: Callable[..., FakeDeepStream], caplog: pytest.LogCaptureFixture
) -> None:
    """No more of them than the first request says, and another wish is answered once."""
    library = start()
    assert library.pools == []
    threads = [
        threading.Thread(target=load, args=("h264_pyramid.mp4",), kwargs={"num_frames": 1, "pool_size": 3})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(library.pools) <= 3
    with caplog.at_level(logging.WARNING, "telecine"):
        for _ in range(2):
            load("h264_pyramid.mp4", num_frames=1, pool_size=5)
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
    start()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    load("h264_pyramid.mp4", num_frames=1, pool_size=option)
    backend: Any = sys.modules["telecine.backends.base"]._made["deepstream"]
    assert backend._workers.size == size


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vp9_realtime.webm", "h264 and hevc"),
        ("hevc_main10.mp4", "8 bits rightly, not yuv420p10le"),
        ("h264_444.mp4", "4:2:0"),
        ("h264_422.mp4", "4:2:0"),
        ("h264_mbaff.mp4", "interlaced"),
        ("h264_paff.mp4", "interlaced"),
        ("colour_bt2020nc_tv.mp4", "not by bt2020nc"),
    ],
)
def test_what_it_cannot_do_rightly_is_refused(start: Callable[..., FakeDeepStream], name: str, reason: str) -> None:
    library = start()
    with pytest.raises(telecine.UnsupportedVideoError, match=reason):
        load(name)
    assert not library.calls


def test_pictures_that_are_too_small_for_the_hardware_are_refused(
    start: Callable[..., FakeDeepStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs on those."""
    start()
    monkeypatch.setitem(deepstream._SIDE_LIMITS, "hevc", (144, 8192))
    with pytest.raises(telecine.UnsupportedVideoError, match="144 to 8192 pixels a side in hevc, not 96x64"):
        load("hevc_cut.mp4")


def test_without_a_gpu_it_is_not_usable(start: Callable[..., FakeDeepStream], monkeypatch: Any) -> None:
    start()
    install(monkeypatch, torch=fake_torch(gpus=0))
    with pytest.raises(telecine.BackendUnavailable, match="no NVIDIA GPU"):
        load("h264_pyramid.mp4")


def test_each_size_has_a_file_of_its_own(start: Callable[..., FakeDeepStream]) -> None:
    """The library goes on with the first size, whatever comes."""
    library = start()
    assert numbers(load("size_change.ts", indices=[5, 29, 30, 45, 59])) == [5, 29, 30, 45, 59]
    assert len(library.calls) == 2
