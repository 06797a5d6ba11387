"""Faults of real video files, each with the expected result: counts, times, sampling, messages, memory, processes.

``test_exact.py`` proves that the frames of these clips are the right ones.
"""

from __future__ import annotations

import base64
import json
import random
import re
import shlex
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

import telecine
from support import byte_edits
from support.byte_edits import replace_box
from support.children import run_python
from support.clips import CLIPS, EXPECTED_COLOURS, Clip, read_number, reference_frames
from support.ffmpeg_cli import ffmpeg

Make = Callable[[str, str], Path]


def numbers(frames: telecine.Frames) -> list[int]:
    """Return the number that each frame shows."""
    return [read_number(image) for image in frames.data]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a file with ffmpeg."""

    def make(name: str, arguments: str) -> Path:
        ffmpeg([*shlex.split(arguments), str(tmp_path / name)])
        return tmp_path / name

    return make


# Counts: headers are only hints


def test_a_losslessly_trimmed_file_has_the_frames_that_a_viewer_sees() -> None:
    """It has 93 packets, 12 of them visible. The key frame before them is needed but not shown."""
    frames = telecine.load(CLIPS["trimmed.mp4"].path(), num_frames=32)
    assert frames.info.num_frames == len(frames) == 12
    assert numbers(frames) == [*range(81, 92), 93]
    assert frames.info.duration == pytest.approx(0.4 + 1 / 30, abs=1e-3)
    assert frames.timestamps[-1] == pytest.approx(0.4, abs=1e-4)
    assert len({image.tobytes() for image in frames.data}) == 12


@pytest.mark.parametrize("name", ["wrong_count.avi", "truncated.mp4", "truncated.avi", "truncated.ts", "truncated.mkv"])
@pytest.mark.parametrize("options", [{}, {"num_frames": 8}, {"fps": 10.0}])
def test_a_header_with_too_many_frames_gives_the_frames_of_the_packets(name: str, options: dict[str, Any]) -> None:
    """Indices, times and losses add up, and no sample is after the end."""
    clip = CLIPS[name]
    frames = telecine.load(clip.path(), **options)
    assert frames.info.num_frames == clip.num_frames
    assert [clip.numbers[index] for index in frames.indices] == numbers(frames)
    np.testing.assert_allclose(frames.timestamps, np.array(clip.times)[frames.indices], atol=1e-3)
    assert not set(frames.report.lost) & set(frames.indices.tolist())


@pytest.mark.parametrize("name", ["one_frame.mp4", "two_frames.mp4", "trimmed.mp4", "colour_untagged.mp4"])
@pytest.mark.parametrize("options", [{"num_frames": 32}, {"fps": 60.0}, {"fps": 30.0, "num_frames": 32}])
def test_a_clip_shorter_than_the_request_is_returned_whole_and_once(name: str, options: dict[str, Any]) -> None:
    """The result has as many frames as the clip, without padding."""
    frames = telecine.load(CLIPS[name].path(), **options)
    assert frames.indices.tolist() == list(range(CLIPS[name].num_frames))


@pytest.mark.parametrize("name", ["no_duration.webm", "no_stream_duration.webm", "wmv2_pipe.asf", "fragmented.mp4"])
def test_a_header_without_count_and_duration_is_replaced_by_a_scan(name: str) -> None:
    """Arithmetic on the header would give no count, or a negative one."""
    info = telecine.probe(CLIPS[name].path())
    assert info.num_frames == 60
    assert info.average_fps == pytest.approx(30, rel=2e-3)
    assert info.duration == pytest.approx(2.0, abs=0.04)


@pytest.mark.parametrize("value", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("box", [b"mvhd", b"tkhd", b"mdhd"])
def test_a_nonsense_duration_in_an_mp4_header_changes_nothing(box: bytes, value: int) -> None:
    """The values are zero, negative, huge or unknown."""
    data = bytearray(CLIPS["base.mp4"].bytes())
    struct.pack_into(">I", data, data.index(box) + 4 + {b"mvhd": 16, b"tkhd": 20, b"mdhd": 16}[box], value)
    frames = telecine.load(bytes(data), num_frames=4)
    assert frames.info == telecine.probe(CLIPS["base.mp4"].path())
    assert numbers(frames) == frames.indices.tolist()


@pytest.mark.parametrize("count", [0, 1, 59, 61, 10**6, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_nonsense_count_in_an_avi_header_changes_nothing(count: int) -> None:
    """A count that is too small hides no frame either."""
    data = byte_edits.claim_frames(CLIPS["mpeg4.avi"].bytes(), count)
    info = telecine.probe(data)
    assert (info.num_frames, info.average_fps, info.duration) == (60, 30.0, 2.0)


@pytest.mark.parametrize(("rate", "scale"), [(0, 0), (0, 1), (1, 0), (0xFFFFFFFF, 1), (1, 0xFFFFFFFF)])
def test_a_nonsense_rate_in_an_avi_header_does_not_fail(rate: int, scale: int) -> None:
    """All frames are returned; a rate without a known frame duration may be refused as too long."""
    data = bytearray(CLIPS["mpeg4.avi"].bytes())
    struct.pack_into("<II", data, data.index(b"vids") + 20, scale, rate)
    try:
        frames = telecine.load(bytes(data))
    except telecine.LimitError as error:
        assert "max_seconds" in str(error)
        return
    assert numbers(frames) == list(range(60))
    assert (np.diff(frames.timestamps) > 0).all()
    assert np.isfinite(frames.info.average_fps) and frames.info.duration > 0


def test_packets_without_presentation_times_start_at_zero() -> None:
    """AVI with B pictures: the times are those of the frames, not of the packets they came with."""
    frames = telecine.load(CLIPS["mpeg4.avi"].path())
    np.testing.assert_allclose(frames.timestamps, np.arange(60) / 30, atol=1e-9)
    assert any("rebuilt" in note for note in frames.report.notes)


def test_a_damaged_frame_is_lost_and_not_replaced_by_a_neighbour() -> None:
    """FFmpeg itself shows frame 14 as a copy of frame 12."""
    frames = telecine.load(CLIPS["noise_disposable.mp4"].path(), indices=[12, 13, 14, 15])
    assert numbers(frames) == frames.indices.tolist() == [12, 13, 15]
    assert frames.report.lost == (14,)


def test_damage_ends_at_the_next_key_frame() -> None:
    """A corrupt packet contains a parameter set, which the decoder would use for all later packets."""
    data = bytearray(CLIPS["base.mp4"].bytes())
    with av.open(str(CLIPS["base.mp4"].path())) as container:
        at, size = [(p.pos, p.size) for p in container.demux(video=0) if p.size][20]
    with av.open(str(CLIPS["h264_no_b.mp4"].path())) as container:
        record = bytes(container.streams.video[0].codec_context.extradata or b"")
    after_sps = 8 + int.from_bytes(record[6:8], "big")
    foreign = record[after_sps + 3 :][: int.from_bytes(record[after_sps + 1 : after_sps + 3], "big")]
    rest = size - 8 - len(foreign)
    slice_nal = bytes(data[at + 4 : at + 30]) + random.Random(3).randbytes(rest - 26)
    data[at : at + size] = struct.pack(">I", len(foreign)) + foreign + struct.pack(">I", rest) + slice_nal
    whole = telecine.load(CLIPS["base.mp4"].path())
    frames = telecine.load(bytes(data))
    assert set(frames.report.lost) == set(range(20, 30))
    assert np.array_equal(frames.data, whole.data[frames.indices])


def test_a_damaged_motion_jpeg_picture_is_lost_and_not_completed_from_another_one() -> None:
    """FFmpeg would fill the missing area with the previous content of its buffer."""
    path = CLIPS["mjpeg.avi"].path()
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        at, size = [(p.pos, p.size) for p in container.demux(video=0) if p.size][7]
    data[at + size // 2 : at + size // 2 + 200] = b"\xff\xd0" * 100
    frames = telecine.load(bytes(data))
    assert frames.report.lost == (7,)
    assert np.array_equal(frames.data, telecine.load(path).data[frames.indices])


NOTHING = {
    "no bytes": (b"", "empty"),
    "eight bytes": (b"\0\0\0\x18ftyp", "incomplete MP4"),
    "only a file type": (b"\0\0\0\x18ftypisom\0\0\2\0isomiso2", "incomplete MP4"),
    "noise": (bytes(random.Random(1).randbytes(5000)), "not a video file"),
    "zeros": (bytes(5000), "not a video file"),
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("verb", [telecine.probe, telecine.load])
def test_data_without_a_video_raises_one_error_of_the_right_class(name: str, verb: Callable[[bytes], object]) -> None:
    """It is a ValueError, which serving engines answer with status 400."""
    data, message = NOTHING[name]
    with pytest.raises(telecine.SourceError, match=message) as caught:
        verb(data)
    assert isinstance(caught.value, ValueError) and caught.value.http_status == 400


@pytest.mark.parametrize(
    "name", ["base.mp4", "hevc.mkv", "vp9_altref.webm", "vp8_plain.webm", "av1_aom.mp4", "mpeg4.avi"]
)
def test_a_video_without_a_decodable_frame_raises_and_does_not_give_an_empty_result(name: str) -> None:
    """Its packets exist, so the number of frames looks right."""
    data = bytearray(CLIPS[name].bytes())
    with av.open(str(CLIPS[name].path())) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    noise = random.Random(name)
    for position, size in places:
        data[position + 5 : position + size] = noise.randbytes(max(0, size - 5))
    with pytest.raises((telecine.DecodeError, telecine.NoVideoError)) as caught:
        telecine.load(bytes(data), num_frames=8)
    assert caught.value.http_status == 400


# Seeking and order


@pytest.mark.parametrize("name", ["long.mp4", "h264_long_gop.mp4", "no_duration.webm", "offset.ts", "mpeg4.avi"])
def test_samples_of_a_clip_with_few_key_frames_are_the_frames_asked_for(name: str) -> None:
    """They are eight different frames, not copies of key frames."""
    frames = telecine.load(CLIPS[name].path(), num_frames=8)
    assert numbers(frames) == frames.indices.tolist()
    assert len(set(frames.indices.tolist())) == 8


def test_dense_sampling_never_decodes_a_packet_twice() -> None:
    """Ascending targets need one pass, however long the decode range is."""
    frames = telecine.load(CLIPS["long.mp4"].path(), indices=list(range(0, 120, 3)))
    assert frames.report.packets_fed <= frames.report.packets_total == 120


def test_the_order_of_a_request_does_not_change_its_frames(make: Make) -> None:
    """HEVC with a key frame every three: late, early and shuffled indices give the frames of one pass."""
    parameters = "log-level=none:pools=none:frame-threads=1:keyint=3:min-keyint=3:scenecut=0"
    path = make("g3.mp4", f"-f lavfi -i testsrc2=s=64x64:r=30 -frames:v 161 -c:v libx265 -x265-params {parameters}")
    whole = telecine.load(path)
    assert len(whole) == 161
    wanted = [159, 35, *random.Random(0).sample(range(161), 40)]
    assert np.array_equal(telecine.load(path, indices=wanted).data, whole.data[wanted])
    for index in wanted[:8]:
        assert np.array_equal(telecine.load(path, indices=[index]).data[0], whole.data[index])


@pytest.mark.parametrize("name", ["hevc_open_gop.mp4", "h264_open_gop.mp4", "mpeg2_open_gop.ts"])
def test_a_leading_picture_is_decoded_from_the_key_frame_before(name: str) -> None:
    """Leading pictures of an open random access point are neither lost nor garbled."""
    for index in (22, 23, 24, 25, 46, 47, 48):
        frames = telecine.load(CLIPS[name].path(), indices=[index])
        assert numbers(frames) == [index]


@pytest.mark.parametrize("name", ["hevc_cut.mp4", "hevc_cra_first.mp4", "h264_cut.mp4", "hevc_no_first_key.mp4"])
def test_leading_pictures_of_a_cut_file_are_not_counted(name: str) -> None:
    """Their references are not in the file; frame 0 is the first one that can be decoded."""
    clip = CLIPS[name]
    frames = telecine.load(clip.path())
    assert frames.info.num_frames == len(frames) == clip.num_frames < (clip.header_frames or 0)
    assert numbers(frames) == list(clip.numbers)
    assert frames.timestamps[0] == 0


@pytest.mark.parametrize("name", ["offset.ts", "h264.flv", "mpeg4.avi", "screen.mkv", "vfr.mp4", "vp9_altref.webm"])
def test_each_frame_is_found_by_its_own_time(name: str) -> None:
    """Also if the file's clock starts at ten minutes, or counts in whole milliseconds."""
    whole = telecine.load(CLIPS[name].path())
    assert whole.timestamps[0] == 0
    again = telecine.load(CLIPS[name].path(), timestamps=whole.timestamps)
    assert again.indices.tolist() == list(range(len(whole)))


# Rates and times


def test_times_of_a_variable_rate_are_the_true_ones() -> None:
    """Index / average rate would say 2.45 s for the frame at 1 s."""
    frames = telecine.load(CLIPS["vfr.mp4"].path())
    assert frames.info.variable_frame_rate
    assert frames.info.average_fps == pytest.approx(59 / (1 + 29 * 4 / 30), rel=1e-3)
    assert frames.timestamps[30] == pytest.approx(1.0, abs=1e-4)
    assert frames.timestamps[-1] == pytest.approx(4.8667, abs=1e-3)


@pytest.mark.parametrize("clip", [clip for clip in CLIPS.values() if clip.num_frames > 1], ids=str)
def test_no_rate_is_made_of_the_ticks_of_the_clock(clip: Clip) -> None:
    """1000, 2000 or 90 000 frames a second are guesses of demuxers; measured rates are sane."""
    info = telecine.probe(clip.path())
    assert 1 < info.average_fps <= 61
    assert info.duration == pytest.approx(info.num_frames / info.average_fps, rel=0.25)


@pytest.mark.parametrize("kind", ["mp4", "mkv", "ts", "avi", "flv"])
@pytest.mark.parametrize("name", ["ntsc.mp4", "film.mp4"])
def test_thousands_over_1001_are_a_constant_rate(make: Make, name: str, kind: str) -> None:
    """Whole milliseconds jitter around it; that is rounding, not a variable rate."""
    info = telecine.probe(make(f"clip.{kind}", f"-i {shlex.quote(str(CLIPS[name].path()))} -c copy"))
    assert not info.variable_frame_rate
    assert CLIPS[name].fps is not None
    assert info.average_fps == pytest.approx(float(CLIPS[name].fps or 0), rel=5e-4)


@pytest.mark.parametrize("name", ["base.mp4", "h264.mkv", "vfr.mp4", "offset.ts", "one_frame.mp4", "trimmed.mp4"])
def test_times_at_and_behind_the_end_are_the_last_frame(name: str) -> None:
    """Nearest by time, never one past the end, and never an error."""
    info = telecine.probe(CLIPS[name].path())
    times = [info.duration - 1e-6, info.duration, info.duration + 1e-9, 1e6, -1e-9, -5.0]
    frames = telecine.load(CLIPS[name].path(), timestamps=times)
    assert frames.indices.tolist() == [info.num_frames - 1] * 4 + [0] * 2


def test_missing_times_are_rebuilt_and_the_report_says_so() -> None:
    """Seven of eight pictures of this transport stream have none."""
    frames = telecine.load(CLIPS["few_times.ts"].path())
    np.testing.assert_allclose(frames.timestamps, np.arange(60) / 30, atol=1e-3)
    assert any("rebuilt" in note for note in frames.report.notes)


def test_times_are_those_of_the_video_and_not_of_the_sound() -> None:
    """Each stream has its own clock and its own start."""
    late = telecine.load(CLIPS["late_video.mp4"].path())
    assert late.info.start_time == pytest.approx(0.5, abs=1e-3)
    assert late.timestamps[:2].tolist() == pytest.approx([0, 1 / 30], abs=1e-4)
    mixed = telecine.load(CLIPS["interleaved.mp4"].path(), timestamps=[1.0])
    assert (mixed.info.stream_index, numbers(mixed)) == (1, [30])


# Metadata for processors

KEYS = {"total_num_frames", "fps", "width", "height", "duration", "video_backend", "frames_indices"}
"""The fields of ``transformers.video_utils.VideoMetadata``."""


def test_metadata_has_the_fields_that_processors_take() -> None:
    """Values are plain numbers, and processors are told not to sample again."""
    frames = telecine.load(CLIPS["rotated90.mp4"].path(), num_frames=4)
    metadata = frames.metadata()
    assert metadata.keys() == KEYS | {"do_sample_frames"}
    assert metadata["do_sample_frames"] is False
    assert json.loads(json.dumps(metadata)) == metadata
    assert (metadata["height"], metadata["width"]) == frames.data.shape[1:3]
    assert metadata["frames_indices"] == frames.indices.tolist()
    assert metadata["total_num_frames"] == 30


def test_metadata_has_the_rate_of_the_source_and_not_that_of_the_sampling() -> None:
    """Indices are absolute, so index / fps is the true time."""
    frames = telecine.load(CLIPS["base.mp4"].path(), fps=2)
    metadata = frames.metadata()
    assert metadata["frames_indices"] == [0, 15, 30, 45]
    assert metadata["fps"] == pytest.approx(30)
    window = telecine.load(CLIPS["base.mp4"].path(), fps=2, start=1.0)
    assert window.metadata()["frames_indices"] == [30, 45]


@pytest.mark.parametrize("name", ["vfr.mp4", "screen.mkv", "gif.gif", "trimmed.mp4", "truncated.ts"])
@pytest.mark.parametrize("options", [{}, {"num_frames": 5}])
def test_index_over_fps_is_the_true_time_if_the_rate_varies(name: str, options: dict[str, Any]) -> None:
    """Metadata has a virtual constant timeline, exact to half a millisecond."""
    frames = telecine.load(CLIPS[name].path(), **options)
    assert frames.info.variable_frame_rate
    metadata = frames.metadata()
    times = np.array(metadata["frames_indices"]) / metadata["fps"]
    np.testing.assert_allclose(times, frames.timestamps, atol=0.5e-3)
    assert metadata["frames_indices"][-1] < metadata["total_num_frames"]
    assert metadata["total_num_frames"] / metadata["fps"] == pytest.approx(metadata["duration"], abs=2e-3)


def test_metadata_of_two_clips_is_independent() -> None:
    """A request leaves no state for the next one."""
    first, second = (telecine.load(CLIPS[name].path(), num_frames=3) for name in ("film.mp4", "gif.gif"))
    assert first.metadata()["fps"] == pytest.approx(24000 / 1001)
    assert second.metadata()["fps"] == pytest.approx(10)


def test_max_frames_spreads_the_frames_of_fps_over_the_whole_clip() -> None:
    """It does not cut them off."""
    frames = telecine.load(CLIPS["h264_long_gop.mp4"].path(), fps=10, max_frames=5)
    assert len(frames) == 5
    assert frames.indices[0] == 0 and frames.indices[-1] > 90
    assert numbers(frames) == frames.indices.tolist()


def test_the_time_of_the_last_frame_is_not_the_duration(make: Make) -> None:
    """Of ten frames, one a second, the last begins at 9 s and ends at 10 s."""
    path = make("slow.mp4", "-f lavfi -i testsrc2=s=96x64:r=1 -frames:v 10 -c:v libx264 -pix_fmt yuv420p")
    frames = telecine.load(path)
    assert frames.timestamps[-1] == 9.0
    assert frames.info.duration == frames.metadata()["duration"] == 10.0
    assert frames.info.average_fps == 1.0


@pytest.mark.parametrize(("total", "wanted"), [(15, 13), (10, 20), (15, 15), (25, 4), (9, 16), (2, 1), (60, 59)])
def test_num_frames_gives_exactly_that_many_ascending_indices(total: int, wanted: int) -> None:
    """A shorter clip gives all its frames once."""
    frames = telecine.load(CLIPS["base.mp4"].path(), num_frames=wanted, end=total / 30)
    assert len(frames) == min(total, wanted)
    assert (np.diff(frames.indices) > 0).all()
    assert frames.indices[-1] < total


@pytest.mark.parametrize("fps", [1.0, 0.1, 1e-6])
@pytest.mark.parametrize("name", ["one_frame.mp4", "two_frames.mp4", "trimmed.mp4"])
def test_a_clip_shorter_than_one_sampling_step_gives_a_frame(name: str, fps: float) -> None:
    """Duration times rate rounds to zero."""
    assert telecine.load(CLIPS[name].path(), fps=fps).indices.tolist() == [0]


def test_options_that_contradict_each_other_are_refused_by_name() -> None:
    """None of them wins silently."""
    with pytest.raises(telecine.OptionsError, match="fps does not go with indices"):
        telecine.load(CLIPS["base.mp4"].path(), indices=[0], fps=2)
    with pytest.raises(telecine.OptionsError, match="num_frames is -1"):
        telecine.load(CLIPS["base.mp4"].path(), num_frames=-1)
    with pytest.raises(telecine.OptionsError, match="num_threads"):
        telecine.load(CLIPS["base.mp4"].path(), backend="pyav", num_threads=2)
    with pytest.raises(telecine.OptionsError, match="60"):
        telecine.load(CLIPS["base.mp4"].path(), indices=[60])


# Pixels


@pytest.mark.parametrize("turn", [90, 180, 270])
@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_a_display_matrix_is_applied_once(turn: int, kind: str) -> None:
    """Size, number and pixels are those of the displayed picture."""
    clip = CLIPS[f"rotated{turn}.{kind}"]
    frames = telecine.load(clip.path(), num_frames=4)
    assert (frames.info.rotation, frames.info.width, frames.info.height) == (turn, clip.width, clip.height)
    assert frames.data.shape[1:3] == (clip.height, clip.width)
    assert numbers(frames) == frames.indices.tolist()


def test_a_matrix_written_into_the_track_header_turns_clockwise(tmp_path: Path) -> None:
    """Phones write (0, 1, -1, 0) in 16.16 fixed point, with a translation that keeps the picture in view."""
    data = bytearray(CLIPS["base.mp4"].bytes())
    at = data.index(b"tkhd") + 4 + 40
    struct.pack_into(">9i", data, at, 0, 65536, 0, -65536, 0, 0, 64 << 16, 0, 0x40000000)
    (tmp_path / "phone.mp4").write_bytes(data)
    frames = telecine.load(tmp_path / "phone.mp4")
    assert (frames.info.rotation, frames.info.width, frames.info.height) == (90, 64, 96)
    assert np.abs(frames.data.astype(np.int16) - reference_frames(tmp_path / "phone.mp4")).max() <= 2
    upright = telecine.load(CLIPS["base.mp4"].path()).data
    turned_back = np.rot90(frames.data, 1, axes=(1, 2))
    assert np.abs(turned_back.astype(np.int16) - upright).mean() < 3


@pytest.mark.parametrize("name", EXPECTED_COLOURS)
def test_matrix_and_range_are_those_of_the_tags(name: str) -> None:
    """A wrong matrix or range differs by at least 8 in one channel."""
    frames = telecine.load(CLIPS[name].path())
    expected = np.array(EXPECTED_COLOURS[name])
    assert np.abs(frames.data.astype(np.int16) - expected).max() <= 6
    assert np.abs(frames.data.astype(np.int16) - CLIPS[name].reference().frames).max() <= 2


@pytest.mark.parametrize("name", ["odd.webm", "odd_444.mp4"])
def test_odd_sizes_are_exact(name: str) -> None:
    """They are not padded to even numbers, with a resize or without."""
    frames = telecine.load(CLIPS[name].path(), num_frames=3)
    assert frames.data.shape == (3, 63, 95, 3)
    assert telecine.load(CLIPS[name].path(), num_frames=2, size=(33, 47)).data.shape == (2, 33, 47, 3)


def _edges(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
    return np.concatenate([frames[:, :, :8], frames[:, :, -8:]], axis=2).astype(np.int16)


@pytest.mark.parametrize("width", [828, 95, 1366, 1001])
def test_the_outermost_columns_are_right_at_every_width(make: Make, width: int) -> None:
    """At widths that fill no vector register, a decoder or converter may leave noise or a green column."""
    pixels = "yuv444p" if width % 2 else "yuv420p"
    path = make("edges.mp4", f"-f lavfi -i testsrc2=s={width}x64 -frames:v 4 -c:v libx264 -qp 4 -pix_fmt {pixels}")
    frames = telecine.load(path)
    assert np.abs(_edges(frames.data) - _edges(reference_frames(path))).max() <= 2
    code = "import sys, zlib, telecine; print(zlib.crc32(telecine.load(sys.argv[1]).data.tobytes()))"
    crcs = {run_python(code, path).stdout for _ in range(2)}
    assert crcs == {run_python(code, path).stdout} != {""}


def test_coded_rows_outside_the_picture_are_cropped(make: Make) -> None:
    """1080 rows are coded as 1088 rows."""
    path = make(
        "hd.mp4", "-f lavfi -i testsrc2=s=1920x1080 -frames:v 2 -c:v libx264 -preset ultrafast -pix_fmt yuv420p"
    )
    frames = telecine.load(path)
    assert frames.data.shape == (2, 1080, 1920, 3)
    assert np.abs(frames.data[:, -8:].astype(np.int16) - reference_frames(path)[:, -8:]).max() <= 2


def test_both_fields_of_interlaced_video_are_interleaved_in_one_frame() -> None:
    """The clip has 30 frames, not 60, and info says that it is interlaced."""
    info = telecine.probe(CLIPS["interlaced.mp4"].path())
    assert (info.num_frames, info.interlaced) == (30, True)
    assert telecine.probe(CLIPS["h264_mbaff.mp4"].path()).interlaced
    assert not telecine.probe(CLIPS["base.mp4"].path()).interlaced


def test_a_size_change_in_mid_stream_gives_one_size() -> None:
    """Later frames are scaled to the first one's size, in any order of indices, and the report says so."""
    frames = telecine.load(CLIPS["size_change.ts"].path())
    assert frames.data.shape == (60, 64, 96, 3)
    assert numbers(frames) == list(range(60))
    assert any("size changes" in note for note in frames.report.notes)
    late = telecine.load(CLIPS["size_change.ts"].path(), indices=[45, 5])
    assert np.array_equal(late.data, frames.data[[45, 5]])


def test_times_of_an_animated_gif_are_its_own_delays() -> None:
    """Ten pictures last 0.1 s each, then ten 0.3 s each."""
    frames = telecine.load(CLIPS["gif.gif"].path())
    assert frames.timestamps[[9, 10, 11, 19]].tolist() == pytest.approx([0.9, 1.0, 1.3, 3.7])
    assert np.abs(frames.data.astype(np.int16) - CLIPS["gif.gif"].reference().frames).max() <= 2


def test_clips_of_one_coded_size_do_not_share_a_crop() -> None:
    """532 and 530 rows are both coded as 544 rows."""
    alone = telecine.load(CLIPS["twin530.mp4"].path(), num_frames=3)
    telecine.load(CLIPS["twin532.mp4"].path(), num_frames=3)
    after = telecine.load(CLIPS["twin530.mp4"].path(), num_frames=3)
    assert after.data.shape[1:3] == (530, 320)
    assert np.array_equal(after.data, alone.data)


# Containers and streams


def test_cover_art_is_not_the_video(make: Make) -> None:
    """It is not, even if it is stream 0. Audio with a cover has no video."""
    frames = telecine.load(CLIPS["cover_first.mp4"].path(), num_frames=4)
    assert (frames.info.stream_index, frames.info.num_frames, frames.info.codec) == (1, 60, "h264")
    assert numbers(frames) == frames.indices.tolist()
    cover = shlex.quote(str(CLIPS["part_cover.png"].path()))
    art = f"-f lavfi -i sine=d=1 -i {cover} -map 0 -map 1 -c:v copy -disposition:v attached_pic"
    for name, codec in (("song.mp3", "-c:a libmp3lame"), ("song.m4a", "-c:a aac")):
        with pytest.raises(telecine.NoVideoError, match="no video stream"):
            telecine.load(make(name, f"{art} {codec}"))


def test_the_error_for_an_mp4_file_without_its_index_calls_it_incomplete() -> None:
    """The index is written last by default, so an interrupted upload has none."""
    with pytest.raises(telecine.SourceError, match=r"incomplete MP4 file: its index \(moov\) is missing"):
        telecine.load(CLIPS["no_moov.mp4"].path())


def test_a_media_data_box_of_64_bits_is_read() -> None:
    """Recorders write this form of the size for large files."""
    data = CLIPS["base.mp4"].bytes()
    free = data.index(b"free") - 4  # in front of mdat, and as long as the long form is longer
    assert data[free + 12 : free + 16] == b"mdat"
    (size,) = struct.unpack_from(">I", data, free + 8)
    wide = data[:free] + struct.pack(">I4sQ", 1, b"mdat", size + 8) + data[free + 16 :]
    assert numbers(telecine.load(wide, num_frames=4)) == numbers(telecine.load(data, num_frames=4))


def test_a_file_cut_within_its_first_frames_does_not_crash_the_process(tmp_path: Path) -> None:
    """A child process loads it, because a crash would end the tests."""
    (tmp_path / "whole.mp4").write_bytes(CLIPS["part_faststart.mp4"].bytes())
    code = """
        import sys, telecine
        from pathlib import Path
        whole = Path(sys.argv[1]).read_bytes()
        for length in range(0, 4000, 37):
            try:
                assert len(telecine.load(whole[:length])) > 0
            except telecine.TelecineError:
                pass
    """
    done = run_python(code, tmp_path / "whole.mp4")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_for_a_git_lfs_pointer_names_git_lfs() -> None:
    """A clone without Git-LFS has pointers in place of files."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    with pytest.raises(telecine.SourceError, match="Git-LFS pointer"):
        telecine.load(pointer)


def test_the_error_for_audio_alone_names_its_streams() -> None:
    """It is no IndexError for an empty list of video streams."""
    with pytest.raises(telecine.NoVideoError, match=re.escape("no video stream (streams: audio aac)")):
        telecine.probe(CLIPS["audio.mp4"].path())


def test_of_two_videos_the_default_one_is_chosen_and_reported(make: Make) -> None:
    """Without the default flag it is the first one."""
    first = telecine.load(CLIPS["two_videos.mkv"].path(), num_frames=2)
    assert (first.info.stream_index, first.info.width) == (0, 96)
    source = CLIPS["two_videos.mkv"].path()
    path = make(
        "second.mkv", f"-i {shlex.quote(str(source))} -map 0 -c copy -disposition:v:0 0 -disposition:v:1 default"
    )
    second = telecine.load(path, num_frames=2)
    assert (second.info.stream_index, second.info.width) == (1, 192)
    assert numbers(second) == [1000, 1059]


def test_streams_that_appear_in_mid_stream_change_nothing(make: Make) -> None:
    """A transport stream may announce others at any time, as in two joined recordings."""
    # more than FFmpeg looks at when it opens a file, on both sides: it reads the end as well
    picture = "-f lavfi -i testsrc2=s=352x288:r=30"
    alone = make("alone.ts", f"{picture} -frames:v 300 -c:v mpeg2video -q:v 1 -g 1").read_bytes()
    sounds = f"-f lavfi -i sine=d=1 -map 0{' -map 1' * 12} -c:v mpeg2video -c:a mp2"
    both = make("both.ts", f"{picture}:d=0.4 {sounds}").read_bytes()
    assert telecine.probe(alone + both + alone).num_frames == 612


@pytest.mark.parametrize("name", ["h264_raw.h264", "hevc_raw.hevc"])
def test_an_elementary_stream_is_read_like_any_file(name: str) -> None:
    """It has no container to seek in, and its packets have no times."""
    frames = telecine.load(CLIPS[name].path(), indices=[50, 3])
    assert numbers(frames) == [50, 3]


def test_av1_is_decoded_in_software_without_messages_about_hardware() -> None:
    code = """
        import sys, telecine
        print(telecine.load(sys.argv[1], num_frames=3).indices.tolist())
    """
    done = run_python(code, CLIPS["av1_svt.mp4"].path())
    assert (done.stdout.strip(), done.stderr) == ("[0, 30, 59]", "")


@pytest.mark.parametrize("mime", ["video/mp4", "video/jpeg", "image/png", "application/octet-stream", "", "nonsense"])
def test_the_declared_type_of_a_data_url_does_not_matter(mime: str) -> None:
    """The bytes decide."""
    text = base64.b64encode(CLIPS["base.mp4"].bytes()).decode()
    assert len(telecine.load(f"data:{mime};base64,{text}", num_frames=2)) == 2


# Memory and processes


def test_peak_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    """All frames of the clip are 690 MB, eight of them 2 MB."""
    options = (
        "-f lavfi -i testsrc2=s=320x240:r=30 -frames:v 3000 -c:v libx264 -preset ultrafast -g 250 -pix_fmt yuv420p"
    )
    ffmpeg([*options.split(), str(tmp_path / "long.mp4")])
    ffmpeg(["-i", str(tmp_path / "long.mp4"), "-c", "copy", str(tmp_path / "long.mkv")])
    code = """
        import sys, telecine
        from support.children import memory
        telecine.load(sys.argv[1], indices=[0])
        before = memory("VmHWM")
        for path in sys.argv[1:]:
            assert len(telecine.load(path, num_frames=8)) == 8
        print(memory("VmHWM") - before)
    """
    done = run_python(code, tmp_path / "long.mp4", tmp_path / "long.mkv")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30 << 20


def test_two_thousand_opened_videos_leave_nothing_behind() -> None:
    """No memory, descriptors or threads, if they succeed or fail."""
    code = """
        import os, sys, telecine
        from pathlib import Path
        from support.children import memory
        good, cut = (Path(path).read_bytes() for path in sys.argv[1:])
        def rounds(count):
            for _ in range(count):
                telecine.load(good, indices=[0], threads=1)
                telecine.probe(sys.argv[1])
                for bad in (cut, good[:-500]):
                    try:
                        telecine.load(bad, indices=[34], threads=1, errors="strict")
                    except telecine.TelecineError:
                        pass
        rounds(100)
        before = [memory(), *(len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))]
        rounds(400)
        after = [memory(), *(len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))]
        print(*(now - then for now, then in zip(after, before)))
    """
    done = run_python(code, CLIPS["base.mp4"].path(), CLIPS["truncated.mp4"].path())
    assert done.returncode == 0, done.stderr
    grown, descriptors, threads = map(int, done.stdout.split())
    assert grown < 4 << 20
    assert (descriptors, threads) == (0, 0)


@pytest.mark.timing
def test_sixteen_requests_at_the_same_time_get_their_own_frames() -> None:
    """They have several codecs, and decoder threads of their own."""
    names = ["hevc.mp4", "h264_pyramid.mp4", "vp9_altref.webm", "av1_svt.mp4"] * 4
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: telecine.load(CLIPS[name].path(), num_frames=6), names))
    assert time.monotonic() - started < 60
    for answer in answers:
        assert numbers(answer) == answer.indices.tolist()


def test_the_interpreter_exits_at_once_after_a_decode_that_was_cancelled() -> None:
    """The threads of the decoder end with the request."""
    code = """
        import sys, telecine
        from telecine.deadline import Deadline
        def stop(doing, done, total):
            if doing == "decoding" and done > 20:
                deadline.cancel()
        for _ in range(5):
            deadline = Deadline(on_progress=stop)
            try:
                telecine.load(sys.argv[1], threads=8, timeout=deadline)
            except telecine.Cancelled:
                print("left")
        assert len(telecine.load(sys.argv[1], threads=8)) == 60
    """
    done = run_python(code, CLIPS["hevc.mp4"].path(), timeout=30)
    assert (done.returncode, done.stdout.split()) == (0, ["left"] * 5)


@pytest.mark.parametrize("order", ["import cv2, telecine", "import telecine, cv2", "import av, telecine"])
def test_telecine_works_whatever_library_with_ffmpeg_is_imported_first(order: str) -> None:
    """Libraries that bundle an FFmpeg of their own are in the same process."""
    done = run_python(f"{order}\nimport sys\nprint(len(telecine.load(sys.argv[1])))", CLIPS["hevc.mp4"].path())
    assert (done.stdout.strip(), done.returncode) == ("60", 0), done.stderr


def test_importing_starts_no_thread_and_imports_no_decoder() -> None:
    """A failing decoder library affects only its own backend, and a fork right after the import is safe."""
    code = """
        import os, sys, telecine
        heavy = {"av", "cv2", "torch", "numpy.f2py", "PIL", "httpx"} & set(sys.modules)
        print(sorted(heavy), len(os.listdir("/proc/self/task")))
    """
    # NumPy's own library starts threads for linear algebra unless a variable forbids it
    done = run_python("import os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\n" + _dedented(code))
    assert done.stdout.split() == ["[]", "1"], done.stderr


def _dedented(code: str) -> str:
    return "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())


def test_a_source_opened_before_a_fork_is_readable_in_both_children() -> None:
    """Bytes in memory and mapped files have no offset that processes could share."""
    code = """
        import multiprocessing, sys, zlib, telecine
        from pathlib import Path
        data = Path(sys.argv[1]).read_bytes()
        file = open(sys.argv[1], "rb")
        def crc(source):
            return zlib.crc32(telecine.load(source, num_frames=12).data.tobytes())
        def child(results):
            results.put([crc(data) for _ in range(10)] + [crc(sys.argv[1]) for _ in range(10)] + [crc(file)])
        expected = crc(data)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        children = [context.Process(target=child, args=(results,)) for _ in range(2)]
        for process in children:
            process.start()
        mine = [crc(data) for _ in range(10)]
        theirs = [results.get(timeout=50) for _ in children]
        for process in children:
            process.join(10)
        print(set(mine) | set(sum(theirs, [])) == {expected}, [process.exitcode for process in children])
    """
    for name in ("hevc.mp4", "h264.ts"):
        done = run_python(code, CLIPS[name].path())
        assert done.stdout.strip() == "True [0, 0]", done.stderr


def test_an_unterminated_name_in_the_handler_box_hides_no_stream() -> None:
    data = replace_box(
        CLIPS["base.mp4"].bytes(),
        [b"moov", b"trak", b"mdia", b"hdlr"],
        bytes(8) + b"vide" + bytes(12) + b"\xff\xfe\x80",
    )
    assert telecine.probe(data).num_frames == 60


@pytest.mark.parametrize("ratio", [Fraction(4, 3)])
def test_non_square_pixels_are_reported_and_not_resampled(ratio: Fraction) -> None:
    frames = telecine.load(CLIPS["wide.mp4"].path(), num_frames=2)
    assert frames.info.sample_aspect_ratio == ratio
    assert frames.data.shape[1:3] == (64, 96)
