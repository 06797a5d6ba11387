"""One request from source to frames: options, limits, reports, damage, and streams that readers often get wrong."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import telecine
from support.byte_edits import noise_in_packet, without_vui
from support.clips import CLIPS, read_number
from support.ffmpeg_cli import ffmpeg, reference
from support.handmade import H264Stream, divx_packed, mux
from telecine.backends import registry
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.index.packet_index import read_index
from telecine.source.source import open_source

CLIP = CLIPS["h264_pyramid.mp4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"errors": "ignore"}, '"recover" or "strict"'),
        ({"size": (0, 10)}, "short side"),
        ({"size": 1.5}, "short side"),
        ({"backend": "vlc"}, "the backends are .*pyav"),
        ({"device": "tpu"}, 'must be "cpu", "cuda" or "cuda:N"'),
        ({"device": "cpu:0"}, 'must be "cpu"'),
        ({"device": "cuda:"}, 'must be "cpu"'),
        ({"device": "cuda:-1"}, 'must be "cpu"'),
        ({"threads": 0}, "whole number from 1 to 64"),
        ({"threads": 65}, "whole number from 1 to 64"),
        ({"threads": 2.0}, "whole number from 1 to 64"),
        ({"threads": True}, "whole number from 1 to 64"),
        ({"thread_count": 2}, "no option thread_count; its options are: .*threads"),
        ({"timeout": 0}, "timeout is 0"),
        ({"indices": []}, "empty"),
        ({"indices": [60]}, "60"),
        ({"num_frames": 0}, "num_frames is 0"),
    ],
)
def test_a_wrong_option_raises_an_error_that_says_what_is_allowed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(telecine.OptionsError, match=said) as caught:
        telecine.load(CLIP.path(), **options)
    assert isinstance(caught.value, ValueError)


def test_an_unknown_backend_is_refused_before_the_source_is_opened() -> None:
    with pytest.raises(telecine.OptionsError, match="backend is 'vlc'"):
        telecine.load("/no/such/file.mp4", backend="vlc")


def test_environment_variables_set_backend_and_device_unless_the_call_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TELECINE_BACKEND", "vlc")
    with pytest.raises(telecine.OptionsError, match="backend is 'vlc'"):
        telecine.load(CLIP.path(), indices=[0])
    assert telecine.load(CLIP.path(), indices=[0], backend="pyav").report.backend == "pyav"
    monkeypatch.setenv("TELECINE_BACKEND", "")
    monkeypatch.setenv("TELECINE_DEVICE", "tpu")
    with pytest.raises(telecine.OptionsError, match="device is 'tpu'"):
        telecine.load(CLIP.path(), indices=[0])
    assert telecine.load(CLIP.path(), indices=[0], device="cpu").report.device == "cpu"


def test_the_report_has_the_packets_fed_and_the_time_of_each_stage() -> None:
    frames = telecine.load(CLIP.path(), indices=[1, 40])
    report = frames.report
    assert (report.backend, report.device, report.packets_total) == ("pyav", "cpu", 60)
    assert 2 <= report.packets_fed < 30 and report.packets_skipped == 60 - report.packets_fed
    assert report.lost == () and report.notes == () and report.fallback_reason is None
    assert set(report.seconds) == {"source", "index", "plan", "decode", "convert"}
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert report.seconds["convert"] <= report.seconds["decode"]


@pytest.mark.timing
def test_a_stage_inside_another_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from telecine.pipeline import StageTimer

    now = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    timer = StageTimer()
    with timer.measure("outer"), timer.measure("inner"):
        pass
    assert timer.seconds == {"inner": 3.0, "outer": 3.0}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (None, (144, 192)),
        (72, (72, 96)),
        ((50, 31), (50, 31)),
        (telecine.Fit(5000, multiple_of=4), (60, 80)),
        ((144, 192), (144, 192)),
        ((288, 384), (288, 384)),
    ],
    ids=str,
)
def test_each_form_of_size_gives_frames_of_that_size(size: Any, expected: tuple[int, int]) -> None:
    frames = telecine.load(CLIP.path(), indices=[7], size=size)
    assert frames.data.shape == (1, *expected, 3) and frames.data.dtype == np.uint8
    assert (frames.info.height, frames.info.width) == (144, 192)
    if min(expected) > 50:
        assert read_number(frames.data[0]) == 7


def test_size_is_measured_after_rotation() -> None:
    clip = CLIPS["rotated90.mp4"]
    frames = telecine.load(clip.path(), indices=[3], size=64)
    short = min(clip.height, clip.width)
    assert frames.data.shape[1:3] == (64 * clip.height // short, 64 * clip.width // short)
    assert read_number(frames.data[0]) == 3


def test_path_string_bytes_view_and_file_object_give_the_same_frames() -> None:
    path, data = CLIP.path(), CLIP.bytes()
    expected = telecine.load(path, indices=[5]).data
    for source in (str(path), data, bytearray(data), memoryview(data), io.BytesIO(data)):
        assert np.array_equal(telecine.load(source, indices=[5]).data, expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_does_not_change_a_pixel(threads: int) -> None:
    assert np.array_equal(telecine.load(CLIP.path(), threads=threads).data, telecine.load(CLIP.path()).data)


@pytest.mark.parametrize(
    ("limits", "options", "said"),
    [
        ({"max_frames": 3}, {"num_frames": 4}, "4 frames asked for; limits.max_frames is 3"),
        ({"max_output_bytes": 10**6}, {}, "limits.max_output_bytes is 1000000. Ask for fewer"),
        ({"max_pixels": 192 * 144}, {"size": (145, 192)}, "192x145 pixels; limits.max_pixels"),
        ({"max_pixels": 192 * 144 - 1}, {"size": 10}, "192x144 pixels; limits.max_pixels"),
        ({"max_packets": 10}, {}, "more than 10 packets"),
        ({"max_seconds": 1}, {}, "lasts 2 s"),
        ({"max_bytes": 1000}, {}, "1000"),
    ],
)
def test_a_request_over_a_limit_is_refused(limits: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(telecine.LimitError, match=said):
        telecine.load(CLIP.path(), limits=telecine.Limits(**limits), **options)


def test_a_size_of_400_digits_is_over_the_limit() -> None:
    with pytest.raises(telecine.LimitError, match=r"limits\.max_pixels"):
        telecine.load(CLIP.path(), size=10**400)


def test_cancelling_the_deadline_ends_the_decode_and_the_error_names_the_stage() -> None:
    seen: list[str] = []

    def watch(doing: str, done: int, total: int) -> None:
        seen.append(doing)
        if doing == "decoding" and done >= 5:
            deadline.cancel()

    deadline = Deadline(on_progress=watch)
    with pytest.raises(telecine.Cancelled, match="while decoding"):
        telecine.load(CLIP.path(), timeout=deadline)
    assert "reading the packets" in seen


def test_a_timeout_raises_a_deadline_error_that_is_a_timeout_error() -> None:
    with pytest.raises(telecine.DeadlineError, match=r"timeout of 1e-06 s") as caught:
        telecine.load(CLIP.path(), timeout=1e-6)
    assert isinstance(caught.value, TimeoutError)


def test_lost_frames_are_left_out_and_reported_once_whatever_the_order_of_indices() -> None:
    clip = CLIPS["noise_disposable.mp4"]
    frames = telecine.load(clip.path(), indices=[20, 14, 3, 14, 20])
    assert frames.indices.tolist() == [20, 3, 20]
    assert frames.report.lost == (14,)
    assert [read_number(image) for image in frames.data] == [20, 3, 20]
    with pytest.raises(telecine.DecodeError, match="1 wanted frames could not be decoded: 14"):
        telecine.load(clip.path(), indices=[20, 14, 3], errors="strict")
    assert telecine.load(clip.path(), indices=[20, 3], errors="strict").report.lost == ()


@pytest.mark.parametrize("errors", ["recover", "strict"])
def test_a_request_of_which_no_frame_can_be_decoded_raises(errors: str) -> None:
    with pytest.raises(telecine.DecodeError, match="none of 1 wanted frames could be decoded"):
        telecine.load(CLIPS["noise_disposable.mp4"].path(), indices=[14], errors=errors)


# Damage in streams with open GOPs


@pytest.mark.parametrize(
    ("name", "packet", "most"), [("h264_open_gop.mp4", 5, 24), ("mpeg2.mp4", 4, 12), ("mpeg4.mp4", 4, 24)]
)
@pytest.mark.parametrize("threads", [1, 4])
def test_damage_ends_at_the_next_random_access_point(name: str, packet: int, most: int, threads: int) -> None:
    """After an open point, only its leading pictures may refer to what was damaged."""
    whole = telecine.load(CLIPS[name].path())
    frames = telecine.load(noise_in_packet(CLIPS[name].bytes(), packet, part=0.3), threads=threads)
    assert frames.report.lost and max(frames.report.lost) < most
    for index, image in zip(frames.indices, frames.data, strict=True):
        assert np.array_equal(image, whole.data[index]), f"frame {index}"


@pytest.mark.parametrize("threads", [1, 4])
def test_leading_pictures_after_a_damaged_group_of_pictures_are_lost(threads: int) -> None:
    """They refer to the damaged pictures. The random access point itself and the pictures after it do not."""
    clip = CLIPS["h264_open_gop.mp4"]
    deadline = Deadline()
    with open_source(clip.path(), telecine.Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        index = read_index(demuxer, telecine.Limits(), deadline)
    point = int(np.flatnonzero(index.random_access)[1])
    damaged = int(np.flatnonzero(~index.disposable[:point])[-1])
    leading = {
        at for at, packet in enumerate(index.display_order) if packet > point and index.leading[packet] and at < 30
    }
    frames = telecine.load(noise_in_packet(clip.bytes(), damaged, part=0.3), threads=threads)
    whole = telecine.load(clip.path())
    lost = set(frames.report.lost)
    assert leading and leading < lost
    assert index.display_order.tolist().index(damaged) in lost
    assert max(lost) < index.display_order.tolist().index(point)
    for number, image in zip(frames.indices, frames.data, strict=True):
        assert np.array_equal(image, whole.data[number]), f"frame {number}"


# Streams that video readers often get wrong


@pytest.fixture(scope="module")
def without_reorder_depth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 without a reorder depth in its parameter sets, with up to eight B-pictures in a row."""
    folder = tmp_path_factory.mktemp("h264")
    with av.open(str(CLIP.path())) as container:
        count = sum(1 for _ in container.decode(video=0))
    raw = telecine.load(CLIP.path(), size=(64, 96)).data.tobytes()
    parameters = "keyint=40:min-keyint=40:scenecut=0:b-adapt=2:bframes=8:b-pyramid=normal"
    command = "-f rawvideo -pix_fmt rgb24 -s 96x64 -framerate 25 -i pipe:0 -c:v libx264 -threads 1 -pix_fmt yuv420p"
    coded = folder / "coded.h264"
    ffmpeg([*command.split(), "-profile:v", "main", "-x264-params", parameters, coded], raw)
    bare = folder / "bare.h264"
    bare.write_bytes(without_vui(coded.read_bytes()))
    assert count == 60
    return bare


def test_no_b_picture_is_dropped_if_the_reorder_depth_is_unknown(without_reorder_depth: Path) -> None:
    """FFmpeg guesses the depth, and by default drops the first B-pictures that need more, without an error."""
    frames = telecine.load(without_reorder_depth)
    assert frames.report.lost == ()
    assert [read_number(image) for image in frames.data] == list(range(60))
    draw = np.random.default_rng(1)
    for _ in range(25):
        wanted = np.sort(draw.choice(60, draw.integers(1, 9), replace=False))
        some = telecine.load(without_reorder_depth, indices=wanted)
        assert some.report.lost == () and np.array_equal(some.data, frames.data[wanted])


def fields(first: str = "top") -> Iterator[tuple[bytes, int]]:
    """Yield packets of one field each with their field numbers: three closed groups with disposable pictures."""
    stream = H264Stream()
    second = "bottom" if first == "top" else "top"
    for group in range(3):
        frame_num = 0
        for at in range(6):
            reference_ = at % 3 != 2
            for n, name in enumerate((first, second)):
                idr = at == n == 0
                data = stream.picture(
                    40 * group + 6 * at + 3 * n,
                    frame_num=frame_num, poc=4 * at + n, reference=reference_, idr=idr, field=name,
                )  # fmt: skip
                yield stream.parameter_sets() * idr + data, 12 * group + 2 * at + n
            frame_num += reference_


@pytest.mark.parametrize("first", ["top", "bottom"])
@pytest.mark.parametrize("kind", ["h264", "ts", "mp4", "mkv"])
@pytest.mark.parametrize("joined", [False, True], ids=["a packet for each field", "both fields in a packet"])
def test_frames_have_both_fields_if_the_second_is_a_packet_of_its_own(
    first: str, kind: str, joined: bool, tmp_path: Path
) -> None:
    packets = [data for data, _ in fields(first)]
    raw = tmp_path / "raw.h264"
    raw.write_bytes(b"".join(packets))
    path = raw
    if kind != "h264":
        path = tmp_path / f"fields.{kind}"
        if joined:
            packets = [a + b for a, b in zip(packets[::2], packets[1::2], strict=True)]
        step = 12 // (1 + joined)
        mux(path, packets, raw, 25 if joined else 50, {0, step, 2 * step}, range(len(packets)))
    expected = reference(path).frames
    assert len(expected) == 18
    whole = telecine.load(path)
    assert whole.info.num_frames == 18 and whole.report.lost == ()
    assert np.array_equal(whole.data, expected)
    for index in range(18):
        assert np.array_equal(telecine.load(path, indices=[index], errors="strict").data[0], expected[index])
    some = telecine.load(path, indices=[17, 2, 2, 5, 6])
    assert np.array_equal(some.data, expected[[17, 2, 2, 5, 6]])


@pytest.mark.parametrize("poc_type", [1, 2])
def test_raw_h264_without_picture_order_counts_is_in_display_order(poc_type: int, tmp_path: Path) -> None:
    """Order follows from frame numbers. With type 1, disposable pictures may be shown before their reference."""
    # disposable pictures are shown between the two reference pictures decoded before them
    stream = H264Stream(poc_type=poc_type, interlaced=False, offset_unreferenced=-6)
    data, frame_num = stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True), 1
    for at in range(1, 9):
        data += stream.picture(10 * at, frame_num=frame_num)
        frame_num += 1
        if at % 2 == 0:
            data += stream.picture(10 * at + 5, frame_num=frame_num, reference=False)
    path = tmp_path / "raw.h264"
    path.write_bytes(data)
    expected = reference(path).frames
    frames = telecine.load(path)
    assert frames.info.num_frames == len(expected) == 13
    assert np.array_equal(frames.data, expected)
    decoding_order = np.argsort([image[0, 0, 0] for image in expected], kind="stable")
    assert (decoding_order.tolist() == list(range(13))) == (poc_type == 2)


@pytest.fixture(scope="module")
def divx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MPEG-4 part 2 in AVI with packed B-pictures, as written by DivX and Xvid."""
    folder = tmp_path_factory.mktemp("divx")
    raw = telecine.load(CLIP.path(), size=(64, 96), indices=range(30)).data.tobytes()
    plain = folder / "plain.avi"
    command = "-f rawvideo -pix_fmt rgb24 -s 96x64 -framerate 25 -i pipe:0 -c:v mpeg4 -threads 1 -q:v 3 -g 12 -bf 1"
    ffmpeg([*command.split(), "-b_strategy", "0", plain], raw)
    with av.open(str(plain)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    packed = divx_packed(packets)
    assert len(packed) == len(packets) == 30
    path = folder / "packed.avi"
    keys = {at for at, data in enumerate(packed) if data[data.index(b"\0\0\1\xb6") + 4] >> 6 == 0}
    mux(path, packed, plain, 25, keys, range(30), bare=True)
    return path


def test_packed_b_pictures_come_out_in_display_order(divx: Path) -> None:
    """Neither the packets nor their times give that order."""
    frames = telecine.load(divx)
    assert [read_number(image) for image in frames.data] == list(range(30))
    assert np.allclose(np.diff(frames.timestamps), 1 / 25)
    assert [read_number(image) for image in reference(divx).frames] == list(range(30))
    for index in range(30):
        assert read_number(telecine.load(divx, indices=[index]).data[0]) == index


def test_leading_pictures_after_an_hevc_end_of_sequence_are_not_counted(tmp_path: Path) -> None:
    """In a recording that was cut and joined, they refer to pictures that are not in the file."""
    streams = []
    for name in ("part_ogop.mp4", "hevc_cra_first.mp4"):
        command = ["-i", CLIPS[name].path(), "-c", "copy", "-bsf:v", "hevc_mp4toannexb", "-f", "hevc", "pipe:1"]
        streams.append(ffmpeg(command))
    path = tmp_path / "joined.hevc"
    path.write_bytes(streams[0] + b"\0\0\0\1\x48\1" + streams[1])
    frames = telecine.load(path)
    assert frames.info.num_frames == 90 + 60
    # at an end of sequence the decoder discards pictures that it has not output yet, as the standard demands
    assert set(frames.report.lost) <= set(range(86, 90))
    assert [read_number(image) for image in frames.data[-60:]] == list(range(30, 90))


def test_a_memory_error_while_decoding_is_an_overload_error(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = registry.get_backend("pyav")

    def decode(request: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(type(backend), "decode", lambda self, request: decode(request))
    with pytest.raises(telecine.OverloadedError, match="not enough memory for it"):
        telecine.load(CLIPS["base.mp4"].path(), num_frames=2)
