"""The display matrix in every form that a header can have, compared with ffmpeg's own rotation."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference
from telecine.container.display_matrix import iso_orientation, matroska_orientation

ORIENTATIONS = [(turns, mirrored) for turns in range(4) for mirrored in (False, True)]
Change = Callable[[bytes], bytes]


def signs(turns: int, mirrored: bool) -> tuple[int, int, int, int]:
    """(a, b, c, d) of the matrix that turns clockwise and then mirrors; y points down."""
    a, b, c, d = [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)][turns]
    return (-a, b, -c, d) if mirrored else (a, b, c, d)


def matrix(a: float, b: float, c: float, d: float) -> bytes:
    return struct.pack(">9i", *(round(v * 65536) for v in (a, b, 0, c, d, 0, 0, 0)), 1 << 30)


def rewrite(data: bytes, **changes: Change) -> bytes:
    """Change boxes of a movie by their type; those around them grow along. The movie box must come last."""
    out = b""
    while data:
        (size,) = struct.unpack_from(">I", data)
        kind, payload = data[4:8].decode("latin-1"), data[8:size]
        if kind in ("moov", "trak"):
            payload = rewrite(payload, **changes)
        if kind in changes:
            payload = changes[kind](payload)
        out += payload if kind == "moov" and payload[4:8] == b"moov" else struct.pack(">I", len(payload) + 8)
        out += b"" if kind == "moov" and payload[4:8] == b"moov" else kind.encode("latin-1") + payload
        data = data[size:]
    return out


def with_matrix(*values: float) -> Change:
    """Of ``tkhd`` and ``mvhd`` alike, it ends a known number of bytes before the box does."""

    def change(payload: bytes) -> bytes:
        at = len(payload) - 36 - (28 if len(payload) in (100, 112) else 8)
        return payload[:at] + matrix(*values) + payload[at + 36 :]

    return change


def widened(times_and: int) -> Change:
    """Version 1 of a box, whose times and duration are 64 bits wide."""

    def change(payload: bytes) -> bytes:
        created, modified = struct.unpack_from(">II", payload, 4)
        kept = payload[12 : 12 + times_and]
        (duration,) = struct.unpack_from(">I", payload, 12 + times_and)
        head = b"\1" + payload[1:4] + struct.pack(">QQ", created, modified) + kept + struct.pack(">Q", duration)
        return head + payload[16 + times_and :]

    return change


def both(*changes: Change) -> Change:
    def change(payload: bytes) -> bytes:
        for one in changes:
            payload = one(payload)
        return payload

    return change


def agrees(path: Path, turns: int, mirrored: bool) -> None:
    """Loaded frames are rotated as declared, and as by the ffmpeg command line."""
    frames = telecine.load(path)
    assert (frames.info.rotation, frames.info.mirrored) == (90 * turns, mirrored)
    expected = reference(path).frames
    assert frames.data.shape == expected.shape
    assert np.abs(frames.data.astype(np.int16) - expected).max() <= 2


@pytest.mark.parametrize(("turns", "mirrored"), ORIENTATIONS)
@pytest.mark.parametrize("version", [0, 1])
def test_orientation_comes_from_the_track_matrix(turns: int, mirrored: bool, version: int, tmp_path: Path) -> None:
    """The eight orientations, in both versions of the track header."""
    data = CLIPS["two_frames.mp4"].bytes()
    change = with_matrix(*signs(turns, mirrored))
    path = tmp_path / "turned.mp4"
    path.write_bytes(rewrite(data, tkhd=both(widened(8), change) if version else change))
    agrees(path, turns, mirrored)


@pytest.mark.parametrize(("turns", "mirrored"), ORIENTATIONS)
def test_movie_matrix_is_applied_after_the_track_matrix(turns: int, mirrored: bool, tmp_path: Path) -> None:
    """The track is turned by 90 degrees, and then the movie."""
    own, whole = np.array(signs(1, False)).reshape(2, 2), np.array(signs(turns, mirrored)).reshape(2, 2)
    total = tuple((own @ whole).ravel().tolist())
    expected = next(each for each in ORIENTATIONS if signs(*each) == total)
    path = tmp_path / "movie.mp4"
    movie = both(widened(4), with_matrix(*signs(turns, mirrored))) if mirrored else with_matrix(*signs(turns, mirrored))
    path.write_bytes(rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*signs(1, False)), mvhd=movie))
    agrees(path, *expected)


def test_moov_box_with_64_bit_size_is_read(tmp_path: Path) -> None:
    """As writers make it that do not know beforehand how much will come."""

    def large(payload: bytes) -> bytes:
        return struct.pack(">I4sQ", 1, b"moov", len(payload) + 16) + payload

    path = tmp_path / "large.mp4"
    path.write_bytes(rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*signs(3, False)), moov=large))
    agrees(path, 3, False)


def test_moov_box_up_to_the_end_of_the_file_is_read(tmp_path: Path) -> None:
    """Size 0 says so."""
    data = rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*signs(2, False)))
    at = data.index(b"moov") - 4
    path = tmp_path / "open.mp4"
    path.write_bytes(data[:at] + bytes(4) + data[at + 4 :])
    agrees(path, 2, False)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("flip", ["", "-display_hflip"])
@pytest.mark.parametrize("kind", ["mp4", "mov", "mkv"])
def test_orientation_equals_the_rotation_that_ffmpeg_wrote(rotation: int, flip: str, kind: str, tmp_path: Path) -> None:
    """Its muxers have rules of their own for each container."""
    path = tmp_path / f"written.{kind}"
    source = CLIPS["two_frames.mp4"].path()
    ffmpeg(["-display_rotation", str(-rotation), *flip.split(), "-i", source, "-c", "copy", path])
    frames, expected = telecine.load(path), reference(path).frames
    assert frames.data.shape == expected.shape
    assert np.abs(frames.data.astype(np.int16) - expected).max() <= 2


@pytest.mark.parametrize(("pose", "angle"), [("yaw", 0), ("yaw", -180), ("yaw", 180), ("yaw", 90), ("pitch", 180)])
def test_matroska_poses_out_of_the_plane_are_ignored(pose: str, angle: float, tmp_path: Path) -> None:
    """A picture seen from the side or from below; only a half turn of the yaw is a mirror."""
    path = tmp_path / "posed.mkv"
    turned = ["-display_rotation", "-90", "-display_hflip", "-i", CLIPS["two_frames.mp4"].path(), "-c", "copy", path]
    ffmpeg(turned)
    # the muxer writes yaw and roll, as numbers of eight bytes; one of them becomes another
    data = path.read_bytes()
    at = data.index(b"\x76\x73\x88", data.index(b"\x76\x70"))
    element = b"\x76\x73\x88" if pose == "yaw" else b"\x76\x74\x88"
    path.write_bytes(data[:at] + element + struct.pack(">d", angle) + data[at + 11 :])
    frames, expected = telecine.load(path), reference(path).frames
    assert frames.data.shape == expected.shape
    assert np.abs(frames.data.astype(np.int16) - expected).max() <= 2


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_scale_of_the_matrix_is_ignored(scale: float) -> None:
    """Frames are returned in stored pixels."""
    data = rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*(scale * v for v in signs(1, False))))
    assert iso_orientation(memoryview(data), 1) == (1, False)


@pytest.mark.parametrize("values", [(0.7, 0.7, -0.7, 0.7), (0, 0, 0, 0), (1, 1, 1, 1)])
def test_matrix_that_is_no_quarter_turn_is_ignored(values: tuple[float, ...]) -> None:
    """Frames are never resampled for a slanted picture."""
    data = rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*values))
    assert iso_orientation(memoryview(data), 1) == (0, False)


def test_matrix_of_another_track_is_ignored() -> None:
    """Tracks are known by their numbers."""
    data = rewrite(CLIPS["two_frames.mp4"].bytes(), tkhd=with_matrix(*signs(1, False)))
    assert iso_orientation(memoryview(data), 1) == (1, False)
    assert iso_orientation(memoryview(data), 2) == (0, False)
    assert matroska_orientation(memoryview(CLIPS["rotated90.mkv"].bytes()), 1) == (0, False)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_orientation_readers_accept_any_bytes(data: st.DataObject) -> None:
    """Random bytes, and headers with random changes."""
    junk = data.draw(st.binary(max_size=200))
    name = data.draw(st.sampled_from(["two_frames.mp4", "rotated90.mkv"]))
    real = bytearray(CLIPS[name].bytes())
    start = real.find(b"moov") if name.endswith("mp4") else 0
    for at in data.draw(st.lists(st.integers(0, 900), max_size=8)):
        real[min(start + at, len(real) - 1)] ^= data.draw(st.integers(1, 255))
    for candidate in (junk, b"\0\0\0\0moov" + junk, b"\x1a\x45\xdf\xa3" + junk, b"\x18\x53\x80\x67\xff" + junk, real):
        for read in (iso_orientation, matroska_orientation):
            turns, mirrored = read(memoryview(bytes(candidate)), 1)
            assert turns in range(4) and mirrored in (False, True)
