"""Opening a video once for many requests: indexing, chunks in bounded memory, threads, and closing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, Clip, clips, read_number
from telecine.backends import Backend
from telecine.backends.pyav.backend import PyAVBackend

CLIP = CLIPS["h264_pyramid.mp4"]


def joined(chunks: list[telecine.Frames]) -> tuple[Any, list[int], list[float]]:
    """Return the data, the indices and the timestamps of some chunks as if they were one result."""
    return (
        np.concatenate([chunk.data for chunk in chunks]),
        np.concatenate([chunk.indices for chunk in chunks]).tolist(),
        np.concatenate([chunk.timestamps for chunk in chunks]).tolist(),
    )


def assert_chunks_equal_load(video: telecine.Video, chunk_frames: int, **options: Any) -> list[telecine.Frames]:
    """Compare every frame, index, time and loss of an iteration with one load of the same frames."""
    try:
        expected = video.load(**options)
    except telecine.DecodeError:
        with pytest.raises(telecine.DecodeError):
            list(video.iterate(chunk_frames=chunk_frames, **options))
        return []
    chunks = list(video.iterate(chunk_frames=chunk_frames, **options))
    data, indices, timestamps = joined(chunks)
    assert indices == expected.indices.tolist()
    assert timestamps == expected.timestamps.tolist()
    different = [index for index, one, other in zip(indices, data, expected.data, strict=True) if (one != other).any()]
    assert different == []
    assert {index for chunk in chunks for index in chunk.report.lost} == set(expected.report.lost)
    assert max(len(chunk) for chunk in chunks) <= chunk_frames
    return chunks


@pytest.mark.parametrize(
    "clip", [clip for clip in CLIPS.values() if "novideo" not in clip.tags and not clip.name.endswith(".png")], ids=str
)
def test_chunks_of_every_clip_have_the_frames_of_load(clip: Clip) -> None:
    with telecine.open(clip.path(), threads=3) as video:
        for chunk_frames in (1, 7, 1000):
            assert_chunks_equal_load(video, chunk_frames)
        assert_chunks_equal_load(video, 4, fps=5)
        assert_chunks_equal_load(video, 5, num_frames=13)


@pytest.mark.parametrize("clip", [*clips("core"), *clips("damaged"), *clips("open_gop")], ids=str)
def test_chunks_decoded_group_by_group_have_the_frames_of_load(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends that keep no decoder open decode so."""
    monkeypatch.setattr(PyAVBackend, "decode_chunks", Backend.decode_chunks)
    with telecine.open(clip.path(), threads=1) as video:
        for chunk_frames in (2, 16):
            assert_chunks_equal_load(video, chunk_frames)
        assert_chunks_equal_load(video, 4, fps=5)


@pytest.mark.parametrize("clip", [clip for clip in clips("core") if clip.codec in ("h264", "hevc", "vp9")], ids=str)
def test_chunks_of_opencv_have_the_frames_of_load(clip: Clip) -> None:
    pytest.importorskip("cv2")
    with telecine.open(clip.path(), backend="opencv") as video:
        try:
            video.load(num_frames=1)
        except telecine.UnsupportedVideoError as error:
            pytest.skip(str(error))
        assert_chunks_equal_load(video, 7)
        assert_chunks_equal_load(video, 4, fps=5)


def test_info_and_timeline_of_an_opened_video_equal_those_of_load() -> None:
    with telecine.open(CLIP.path()) as video:
        whole = telecine.load(CLIP.path())
        assert video.info == telecine.probe(CLIP.path()) == whole.info
        assert len(video) == 60
        assert np.array_equal(video.timeline.ticks, whole.timeline.ticks)
        assert repr(video) == f"Video({CLIP.path().name}, 60 x 144x192, h264)"
        frames = video.load(num_frames=5, size=72)
        expected = telecine.load(CLIP.path(), num_frames=5, size=72)
        assert np.array_equal(frames.data, expected.data) and np.array_equal(frames.indices, expected.indices)
        assert set(frames.report.seconds) == {"plan", "decode", "convert"}


def test_indexing_a_video_follows_the_rules_of_sequences() -> None:
    with telecine.open(CLIP.path()) as video:
        assert (video[7].index, read_number(video[7].image)) == (7, 7)
        assert (video[-1].index, read_number(video[np.int64(-60)].image)) == (59, 0)
        assert video[10:30:5].indices.tolist() == [10, 15, 20, 25]
        assert video[::-20].indices.tolist() == [59, 39, 19]
        assert [read_number(image) for image in video[[5, -1, 5]].data] == [5, 59, 5]
        assert video[np.arange(60) >= 58].indices.tolist() == [58, 59]
        for empty in (video[5:5], video[[]]):
            assert empty.shape == (0, 144, 192, 3) and len(empty) == 0
        for beyond in (60, -61, [0, 60]):
            with pytest.raises(IndexError):
                video[beyond]


def test_iteration_over_a_video_yields_each_frame() -> None:
    with telecine.open(CLIP.path()) as video:
        assert [(frame.index, read_number(frame.image)) for frame in video] == [(i, i) for i in range(60)]


def test_chunks_come_in_the_order_of_the_indices() -> None:
    wanted = [40, 3, 3, 59, 0, 12, 11]
    with telecine.open(CLIP.path()) as video:
        chunks = assert_chunks_equal_load(video, 3, indices=wanted)
        assert [chunk.indices.tolist() for chunk in chunks] == [[40, 3, 3], [59, 0, 12], [11]]
        assert_chunks_equal_load(video, 2, indices=[1, 1, 1, 8, 8, 30])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
def test_a_wrong_chunk_size_is_refused(value: Any) -> None:
    with telecine.open(CLIP.path()) as video, pytest.raises(telecine.OptionsError, match="chunk_frames is"):
        video.iterate(chunk_frames=value)


def test_wrong_options_of_an_iteration_are_refused_at_the_call() -> None:
    with telecine.open(CLIP.path()) as video:
        with pytest.raises(telecine.OptionsError, match="num_frames is 0"):
            video.iterate(num_frames=0)
        with pytest.raises(telecine.OptionsError, match="pad does not go with"):
            video.iterate(num_frames=8, pad="repeat")
        with pytest.raises(telecine.OptionsError, match="no option speed"):
            video.load(speed=2)  # type: ignore[call-arg]


def test_options_that_choose_frames_are_refused_when_a_video_is_opened() -> None:
    with pytest.raises(telecine.OptionsError, match=r"num_frames chooses frames; give it to load\(\) or iterate\(\)"):
        telecine.open(CLIP.path(), num_frames=8)  # type: ignore[call-arg]


def test_each_packet_is_fed_once() -> None:
    with telecine.open(CLIP.path()) as video:
        for chunk_frames in (1, 8, 64):
            chunks = list(video.iterate(chunk_frames=chunk_frames))
            assert sum(chunk.report.packets_fed for chunk in chunks) == 60


def test_a_closed_video_refuses_requests_and_ends_its_iterators() -> None:
    video = telecine.open(CLIP.path())
    chunks = video.iterate(chunk_frames=4)
    assert next(chunks).indices.tolist() == [0, 1, 2, 3]
    finished = video.iterate(num_frames=1)
    assert len(list(finished)) == 1
    video.close()
    video.close()
    assert video.closed and repr(video).endswith(", closed)")
    assert next(finished, None) is None
    for request in (lambda: next(chunks), lambda: video.load(num_frames=1), lambda: video[0], video.iterate):
        with pytest.raises(telecine.OptionsError, match="the video is closed"):
            request()
    assert len(video) == 60


def open_descriptors_and_mappings(path: Path) -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count(str(path))


def test_closing_leaves_no_thread_descriptor_or_mapping(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copy(CLIP.path(), path)
    telecine.load(path, num_frames=1)
    threads, before = len(os.listdir("/proc/self/task")), open_descriptors_and_mappings(path)
    video = telecine.open(path, threads=4)
    iterators = [video.iterate(chunk_frames=2) for _ in range(3)]
    for chunks in iterators:
        next(chunks)
    assert open_descriptors_and_mappings(path)[1] > 0
    assert len(os.listdir("/proc/self/task")) > threads
    video.close()
    assert open_descriptors_and_mappings(path) == before
    assert len(os.listdir("/proc/self/task")) == threads


def test_an_iterator_that_is_dropped_or_closed_frees_its_decoder() -> None:
    with telecine.open(CLIP.path(), threads=4) as video:
        video.load(num_frames=1)
        threads = len(os.listdir("/proc/self/task"))
        for _ in video.iterate(chunk_frames=2):
            break
        assert len(os.listdir("/proc/self/task")) == threads
        with video.iterate(chunk_frames=2) as chunks:
            next(chunks)
            assert len(os.listdir("/proc/self/task")) > threads
        assert len(os.listdir("/proc/self/task")) == threads
        assert next(chunks, None) is None


def test_a_video_that_fails_to_open_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "noise.mp4"
    path.write_bytes(bytes(range(256)) * 100)
    before = open_descriptors_and_mappings(path)
    with pytest.raises(telecine.SourceError):
        telecine.open(path)
    assert open_descriptors_and_mappings(path) == before


def test_a_file_that_is_written_to_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copy(CLIP.path(), path)
    with telecine.open(path) as video:
        chunks = video.iterate(chunk_frames=4)
        next(chunks)
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"changed")
        for request in (lambda: video.load(num_frames=2), lambda: next(chunks)):
            with pytest.raises(telecine.SourceError, match="the file was changed after it was opened"):
                request()


def test_a_file_object_whose_file_is_written_to_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copy(CLIP.path(), path)
    with path.open("rb") as file, telecine.open(file) as video:
        assert read_number(video[9].image) == 9
        path.write_bytes(CLIP.bytes() + b"more")
        with pytest.raises(telecine.SourceError, match="the file was changed after it was opened"):
            video.load(num_frames=1)


def test_a_file_that_is_replaced_or_removed_stays_readable(tmp_path: Path) -> None:
    path, other = tmp_path / "clip.mp4", tmp_path / "other.mp4"
    shutil.copy(CLIP.path(), path)
    shutil.copy(CLIPS["base.mp4"].path(), other)
    with telecine.open(path) as video:
        os.replace(other, path)
        assert read_number(video[31].image) == 31
        path.unlink()
        assert read_number(video[32].image) == 32


def in_threads(count: int, work: Any) -> list[Any]:
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("backend", ["pyav", "opencv"])
def test_many_threads_may_use_one_video(backend: str) -> None:
    pytest.importorskip({"pyav": "av", "opencv": "cv2"}[backend])
    with telecine.open(CLIP.path(), backend=backend) as video:

        def work(number: int) -> list[int]:
            seen = [read_number(video[(7 * number + step) % 60].image) for step in range(6)]
            return seen + [read_number(frame.image) for chunk in video.iterate(num_frames=5) for frame in chunk]

        for number, seen in enumerate(in_threads(8, work)):
            assert seen == [(7 * number + step) % 60 for step in range(6)] + [0, 15, 30, 44, 59]


def test_closing_ends_requests_of_other_threads() -> None:
    video = telecine.open(CLIP.path())
    started = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            started.wait(30)
            video.close()
            return
        while True:
            video.load(size=(700, 900), timeout=telecine.Deadline(60, lambda *_: started.set()))

    closing, *others = in_threads(4, work)
    assert closing is None
    assert all(isinstance(error, (telecine.Cancelled, telecine.OptionsError)) for error in others)
    assert "closed" in str(others[0])


def test_an_iteration_can_be_cancelled_and_has_a_deadline_for_each_chunk() -> None:
    with telecine.open(CLIP.path()) as video:
        deadline = telecine.Deadline()
        chunks = video.iterate(chunk_frames=4, timeout=deadline)
        next(chunks)
        deadline.cancel()
        with pytest.raises(telecine.Cancelled):
            next(chunks)
        with pytest.raises(telecine.DeadlineError):
            next(video.iterate(chunk_frames=60, size=(1500, 2000), timeout=0.001))
        assert len(list(video.iterate(chunk_frames=60, timeout=60))) == 1


def test_strict_iteration_raises_at_the_chunk_with_a_lost_frame() -> None:
    damaged = CLIPS["noise_in_the_middle.mp4"] if "noise_in_the_middle.mp4" in CLIPS else next(iter(clips("noise")))
    lost = telecine.load(damaged.path()).report.lost
    assert lost
    with telecine.open(damaged.path(), errors="strict") as video:
        chunks = video.iterate(chunk_frames=3)
        seen: list[int] = []
        with pytest.raises(telecine.DecodeError, match=str(lost[0])):
            for chunk in chunks:
                seen += chunk.indices.tolist()
        assert seen == list(range(lost[0] - lost[0] % 3))


_MEASURE_PEAK = """
import sys, telecine
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
with telecine.open(sys.argv[1], threads=2) as video:
    video.load(indices=[0], size=(360, 480))
    before = peak()
    count = sum(len(chunk) for chunk in video.iterate(chunk_frames=8, size=(360, 480)))
    print(count, peak() - before)
"""


def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path) -> None:
    from support.ffmpeg_cli import ffmpeg

    grown = []
    for seconds in (8, 60):
        path = tmp_path / f"{seconds}.mp4"
        source = f"testsrc=size=480x360:rate=25:duration={seconds}"
        encode = "-c:v libx264 -preset ultrafast -g 100000 -bf 2"
        ffmpeg(["-f", "lavfi", "-i", source, *encode.split(), path])
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE_PEAK, str(path)], capture_output=True, text=True, check=True, timeout=120
        )
        count, kibibytes = map(int, done.stdout.split())
        assert count == seconds * 25
        grown.append(kibibytes)
    frame = 480 * 360 * 3 // 1024
    assert max(grown) < 64 * frame  # of 1500 frames


@pytest.mark.parametrize("seed", range(40))
def test_chunks_of_randomly_damaged_clips_have_the_frames_of_load(seed: int) -> None:
    """With one thread, since frame threads of FFmpeg do not report each damaged picture on every run."""
    chance = random.Random(seed)
    names = sorted(clip.name for clip in CLIPS.values() if not {"novideo", "part"} & set(clip.tags))
    data = bytearray(CLIPS[chance.choice(names)].bytes())
    for _ in range(3):
        start = chance.randrange(len(data) // 8, len(data))
        data[start : start + 40] = chance.randbytes(len(data[start : start + 40]))
    try:
        video = telecine.open(bytes(data), threads=1)
    except telecine.SourceError:
        return
    with video:
        assert_chunks_equal_load(video, chance.choice([1, 5, 64]))
        assert_chunks_equal_load(video, 3, fps=4)
