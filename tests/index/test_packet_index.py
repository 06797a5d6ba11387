"""The packet index: counts, times, flags, limits, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import telecine
from support.byte_edits import cut
from support.clips import CLIPS, Clip
from support.ffmpeg_cli import ffmpeg
from telecine.bitstream import RandomAccess
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import NO_TIME
from telecine.deadline import Deadline
from telecine.index import packet_scan
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.source.source import open_source


def index_of(source: Any, limits: Limits | None = None) -> PacketIndex:
    limits, deadline = limits or Limits(), Deadline()
    with open_source(source, limits, deadline) as opened, Demuxer(opened, deadline) as demuxer:
        return read_index(demuxer, limits, deadline)


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "h264.ts", "hevc_cut.mp4", "vp9_altref.webm", "early.mp4"])
def test_index_arrays_have_one_length_and_frames_are_presentable_packets(name: str) -> None:
    """In presentation order, each once, with times from 0."""
    clip = CLIPS[name]
    index = index_of(clip.path())
    for column in ("pts", "dts", "duration", "size", "key", "random_access", "presentable", "disposable", "leading"):
        assert len(getattr(index, column)) == index.num_packets, column
    assert len(index.second_field) == index.num_packets
    assert index.num_frames == clip.num_frames
    assert sorted(index.display_order) == np.flatnonzero(index.presentable).tolist()
    assert index.timeline.ticks[0] == 0 and (np.diff(index.timeline.ticks) > 0).all()
    assert index.timeline.end_tick > index.timeline.ticks[-1]
    assert np.array_equal(index.timeline.key, index.key[index.display_order])
    assert not index.synthetic_times and index.notes == () and index.exact_random_access


def test_hidden_frames_are_packets_but_not_presentable() -> None:
    """The alternative reference frames of VP8, each in a packet of its own."""
    index = index_of(CLIPS["vp8_altref.webm"].path())
    assert index.num_packets > index.num_frames == 60
    assert not index.disposable.any()


def test_frames_outside_the_edit_list_are_packets_but_not_presentable() -> None:
    """They are still fed, since the shown ones are built on them."""
    index = index_of(CLIPS["trimmed.mp4"].path())
    assert (index.num_packets, index.num_frames) == (93, 12)


def test_only_the_highest_temporal_layer_is_disposable() -> None:
    """A sub-layer non-reference picture may be referred to from a layer above its own."""
    index = index_of(CLIPS["hevc_temporal_layers.mp4"].path())
    assert 10 < index.disposable.sum() < index.num_packets // 2 + 5


def test_stream_without_random_access_points_starts_at_its_first_key_frame(tmp_path: Path) -> None:
    """Gradual refresh, cut off in front: nothing in it is sure, and the index says so."""
    path = tmp_path / "cut.mp4"
    ffmpeg(["-i", CLIPS["h264_intra_refresh.mp4"].path(), "-c", "copy", "-bsf:v", "noise=drop='lt(n,3)'", path])
    index = index_of(path)
    assert not index.exact_random_access
    assert np.flatnonzero(index.random_access).tolist() == [int(np.argmax(index.key))]
    assert index.random_access.max() == RandomAccess.OPEN


def test_missing_timestamps_are_rebuilt_and_marked_synthetic() -> None:
    """Seven of eight packets lost theirs; the frames come in the right order at the right distance."""
    clip = CLIPS["few_times.ts"]
    index = index_of(clip.path())
    assert index.synthetic_times
    assert (index.pts == NO_TIME).sum() > 40
    assert np.allclose(index.timeline.seconds(), clip.times, atol=1e-4)


def test_joined_recordings_continue_in_file_order() -> None:
    """The second may start at the same time as the first or earlier; frames follow at the usual distance."""
    first, second = CLIPS["h264.ts"].bytes(), CLIPS["offset.ts"].bytes()
    for parts in ((first, first), (second, first)):
        index = index_of(b"".join(parts))
        assert index.synthetic_times
        assert index.num_frames == 120
        assert np.allclose(np.diff(index.timeline.seconds()), 1 / 30, atol=1e-4)
        # the frames of the first file come first
        boundary = len(index.display_order) // 2
        assert max(index.display_order[:boundary]) < min(index.display_order[boundary:])


def test_wrapped_timestamps_are_unwrapped(tmp_path: Path) -> None:
    """Those of a transport stream have 33 bits: 26.5 hours."""
    path = tmp_path / "over.ts"
    offset = (1 << 33) / 90000 - 2.4
    ffmpeg(["-i", CLIPS["h264_pyramid.mp4"].path(), "-c", "copy", "-output_ts_offset", str(offset), path])
    index = index_of(path)
    assert not index.synthetic_times
    assert np.allclose(index.timeline.seconds(), np.arange(60) / 30, atol=1e-4)


@pytest.mark.parametrize("name", ["truncated.mp4", "truncated.ts", "truncated.mkv", "truncated.avi"])
def test_truncated_file_has_the_frames_of_its_packets(name: str) -> None:
    """Counted from packets; the header's count is a hint."""
    clip = CLIPS[name]
    index = index_of(clip.path())
    assert index.num_frames == clip.num_frames


def test_a_read_error_ends_the_index_and_is_kept_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets before it are used, and the report gives the reason."""
    import av

    def failing(self: Demuxer, read: Any = Demuxer.packets) -> Any:
        for at, packet in enumerate(read(self)):
            if at == 20:
                raise av.error.InvalidDataError(1, "broken")
            yield packet

    monkeypatch.setattr(Demuxer, "packets", failing)
    index = index_of(CLIPS["h264_no_b.mp4"].path())
    assert index.num_packets == 20
    assert [note.code for note in index.notes] == ["truncated"] and "broken" in index.notes[0]
    frames = telecine.load(CLIPS["h264_no_b.mp4"].path(), indices=[19])
    assert any("broken" in note for note in frames.report.notes)


def test_a_stream_without_a_packet_is_no_video() -> None:
    """The file was cut off after the header."""
    data = CLIPS["part_faststart.mp4"].bytes()
    with pytest.raises(telecine.NoVideoError, match="no presentable frame"):
        index_of(data[: data.index(b"mdat") + 8])
    with pytest.raises(telecine.SourceError):
        index_of(cut(CLIPS["h264.ts"].bytes(), 0.001))


def test_max_packets_is_enforced_while_reading() -> None:
    """A stream with more is refused before the rest of it is read."""
    path = CLIPS["h264_no_b.mp4"].path()
    assert index_of(path, Limits(max_packets=60)).num_packets == 60
    with pytest.raises(telecine.LimitError, match="more than 59 packets"):
        index_of(path, Limits(max_packets=59))


def test_max_seconds_is_enforced() -> None:
    """By the packets' times."""
    path = CLIPS["h264_no_b.mp4"].path()
    with pytest.raises(telecine.LimitError, match=r"max_seconds is 1\.5"):
        index_of(path, Limits(max_seconds=1.5))


@pytest.mark.parametrize("clip", [CLIPS["h264_pyramid.mp4"], CLIPS["mpeg2_open_gop.ts"]], ids=str)
def test_packets_are_kept_if_they_are_small_enough(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are the same index if not."""
    kept = index_of(clip.path())
    assert kept.packets is not None and len(kept.packets) == kept.num_packets
    monkeypatch.setattr(packet_scan, "MAX_KEPT_BYTES", int(kept.size.sum()) // 2)
    again = index_of(clip.path())
    assert again.packets is None
    for column in ("pts", "dts", "size", "random_access", "disposable", "display_order"):
        assert np.array_equal(getattr(kept, column), getattr(again, column)), column


def test_second_pass_for_the_output_order_works_without_kept_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read again from its start."""
    clip = CLIPS["h264_raw.h264"]
    kept = index_of(clip.path())
    monkeypatch.setattr(packet_scan, "MAX_KEPT_BYTES", 0)
    again = index_of(clip.path())
    assert again.packets is None and again.synthetic_times
    assert np.array_equal(kept.display_order, again.display_order)
    assert np.array_equal(kept.timeline.ticks, again.timeline.ticks)


class LongVideo:
    """A demuxer of a video of hours, made up packet by packet."""

    name = "long.mkv"
    size = 10_000_000  # so small that keeping its packets is tried: they take much more than their bytes

    def __init__(self, count: int) -> None:
        self.count = count
        codec = SimpleNamespace(canonical_name="cinepak", intra_only=False)
        self.stream = SimpleNamespace(
            codec_context=SimpleNamespace(codec=codec, extradata=b"", pix_fmt="rgb24"),
            time_base=Fraction(1, 1000),
            average_rate=Fraction(25),
            guessed_rate=None,
        )

    format = "mov,mp4,m4a,3gp,3g2,mj2"
    ends_inside_picture = False

    def read_in_order(self) -> None:
        pass

    def packets(self) -> Any:
        for at in range(self.count):
            yield SimpleNamespace(
                pts=40 * at, dts=40 * at, duration=40, size=5000, is_keyframe=at % 250 == 0, is_discard=False,
                is_disposable=False, is_corrupt=False, pos=None, has_sidedata=lambda kind: False,
            )  # fmt: skip


def test_index_takes_a_hundred_bytes_per_packet() -> None:
    """And no packet outlives its turn: 200 000 of them would be a gigabyte."""
    demuxer: Any = LongVideo(200_000)
    tracemalloc.start()
    try:
        index = read_index(demuxer, Limits(), Deadline())
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.num_frames == 200_000 and index.packets is None
    assert index.timeline.duration == 8000.0
    assert kept < 200_000 * 80
    assert peak < 200_000 * 250


def test_reading_an_index_is_stopped_by_the_deadline() -> None:
    """Between packets, not only at the end."""
    deadline = Deadline()
    limits = Limits()
    with open_source(CLIPS["h264_medium.mp4"].path(), limits, deadline) as opened, Demuxer(opened, deadline) as demuxer:
        deadline.cancel()
        with pytest.raises(telecine.Cancelled):
            read_index(demuxer, limits, deadline)


def test_importing_the_index_brings_in_no_decoder_library() -> None:
    """Nothing happens at import."""
    code = "import sys, telecine.index.packet_index; assert not {'av', 'torch', 'cv2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_fork_while_another_thread_holds_the_scan_lock_leaves_it_free_in_the_child() -> None:
    """The owner does not exist in the child, and it may have been changing the queue."""
    code = """
        import os, sys, threading, time
        from telecine.index.scan_lock import SCAN_LOCK
        from telecine.deadline import Deadline
        other = threading.Thread(target=lambda: (SCAN_LOCK.mutex.acquire(), time.sleep(60)), daemon=True)
        other.start()
        while SCAN_LOCK.mutex.acquire(blocking=False):
            SCAN_LOCK.mutex.release()
        child = os.fork()
        if child == 0:
            with SCAN_LOCK.acquire(Deadline(), "waiting"):
                os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
