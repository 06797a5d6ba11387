"""The DeepStream backend, with a fake library."""

from __future__ import annotations

import logging
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from support.fake_deepstream import FakeDeepStream
from support.fake_nvidia import fake_torch, install
from support.ffmpeg_cli import ffmpeg
from telecine.backends import cuda_output, registry
from telecine.backends.deepstream import backend as deepstream
from telecine.backends.deepstream.backend import DeepStreamBackend
from telecine.backends.remux import output_buffers
from telecine.testing import CASES, Case, run_case
from telecine.testing.clips import make_clip

CLIP = CLIPS["h264_pyramid.mp4"]
Start = Callable[..., FakeDeepStream]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that installs the fake library and a new backend."""

    def make(**faults: Any) -> FakeDeepStream:
        library = FakeDeepStream(**faults)
        package: Any = types.ModuleType("nvidia")
        package.deepstream_videodecode = library
        install(monkeypatch, nvidia=package, nvidia__deepstream_videodecode=library, torch=fake_torch())
        monkeypatch.setitem(registry._instances, "deepstream", DeepStreamBackend())
        monkeypatch.setattr(deepstream, "_GRACE_SECONDS", 0.3)
        # the test clips are smaller than the hardware's minimum for HEVC
        monkeypatch.setitem(deepstream._MIN_SIZES, "hevc", (16, 16))
        monkeypatch.setattr(deepstream, "hardware_refusal", lambda request: None)
        monkeypatch.delenv("DS_SYNC_COPY", raising=False)
        return library

    return make


def numbers(frames: telecine.Frames) -> list[int]:
    return [read_number(image) for image in frames.data]


def load(name: str, **arguments: Any) -> telecine.Frames:
    return telecine.load(CLIPS[name].path(), backend="deepstream", **arguments)


@pytest.mark.parametrize(("bound", "pinned"), [(1 << 30, [True]), (1000, [False])])
def test_frames_are_copied_to_pinned_memory_up_to_a_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch, bound: int, pinned: list[bool]
) -> None:
    """Torch never returns pinned memory to the system."""
    start()
    made: list[bool] = []
    empty = sys.modules["torch"].empty

    def watched(*args: Any, pin_memory: bool = False, **more: Any) -> Any:
        made.append(pin_memory)
        return empty(*args, pin_memory=pin_memory, **more)

    monkeypatch.setattr(sys.modules["torch"], "empty", watched)
    monkeypatch.setattr(output_buffers, "_MAX_PINNED_BYTES", bound)
    frames = load("h264_pyramid.mp4", indices=[3, 40, 3])
    assert numbers(frames) == [3, 40, 3]
    assert made == pinned
    made.clear()
    # a picture that is rotated or resized is copied to a buffer first
    assert numbers(load("h264_pyramid.mp4", indices=[7], size=96)) == [7]
    assert made == 2 * pinned


def test_pageable_memory_is_used_if_no_more_memory_can_be_pinned(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    empty = sys.modules["torch"].empty

    def fails_to_pin(*args: Any, pin_memory: bool = False, **more: Any) -> Any:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*args, **more)

    monkeypatch.setattr(sys.modules["torch"], "empty", fails_to_pin)
    assert numbers(load("h264_pyramid.mp4", indices=[3, 40])) == [3, 40]


def is_closed_soon(pool: Any) -> bool:
    """Return True if another thread shuts a pool down within five seconds."""
    waited = time.monotonic() + 5
    while not pool.closed and time.monotonic() < waited:
        time.sleep(0.01)
    return bool(pool.closed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(start: Start, case: Case) -> None:
    start()
    outcome = run_case(case, "deepstream")
    differs = {"same", "differs"} if case.name in ("damaged-picture", "size") else {"same"}
    allowed = {"refused"} if case.name in DeepStreamBackend.refused_cases else differs
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
def test_every_frame_is_the_wanted_one_and_none_is_lost(start: Start, name: str) -> None:
    start()
    clip = CLIPS[name]
    for wanted in (range(clip.num_frames), range(0, clip.num_frames, 7), [clip.num_frames - 1]):
        frames = load(name, indices=list(wanted))
        assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
        assert frames.indices.tolist() == list(wanted)


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "h264_uneven_keys.mp4"])
def test_distant_frames_are_decoded_in_one_call(start: Start, name: str) -> None:
    """Even if the plan has several decode passes that start at open random access points."""
    library = start()
    assert numbers(load(name, indices=[0, 29, 59])) == [0, 29, 59]
    assert len(library.calls) == 1


def test_streams_with_other_parameter_sets_get_another_decoder(start: Start) -> None:
    """All of these have the same size. A decoder created for fewer reference pictures returns wrong frames."""
    library = start()
    for _ in range(2):
        for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_many_refs.mp4"):
            assert numbers(load(name, indices=[7, 40], pool_size=1)) == [7, 40]
    assert len(library.pools) == 1
    assert len({call["codec"] for call in library.calls}) == 3
    assert all(call["codec"].startswith("h264:") for call in library.calls)


def test_a_stream_with_known_parameter_sets_reuses_its_decoder(start: Start) -> None:
    library = start()
    for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_no_b.mp4", "h264_pyramid.mp4"):
        load(name, indices=[7])
    assert [pool.hint for pool in library.pools] == list(dict.fromkeys(call["codec"] for call in library.calls))


def test_the_worker_idle_for_longest_is_replaced_for_a_new_kind_of_stream(start: Start) -> None:
    library = start()
    for name in ("h264_no_b.mp4", "h264_pyramid.mp4", "h264_no_b.mp4", "h264_many_refs.mp4"):
        load(name, indices=[7], pool_size=2)
    hints = [call["codec"] for call in library.calls]
    assert [pool.hint for pool in library.pools] == [hints[0], hints[3]]


@pytest.mark.parametrize("name", ["bt709", "bt709-full", "bt601", "untagged"])
def test_colors_are_right_although_the_library_reads_only_the_primaries(start: Start, name: str) -> None:
    """These clips have no primaries, and a decoder keeps those of its first stream."""
    start()
    for other in ("bt709-full", name):
        frames = telecine.load(make_clip(other).data, backend="deepstream", pool_size=1)
    assert np.abs(frames.data.astype(np.int16) - (192, 64, 32)).max() <= 4


def test_a_missing_picture_shifts_no_later_frame(start: Start) -> None:
    """The library gives later pictures the numbers of earlier ones then, without an error."""
    start(drops=(9,))
    frames = load("h264_pyramid.mp4", indices=list(range(24)))
    assert numbers(frames) == frames.indices.tolist()
    assert 9 in frames.report.lost
    assert {0, 3, 6} <= set(frames.indices.tolist())


def test_frames_that_depend_on_a_missing_packet_are_lost_without_a_second_call(start: Start) -> None:
    """The number of pictures would be right, but their pixels wrong."""
    library = start()
    known = make_clip("corrupt-packet")
    frames = telecine.load(known.data, backend="deepstream")
    assert set(frames.report.lost) == known.lost
    assert len(library.calls) == 1


@pytest.mark.parametrize("leading", [False, True])
def test_undecodable_leading_pictures_may_or_may_not_be_returned(start: Start, leading: bool) -> None:
    start(leading=leading)
    clip = CLIPS["h264_cut.mp4"]
    frames = load("h264_cut.mp4")
    assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
    assert not frames.report.lost


def test_mp4_with_its_index_at_the_end_is_decoded(start: Start) -> None:
    """GStreamer refuses such files if the index is after 10 MB; the library gets a Matroska file instead."""
    library = start()
    load("base.mp4", num_frames=2)
    assert all(call["data"].startswith(b"\x1a\x45\xdf\xa3") for call in library.calls)


@pytest.mark.timing
def test_a_dead_worker_fails_one_request_and_is_replaced(start: Start) -> None:
    """The library itself waits forever."""
    library = start(dead=1)
    load("h264_pyramid.mp4", num_frames=1)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError, match="no answer"):
        load("h264_pyramid.mp4", num_frames=1, timeout_sec=0.2)
    assert time.monotonic() - began < 5
    assert numbers(load("h264_pyramid.mp4", indices=[5])) == [5]
    assert len(library.pools) == 2
    assert is_closed_soon(library.pools[0])


@pytest.mark.timing
def test_the_request_timeout_limits_the_call(start: Start) -> None:
    library = start(dead=0)
    began = time.monotonic()
    with pytest.raises(telecine.DeadlineError):
        load("h264_pyramid.mp4", num_frames=1, timeout=0.4)
    assert time.monotonic() - began < 5
    assert library.calls[0]["timeout"] <= 0.4


def test_a_worker_is_replaced_after_the_librarys_own_timeout(start: Start) -> None:
    library = start(slow=True)
    with pytest.raises(telecine.DeadlineError, match="timeout_sec is 2"):
        load("h264_pyramid.mp4", num_frames=1, timeout_sec=2)
    library.slow = False
    load("h264_pyramid.mp4", num_frames=1)
    assert len(library.pools) == 2
    assert is_closed_soon(library.pools[0])


def test_a_video_that_fails_at_its_first_picture_is_refused_with_the_librarys_reason(start: Start) -> None:
    """After two calls: each attempt costs a worker."""
    library = start(fails="Failed to process frame.")
    with pytest.raises(telecine.UnsupportedVideoError, match="cannot decode it: Failed to process frame"):
        load("h264_long_gop.mp4")
    assert len(library.calls) == 2
    assert all(is_closed_soon(pool) for pool in library.pools)


def test_a_deadline_ends_the_wait_for_a_worker(start: Start) -> None:
    start(dead=0)

    def occupy() -> None:
        with pytest.raises(telecine.DeadlineError):
            load("h264_pyramid.mp4", timeout=1.5, pool_size=1)

    first = threading.Thread(target=occupy)
    first.start()
    time.sleep(0.5)
    with pytest.raises(telecine.DeadlineError, match="waiting for a decoder session"):
        load("h264_pyramid.mp4", timeout=0.3)
    first.join()


def test_workers_are_created_on_demand_up_to_the_first_pool_size(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A different pool_size is ignored later, with one warning."""
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
def test_pool_size_comes_from_the_option_or_the_environment(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    option: int | None,
    environment: dict[str, str],
    size: int,
) -> None:
    start()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    load("h264_pyramid.mp4", num_frames=1, pool_size=option)
    backend: Any = registry._instances["deepstream"]
    assert backend._workers.size == size


def test_ds_sync_copy_is_set(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    import os

    telecine.load(CLIP.path(), backend="deepstream", num_frames=1)
    assert os.environ["DS_SYNC_COPY"] == "1"
    monkeypatch.delenv("DS_SYNC_COPY")


def test_rotated_video_matches_the_cpu_backend(start: Start) -> None:
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
def test_videos_with_wrong_output_are_refused_before_any_call(start: Start, name: str, reason: str) -> None:
    library = start()
    with pytest.raises(telecine.UnsupportedVideoError, match=reason):
        load(name)
    assert not library.calls


@pytest.mark.parametrize(
    ("codec", "size", "allowed"),
    [
        ("libx265", "96x64", "from 144x144 to 8192x8192 in hevc"),
        ("libx264", "32x32", "from 48x16 to 4096x4096 in h264"),
        ("libx264", "32x96", "from 48x16 to 4096x4096 in h264"),
    ],
)
def test_pictures_below_the_hardware_minimum_are_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codec: str, size: str, allowed: str
) -> None:
    """The library hangs on them."""
    library = start()
    monkeypatch.setitem(deepstream._MIN_SIZES, "hevc", (144, 144))
    clip = tmp_path / "small.mp4"
    ffmpeg(["-f", "lavfi", "-i", f"testsrc=s={size}:r=10:d=0.3", "-pix_fmt", "yuv420p", "-c:v", codec, str(clip)])
    with pytest.raises(telecine.UnsupportedVideoError, match=f"{allowed}, not {size}"):
        telecine.load(clip, backend="deepstream")
    assert not library.calls


def test_the_gpu_is_asked_for_its_minimum_if_the_extension_is_installed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = start()
    monkeypatch.setattr(deepstream, "hardware_refusal", cuda_output.hardware_refusal)

    def refusal(device: int, codec: str, chroma: str, depth: int, width: int, height: int) -> str:
        return f"{width}x{height} is below the minimum for {codec} {chroma} {depth}"

    extension = types.SimpleNamespace(refusal=refusal, NvdecError=RuntimeError)
    monkeypatch.setattr(cuda_output, "load_extension", lambda: extension)
    with pytest.raises(telecine.UnsupportedVideoError, match="192x144 is below the minimum for h264 420 8"):
        load("h264_pyramid.mp4")
    assert not library.calls


def test_without_a_gpu_the_backend_is_unavailable(start: Start, monkeypatch: Any) -> None:
    start()
    install(monkeypatch, torch=fake_torch(gpus=0))
    with pytest.raises(telecine.BackendUnavailable, match="no NVIDIA GPU"):
        load("h264_pyramid.mp4")


@pytest.fixture(params=["h264.ts", "h264.mkv", "hevc.ts", "hevc.mkv"])
def size_change(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A clip whose pictures are 96x64 and later 160x96."""
    codec, _, suffix = str(request.param).partition(".")
    stream = CLIPS["part_sizes.h264"].path()
    if codec == "hevc":
        halves = []
        for name in ("part_small.h264", "part_bigger.h264"):
            half = tmp_path / f"{name}.hevc"
            options = ["-c:v", "libx265", "-x265-params", "bframes=0:log-level=error", str(half)]
            ffmpeg(["-r", "30", "-i", str(CLIPS[name].path()), *options])
            halves.append(half.read_bytes())
        stream = tmp_path / "joined.hevc"
        stream.write_bytes(b"".join(halves))
    clip = tmp_path / f"clip.{suffix}"
    times = ["-bsf:v", "setts=ts=N*40000"]  # in the time base of a raw stream
    ffmpeg(["-r", "30", "-i", str(stream), "-c", "copy", *times, str(clip)])
    return clip


def test_each_picture_size_gets_a_file_of_its_own_with_that_size(start: Start, size_change: Path) -> None:
    """The library keeps the first size for the whole file."""
    library = start()
    known = telecine.load(size_change, backend="pyav")
    frames = telecine.load(size_change, backend="deepstream")
    assert frames.indices.tolist() == known.indices.tolist() and len(frames) == 60
    assert np.abs(frames.data.astype(int) - known.data).max() <= 12  # the loss of scaling RGB
    assert len(library.calls) == 2


def test_pictures_that_the_library_has_scaled_itself_are_refused(start: Start, size_change: Path) -> None:
    start(scales_to=(96, 64))
    with pytest.raises(telecine.UnsupportedVideoError, match="size changes in mid-stream"):
        telecine.load(size_change, backend="deepstream")
    assert len(telecine.load(size_change, backend="deepstream", indices=[3, 20])) == 2


def test_a_picture_that_grows_beyond_max_pixels_raises(start: Start, size_change: Path) -> None:
    library = start()
    with pytest.raises(telecine.LimitError, match="grows to 160x96"):
        telecine.load(size_change, backend="deepstream", limits=telecine.Limits(max_pixels=96 * 64))
    assert len(library.calls) <= 1
