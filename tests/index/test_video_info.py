"""Size, crop, aspect, colour and orientation: the bitstream counts, and the container is a hint."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference_frames
from telecine.backends.cuda_output import codec_refusal

SOURCE = "-f lavfi -i testsrc2=size={}x{}:rate=25:duration=0.4 -pix_fmt yuv420p"
ENCODERS = {
    "h264": "-c:v libx264 -preset ultrafast",
    "hevc": "-c:v libx265 -preset ultrafast -x265-params log-level=error",
    "vp8": "-c:v libvpx -deadline realtime -cpu-used 8",
    "vp9": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8",
    "av1": "-c:v libsvtav1 -preset 12",
    "mpeg4": "-c:v mpeg4",
    "mpeg2": "-c:v mpeg2video",
}


def encoded(folder: Path, codec: str, name: str, width: int = 160, height: int = 96, more: str = "") -> Path:
    path = folder / name
    ffmpeg([*SOURCE.format(width, height).split(), *ENCODERS[codec].split(), *more.split(), path])
    return path


def copied(path: Path, name: str, more: str = "") -> Path:
    target = path.parent / name
    ffmpeg(["-i", path, "-c", "copy", *more.split(), target])
    return target


def edited(path: Path, name: str, pattern: bytes, replacement: bytes) -> Path:
    """Replace the only match of a pattern by other bytes of its length."""
    data, count = re.subn(pattern, lambda _: replacement, path.read_bytes(), flags=re.DOTALL)
    assert count == 1 and len(data) == path.stat().st_size
    target = path.parent / name
    target.write_bytes(data)
    return target


def check(path: Path, backend: str = "pyav") -> telecine.Frames:
    """Compare all frames with those of the ffmpeg command line."""
    frames, expected = telecine.load(path, backend=backend), reference_frames(path)
    assert frames.data.shape == expected.shape
    assert np.abs(frames.data.astype(int) - expected).max() <= 2
    assert (frames.info.height, frames.info.width) == expected.shape[1:3]
    return frames


# crop


@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize(("left", "top"), [(2, 0), (16, 0), (32, 0), (16, 6)])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_a_crop_on_the_left_is_exact(tmp_path: Path, codec: str, left: int, top: int, container: str) -> None:
    whole = encoded(tmp_path, codec, f"whole.{container}", 128 + left, 96 + top)
    path = copied(whole, f"cropped.{container}", f"-bsf:v {codec}_metadata=crop_left={left}:crop_top={top}")
    frames = check(path)
    assert (frames.info.width, frames.info.height) == (128, 96)
    np.testing.assert_array_equal(frames.data, telecine.load(path, device="cpu", threads=1).data)
    for backend in (status.name for status in telecine.list_backends() if status.usable and status.name != "pyav"):
        with pytest.raises(telecine.UnsupportedVideoError, match="on the left"):
            telecine.load(path, backend=backend)


def test_gpu_backends_refuse_pictures_that_are_cropped_on_the_left() -> None:
    assert "cropped on the left" in (codec_refusal("h264", crops_left=True) or "")
    assert codec_refusal("h264", crops_left=False) is None


# size


@pytest.mark.parametrize("backend", ["pyav", "opencv"])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_crop_that_the_container_does_not_know_counts(tmp_path: Path, container: str, backend: str) -> None:
    whole = encoded(tmp_path, "h264", f"whole.{container}", 128)
    frames = check(copied(whole, f"narrow.{container}", "-bsf:v h264_metadata=crop_right=32"), backend)
    assert frames.info.width == 96 and [note.code for note in frames.report.notes] == ["size-from-bitstream"]


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
def test_the_size_of_a_sample_entry_is_a_hint(tmp_path: Path, codec: str) -> None:
    path = encoded(tmp_path, codec, "650.mp4", 650)
    entry = rb"(?<=(?:avc1|hev1|hvc1|mp4v).{24})\x02\x8a"
    check(edited(path, "656.mp4", entry, struct.pack(">H", 656)))


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2"])
def test_the_size_of_a_matroska_track_is_a_hint(tmp_path: Path, codec: str) -> None:
    path = encoded(tmp_path, codec, "160.mkv")
    check(edited(path, "168.mkv", rb"\xb0(?:\x81|\x82\x00)\xa0", _matroska_width(path, 168)))


def _matroska_width(path: Path, width: int) -> bytes:
    return b"\xb0\x81" + bytes([width]) if b"\xb0\x81\xa0" in path.read_bytes() else b"\xb0\x82\x00" + bytes([width])


@pytest.mark.parametrize("codec", ["vp8", "vp9", "av1"])
@pytest.mark.parametrize("size", [(200, 100), (0, 0)])
def test_the_size_of_an_ivf_header_is_a_hint(tmp_path: Path, codec: str, size: tuple[int, int]) -> None:
    path = encoded(tmp_path, codec, "right.ivf")
    check(edited(path, "wrong.ivf", rb"(?<=^.{12})\xa0\x00\x60\x00", struct.pack("<HH", *size)))


@pytest.mark.parametrize("codec", ["vp9", "av1"])
def test_a_container_without_a_size_is_read(tmp_path: Path, codec: str) -> None:
    """Enhanced RTMP in FLV has none; MP4 with zeros."""
    check(encoded(tmp_path, codec, "video.flv"))
    entry = rb"(?<=(?:vp09|av01).{24})\x00\xa0\x00\x60"
    check(edited(encoded(tmp_path, codec, "video.mp4"), "zero.mp4", entry, bytes(4)))


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_the_first_picture_gives_the_size_of_a_file_with_two_sample_entries(tmp_path: Path, codec: str) -> None:
    first, second = (encoded(tmp_path, codec, f"{width}.mp4", width) for width in (160, 96))
    listed = tmp_path / "list.txt"
    listed.write_text(f"file {first.name}\nfile {second.name}\n")
    path = tmp_path / "both.mp4"
    ffmpeg(["-f", "concat", "-i", listed, "-c", "copy", path])
    frames = telecine.load(path)
    assert (frames.info.width, frames.info.height) == (160, 96) and len(frames) == 20
    np.testing.assert_array_equal(frames.data[:10], telecine.load(first).data)


# aspect


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_the_aspect_ratio_of_pixels_turns_with_the_picture(tmp_path: Path, turn: int, container: str) -> None:
    flat = encoded(tmp_path, "h264", f"flat.{container}", more="-vf setsar=4/3")
    path = tmp_path / f"turned.{container}"
    ffmpeg(["-display_rotation", str(turn), "-i", flat, "-c", "copy", path])
    info = telecine.probe(path)
    assert info.rotation in ({turn, 360 - turn} if turn else {0})
    assert info.sample_aspect_ratio == (Fraction(3, 4) if turn % 180 else Fraction(4, 3))


# orientation


def test_rotation_of_a_matroska_track_with_another_number_is_applied() -> None:
    data = CLIPS["rotated90.mkv"].bytes()
    renumbered = bytearray(data.replace(b"\xd7\x81\x01", b"\xd7\x81\x05", 1))
    with av.open(io.BytesIO(data)) as container:
        payloads = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    at = 0
    for payload in payloads:  # before it, a block has the number of its track, the time in two bytes and flags
        at = renumbered.index(payload, at)
        assert renumbered[at - 4] == 0x81
        renumbered[at - 4] = 0x85
    frames = telecine.load(bytes(renumbered))
    np.testing.assert_array_equal(frames.data, telecine.load(data).data[frames.indices])
    assert frames.info.rotation == 90 and len(frames) == 30


def test_rotation_in_a_compressed_movie_box_is_applied() -> None:
    data = CLIPS["rotated90.mp4"].bytes()
    at = data.index(b"moov") - 4
    (size,) = struct.unpack_from(">I", data, at)
    assert at + size == len(data)  # no offset changes
    packed = zlib.compress(data[at:])

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", 8 + len(content)) + kind + content

    compressed = box(b"cmov", box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", size) + packed))
    frames = telecine.load(data[:at] + box(b"moov", compressed))
    np.testing.assert_array_equal(frames.data, telecine.load(data).data)
    assert frames.info.rotation == 90


# fields

FIELDS = {
    "mpeg2": "-c:v mpeg2video -flags +ildct+ilme",
    "h264": "-c:v libx264 -flags +ildct+ilme",
    "prores": "-c:v prores_ks -flags +ildct+ilme",
    "dv": "-s 720x576 -c:v dvvideo",
    "mpeg4": "-c:v mpeg4 -flags +ildct+ilme",
}


@pytest.mark.parametrize("container", ["mkv", "avi", "mov"])
@pytest.mark.parametrize("fields", ["tff", "bff"])
@pytest.mark.parametrize("codec", FIELDS)
def test_interlaced_video_is_known_in_every_container(tmp_path: Path, codec: str, fields: str, container: str) -> None:
    path = tmp_path / f"clip.{container}"
    ffmpeg([*SOURCE.format(160, 96).split(), "-vf", f"setfield={fields}", *FIELDS[codec].split(), path])
    assert telecine.probe(path).interlaced
    if codec != "dv":
        flat = FIELDS[codec].replace("-flags +ildct+ilme", "").split()
        ffmpeg([*SOURCE.format(160, 96).split(), "-vf", "setfield=prog", *flat, path])
        assert not telecine.probe(path).interlaced


def test_a_jpeg_of_half_the_height_is_a_field(tmp_path: Path) -> None:
    """Motion JPEG of two fields: two images in a packet."""
    field = tmp_path / "field.avi"
    ffmpeg([*SOURCE.format(160, 48).split(), "-c:v", "mjpeg", "-pix_fmt", "yuvj420p", field])
    path = tmp_path / "both.avi"
    with av.open(str(field)) as source, av.open(str(path), "w") as muxer:
        stream = muxer.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuvj420p"
        for packet in source.demux(video=0):
            if packet.size:
                double = av.Packet(2 * bytes(packet))
                double.pts, double.dts, double.time_base = packet.pts, packet.dts, packet.time_base
                double.is_keyframe, double.stream = True, stream
                muxer.mux_one(double)
    assert telecine.probe(path).interlaced and not telecine.probe(field).interlaced
    check(path)


# notes

UNCHANGED = {
    "hdr": "-c:v libx265 -pix_fmt yuv420p10le -x265-params log-level=error:transfer=arib-std-b67",
    "bit-depth": "-c:v libx264 -pix_fmt yuv420p10le",
    "alpha": "-c:v ffv1 -pix_fmt yuva420p",
    "non-square-pixels": "-c:v libx264 -vf setsar=4/3",
    "interlaced": "-c:v mpeg2video -flags +ildct+ilme -field_order tt",
}


@pytest.mark.parametrize("code", UNCHANGED)
def test_a_note_names_what_frames_are_not_converted_for(tmp_path: Path, code: str) -> None:
    path = tmp_path / "clip.mkv"
    ffmpeg([*SOURCE.format(160, 96).split(), *UNCHANGED[code].split(), path])
    codes = [note.code for note in telecine.probe(path).notes]
    assert code in codes and codes == [note.code for note in telecine.load(path, num_frames=1).report.notes]
    assert set(codes) <= {code, "bit-depth"}


@pytest.mark.parametrize(("transfer", "name"), [("smpte2084", "PQ"), ("arib-std-b67", "HLG")])
def test_the_transfer_of_hdr_is_shown_by_the_command_line(tmp_path: Path, transfer: str, name: str) -> None:
    path = tmp_path / "clip.mp4"
    encoder = (
        f"-c:v libx264 -pix_fmt yuv420p10le -x264-params transfer={transfer}:colorprim=bt2020:colormatrix=bt2020nc"
    )
    ffmpeg([*SOURCE.format(160, 96).split(), *encoder.split(), path])
    shown = subprocess.run(
        [sys.executable, "-m", "telecine", "probe", path], capture_output=True, text=True, check=True
    )
    assert re.search(rf"colour +matrix bt2020nc, .*transfer {name}", shown.stdout), shown.stdout
