"""Packets whose headers are destroyed keep their place in every container, and no other frame takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from support.ffmpeg_cli import ffmpeg

Damage = Callable[[bytes], bytes]


def set_byte(at: int, value: int) -> Damage:
    return lambda packet: packet[:at] + bytes([value]) + packet[at + 1 :]


def zeros_from(at: int) -> Damage:
    return lambda packet: packet[:at] + bytes(len(packet) - at)


def packets_of(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def damaged(path: Path, number: int, damage: Damage) -> bytes:
    """Return a file with one packet changed: the given one, or the first after it that is in the file as it is."""
    data = path.read_bytes()
    packet = next(p for p in packets_of(path)[number:] if data.count(p) == 1 and damage(p) != p)
    return data.replace(packet, damage(packet))


def check(data: bytes, name: str, backend: str = "pyav", min_frames: int = 1) -> telecine.Frames:
    """Check that all frames are counted, that each returned one is right, and that the others are named as lost."""
    clip = CLIPS[name]
    frames = telecine.load(data, backend=backend)
    assert frames.info.num_frames == clip.num_frames
    assert [read_number(frame) for frame in frames.data] == [clip.numbers[index] for index in frames.indices]
    assert np.abs(frames.data.astype(int) - clip.reference().frames[frames.indices]).max() <= 2
    assert sorted([*frames.indices.tolist(), *frames.report.lost]) == list(range(clip.num_frames))
    assert frames.report.lost and len(frames) >= min_frames
    with pytest.raises(telecine.DecodeError):
        telecine.load(data, backend=backend, errors="strict")
    return frames


@pytest.mark.parametrize(
    ("container", "backend"), [(c, "pyav") for c in ("mp4", "mkv", "flv", "avi", "mxf", "nut")] + [("mp4", "opencv")]
)
@pytest.mark.parametrize("kind", [0x00, 0x05, 0x06, 0x07, 0x48, 0x69, 0x0C, 0x14, 0x1F, 0xC7, 0xE1])
def test_h264_pictures_with_another_unit_type_keep_their_place(
    kind: int, container: str, backend: str, tmp_path: Path
) -> None:
    """Types of IDR pictures, messages, parameter sets, filler, reserved units, and with the forbidden bit set."""
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS["h264_pyramid.mp4"].path(), "-c", "copy", path])
    check(damaged(path, 14, set_byte(4, kind)), "h264_pyramid.mp4", backend, 20)


@pytest.mark.parametrize(
    ("container", "backend"), [("mp4", "pyav"), ("mkv", "pyav"), ("flv", "pyav"), ("mp4", "opencv")]
)
@pytest.mark.parametrize(
    "header", [b"\x40\1", b"\x42\1", b"\x44\1", b"\x4e\1", b"\x21\1", b"\x64\1", b"\x02\0", b"\xb5\1"]
)
def test_hevc_pictures_with_another_unit_type_keep_their_place(
    header: bytes, container: str, backend: str, tmp_path: Path
) -> None:
    """Types of parameter sets, messages, pictures of other layers, reserved units, and with invalid fixed bits."""
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS["hevc.mp4"].path(), "-c", "copy", path])
    check(damaged(path, 14, lambda packet: packet[:4] + header + packet[6:]), "hevc.mp4", backend, 20)


@pytest.mark.parametrize("container", ["mp4", "mkv", "avi", "flv"])
@pytest.mark.parametrize("name", ["base.mp4", "h264_no_b.mp4", "h264_pyramid.mp4"])
def test_a_destroyed_first_packet_keeps_its_place(name: str, container: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", path])
    frames = check(damaged(path, 0, zeros_from(1)), name, min_frames=10)
    assert 0 in frames.report.lost


@pytest.mark.parametrize("container", ["avi", "mxf", "flv"])
@pytest.mark.parametrize("name", ["base.mp4", "h264_pyramid.mp4", "h264_open_gop.mp4"])
def test_a_destroyed_packet_exchanges_no_frames_if_only_the_bitstream_has_the_order(
    name: str, container: str, tmp_path: Path
) -> None:
    """B-pictures in containers without presentation times: one picture without a header leaves the others in order."""
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", path])
    for number in range(1, 13, 2):
        check(damaged(path, number, zeros_from(0)), name, min_frames=20)


@pytest.mark.parametrize(
    ("name", "container"), [("mpeg4.mp4", "avi"), ("mpeg4.mp4", "mkv"), ("mpeg2.mp4", "avi"), ("mpeg2.mp4", "mkv")]
)
def test_a_destroyed_packet_of_mpeg_exchanges_no_frames(name: str, container: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", path])
    for number in range(1, 8):
        check(damaged(path, number, zeros_from(0)), name, min_frames=10)


@pytest.mark.parametrize("container", ["mp4", "webm", "ivf"])
@pytest.mark.parametrize("name", ["av1_svt.mp4", "av1_aom.mp4"])
@pytest.mark.parametrize(
    "damage", [zeros_from(0), zeros_from(4), zeros_from(8), set_byte(1, 2)],
    ids=["zeros", "zeros from 4", "zeros from 8", "size"],
)  # fmt: skip
def test_temporal_units_of_av1_keep_their_place(damage: Damage, name: str, container: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", path])
    for number in range(20, 25, 2):
        check(damaged(path, number, damage), name)


@pytest.mark.parametrize("container", ["webm", "mp4", "ivf"])
def test_a_destroyed_superframe_of_vp9_keeps_its_place(container: str, tmp_path: Path) -> None:
    """Without the index at its end, only the hidden frame at its start is left."""
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS["vp9_altref.webm"].path(), "-c", "copy", path])
    number = next(i for i, packet in enumerate(packets_of(path)) if i > 10 and packet[-1] & 0xE0 == 0xC0)
    check(damaged(path, number, zeros_from(1)), "vp9_altref.webm")


def test_a_vp9_frame_that_a_flipped_bit_turns_into_a_repeat_is_lost() -> None:
    path = CLIPS["vp9_altref.webm"].path()
    frames = check(damaged(path, 21, lambda packet: bytes([packet[0] | 0x08]) + packet[1:]), "vp9_altref.webm")
    assert not frames.info.notes


# decoders that keep the picture before, without a sign


@pytest.mark.parametrize("container", ["mkv", "avi", "mov"])
@pytest.mark.parametrize(
    "damage", [zeros_from(0), zeros_from(200), set_byte(300, 0xAA)], ids=["all", "end", "one byte"]
)
def test_ffv1_slices_with_wrong_checksums_are_lost(damage: Damage, container: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS["ffv1.mkv"].path(), "-c", "copy", path])
    frames = check(damaged(path, 7, damage), "ffv1.mkv")
    assert frames.report.lost == (7,)


@pytest.fixture(scope="module")
def paint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that encodes the pictures of a clip by other options into a file with a suffix."""

    def encode(options: str, suffix: str) -> Path:
        path = tmp_path_factory.mktemp("clip") / f"clip.{suffix}"
        ffmpeg(["-i", CLIPS["ffv1.mkv"].path(), *options.split(), path])
        return path

    return encode


QTRLE = [(f"-c:v qtrle -pix_fmt {pixels}", "mov", at) for pixels in ("rgb24", "argb", "rgb555be") for at in (0, 6, 400)]
MSMPEG4 = [("wmv1", "asf"), ("wmv1", "avi"), ("msmpeg4v2", "avi"), ("msmpeg4", "avi")]


@pytest.mark.parametrize(
    ("options", "suffix", "offset"),
    QTRLE + [(f"-c:v {codec} -q:v 3", suffix, at) for codec, suffix in MSMPEG4 for at in (4, 16)],
)
def test_the_picture_before_is_no_substitute_for_a_destroyed_one(
    options: str, suffix: str, offset: int, paint: Callable[[str, str], Path]
) -> None:
    """The rest of a packet is zeros, which ends lines or overflows blocks."""
    path = paint(f"{options} -g 30", suffix)
    intact = telecine.load(path)
    assert intact.report.lost == () and len(intact) == CLIPS["ffv1.mkv"].num_frames
    frames = telecine.load(damaged(path, 12, zeros_from(offset)))
    assert frames.report.lost and frames.info.num_frames == len(intact)
    np.testing.assert_array_equal(frames.data, intact.data[frames.indices])


@pytest.mark.parametrize("name", ["hevc_open_gop.mp4", "h264_open_gop.mp4"])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_leading_pictures_of_a_destroyed_random_access_point_count(name: str, container: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", path])
    with av.open(str(path)) as source:
        keys = [i for i, packet in enumerate(source.demux(video=0)) if packet.is_keyframe]
    check(damaged(path, keys[1], zeros_from(1)), name, min_frames=10)


def test_an_mpeg2_key_frame_of_which_only_the_headers_are_left_counts(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    ffmpeg(["-i", CLIPS["mpeg2.mp4"].path(), "-c", "copy", path])
    check(damaged(path, 0, zeros_from(30)), "mpeg2.mp4")


@pytest.mark.parametrize("name", ["vp9_realtime.webm", "av1_svt.mp4"])
@pytest.mark.parametrize("number", [20, -1])
def test_an_absurd_time_of_ivf_neither_moves_nor_refuses_frames(name: str, number: int, tmp_path: Path) -> None:
    clip, path = CLIPS[name], tmp_path / "clip.ivf"
    ffmpeg(["-i", clip.path(), "-c", "copy", path])
    data, at = bytearray(path.read_bytes()), [32]
    while at[-1] < len(data):
        at.append(at[-1] + 12 + int.from_bytes(data[at[-1] : at[-1] + 4], "little"))
    data[at[:-1][number] + 9] = 0x7F
    frames = telecine.load(bytes(data))
    assert frames.info.num_frames == clip.num_frames and frames.report.lost == () and frames.info.duration < 10
    assert [read_number(frame) for frame in frames.data] == list(clip.numbers)
    assert "times-rebuilt" in [note.code for note in frames.report.notes]


def test_a_codec_tag_that_is_no_text_is_no_error() -> None:
    data = CLIPS["mpeg4.mp4"].bytes()
    frames = telecine.load(data.replace(b"mp4v\0\0\0\0", b"mp4\x80\0\0\0\0"))
    assert frames.report.lost == () and len(frames) == CLIPS["mpeg4.mp4"].num_frames
