"""Transport streams that end inside a picture, lack packets, or were joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference_frames
from telecine.backends.registry import get_backend
from telecine.container.demuxer import Demuxer
from telecine.container.transport_stream import ends_inside_payload, find_clean_gaps
from telecine.deadline import Deadline
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.source.source import open_source

_PID = 0x100
_PACKET = 188


def _stream(folder: Path, name: str, *options: str) -> bytes:
    target = folder / "whole.ts"
    ffmpeg(["-i", str(CLIPS[name].path()), "-map", "0:v", "-c", "copy", *options, "-f", "mpegts", str(target)])
    return target.read_bytes()


def _packets(data: bytes) -> list[tuple[int, int, bool]]:
    """Return (position, PID, starts a picture) of each transport packet."""
    return [
        (at, (data[at + 1] & 0x1F) << 8 | data[at + 2], bool(data[at + 1] & 0x40))
        for at in range(0, len(data) - _PACKET + 1, _PACKET)
    ]


def _cuts(data: bytes, continued: bool) -> list[int]:
    """Return positions inside transport packets of the video that continue a picture, or that start one."""
    found = [at for at, pid, starts in _packets(data) if pid == _PID and starts != continued]
    chosen = found[len(found) // 3 :: max(1, len(found) // 6)]
    return [at + rest for at, rest in zip(chosen, (3, 50, 100, 150, 187, 20, 90), strict=False)]


@pytest.mark.parametrize("backend", ["pyav", "opencv", "torchcodec"])
@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "h264_no_b.mp4", "hevc_open_gop.mp4", "mpeg2.mp4"])
def test_the_last_picture_is_lost_if_the_file_ends_inside_it(tmp_path: Path, name: str, backend: str) -> None:
    if not get_backend(backend).status().usable:
        pytest.skip(f"{backend} is not installed")
    data = _stream(tmp_path, name)
    whole = telecine.load(data)
    known = {round(time * 1000): picture for time, picture in zip(whole.timestamps, whole.data, strict=True)}
    for cut in _cuts(data, continued=True):
        frames = telecine.load(data[:cut], backend=backend)
        assert len(frames.report.lost) == 1, f"cut at {cut}"
        assert [note.code for note in frames.report.notes] == ["truncated"]
        for time, picture in zip(frames.timestamps, frames.data, strict=True):
            assert np.abs(picture.astype(int) - known[round(time * 1000)]).max() <= 3, f"cut at {cut}, {time} s"
        with pytest.raises(telecine.DecodeError, match="could not be decoded"):
            telecine.load(data[:cut], backend=backend, errors="strict")


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4"])
def test_no_picture_is_lost_if_the_file_ends_where_the_next_one_starts(tmp_path: Path, name: str) -> None:
    data = _stream(tmp_path, name)
    for cut in _cuts(data, continued=False):
        frames = telecine.load(data[:cut])
        assert frames.report.lost == () and frames.report.notes == (), f"cut at {cut}"


def test_a_whole_file_loses_no_picture(tmp_path: Path) -> None:
    data = _stream(tmp_path, "h264_pyramid.mp4")
    assert telecine.load(data).report.notes == ()
    assert len(telecine.load(data)) == 60


def test_the_cut_is_found_for_packets_of_188_192_and_204_bytes(tmp_path: Path) -> None:
    data = _stream(tmp_path, "h264_pyramid.mp4")
    layouts = {188: (b"", b""), 192: (b"\0\1\2\3", b""), 204: (b"", bytes(range(16)))}
    at = next(at for at, pid, starts in reversed(_packets(data)) if pid == _PID and not starts)
    number = at // _PACKET
    for size, (before, after) in layouts.items():
        packets = [before + data[i : i + _PACKET] + after for i in range(0, len(data), _PACKET)]
        stream = b"".join(packets)
        start = number * size + len(before)
        assert not ends_inside_payload(memoryview(stream), _PID)
        for rest in (3, 4, 100, 187):
            assert ends_inside_payload(memoryview(stream[: start + rest]), _PID), (size, rest)
            assert not ends_inside_payload(memoryview(stream[: start + rest]), _PID + 1)
        for rest in (0, 188, size):
            assert not ends_inside_payload(memoryview(stream[: start + rest]), _PID), (size, rest)


@pytest.mark.parametrize("data", [b"", b"G", b"G" * 2, b"G" * 1000, bytes(5000)])
def test_other_bytes_are_no_cut_picture(data: bytes) -> None:
    assert not ends_inside_payload(memoryview(data), _PID)


def _pictures(data: bytes) -> list[list[bytes]]:
    """Return the transport packets of a stream, grouped by the picture that starts in the first one."""
    groups: list[list[bytes]] = [[]]
    for at, pid, starts in _packets(data):
        if pid == _PID and starts:
            groups.append([])
        groups[-1].append(data[at : at + _PACKET])
    return groups


@pytest.mark.parametrize("size", ["192x144", "128x96"])
@pytest.mark.parametrize("layout", [[], ["-mpegts_m2ts_mode", "1"]], ids=["ts", "m2ts"])
@pytest.mark.parametrize("offset", [0, 100, -1])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_no_picture_is_lost_where_files_were_joined(
    tmp_path: Path, codec: str, offset: int, layout: list[str], size: str
) -> None:
    files = [tmp_path / "first.ts", tmp_path / "second.ts"]
    for file, of_size, start in zip(files, ("192x144", size), (5, 5 + offset), strict=True):
        source = ["-f", "lavfi", "-i", f"testsrc2=size={of_size}:rate=25", "-frames:v", "20", "-pix_fmt", "yuv420p"]
        ffmpeg([*source, "-c:v", codec, "-g", "8", "-threads", "1", "-output_ts_offset", str(start), *layout, file])
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(file.read_bytes() for file in files))
    frames = telecine.load(joined, size=(192, 144))
    assert frames.report.lost == () and len(frames) == 40
    expected = np.concatenate([telecine.load(file, size=(192, 144)).data for file in files])
    np.testing.assert_array_equal(frames.data, expected)


def _index(data: bytes) -> PacketIndex:
    limits, deadline = Limits(), Deadline()
    with open_source(data, limits, deadline) as source, Demuxer(source, deadline) as demuxer:
        return read_index(demuxer, limits, deadline)


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "mpeg2.mp4"])
def test_no_picture_is_corrupt_if_whole_ones_are_missing_beside_it(tmp_path: Path, name: str) -> None:
    data = _stream(tmp_path, name)
    whole = telecine.load(data)
    known = {round(time * 1000): picture for time, picture in zip(whole.timestamps, whole.data, strict=True)}
    pictures = _pictures(data)
    cut = b"".join(b"".join(group) for group in [*pictures[:21], *pictures[22:]])
    index = _index(cut)
    assert not index.corrupt.any() and index.clean_gaps.tolist() == [20]
    frames = telecine.load(cut)
    for time, picture in zip(frames.timestamps, frames.data, strict=True):
        assert np.abs(picture.astype(int) - known[round(time * 1000)]).max() <= 3, f"{time} s"


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "mpeg2.mp4"])
def test_a_picture_without_one_of_its_transport_packets_is_corrupt(tmp_path: Path, name: str) -> None:
    pictures = _pictures(_stream(tmp_path, name))
    number = next(i for i in range(22, 50) if len(pictures[i]) > 3 and all(p[1:3] != b"\x40\x00" for p in pictures[i]))
    for missing in (1, -1):
        group = [*pictures[number]]
        del group[missing]
        index = _index(b"".join(b"".join(group) for group in [*pictures[:number], group, *pictures[number + 1 :]]))
        assert index.corrupt[number - 1]  # the first group has no picture
        assert len(index.clean_gaps) == 0


def test_a_gap_that_cannot_be_located_is_not_clean(tmp_path: Path) -> None:
    data = bytearray(_stream(tmp_path, "h264_pyramid.mp4"))
    positions = [at for at, pid, starts in _packets(bytes(data)) if pid == _PID and starts][20:23]
    assert find_clean_gaps(memoryview(data), _PID, positions) == []
    data[positions[2] + 3] ^= 5  # the continuity counter of the first packet of a picture
    assert find_clean_gaps(memoryview(data), _PID, positions) == [2]
    assert find_clean_gaps(memoryview(data), _PID, [*positions[:2], positions[2] + 1]) == []
    data[positions[1]] = 0
    assert find_clean_gaps(memoryview(data), _PID, positions) == []
    assert find_clean_gaps(memoryview(bytes(5000)), _PID, [0, 188, 376]) == []


@pytest.mark.parametrize(
    "options",
    [["-c:v", "libx265", "-x265-params", "keyint=25:log-level=error"], ["-c:v", "mpeg2video", "-bf", "2", "-g", "24"]],
    ids=["hevc", "mpeg2"],
)
def test_leading_pictures_need_the_segment_before_theirs(tmp_path: Path, options: list[str]) -> None:
    source = ["-f", "lavfi", "-i", "testsrc2=size=192x144:rate=25", "-frames:v", "100", "-pix_fmt", "yuv420p"]
    ffmpeg([*source, *options, "-f", "segment", "-segment_time", "1", "-segment_format", "mpegts", tmp_path / "%d.ts"])
    segments = [(tmp_path / f"{number}.ts").read_bytes() for number in range(4)]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(segments))
    frames = telecine.load(joined)
    assert frames.report.lost == () and len(frames) == 100
    assert np.abs(frames.data.astype(int) - reference_frames(joined)).max() <= 2
    assert telecine.load(b"".join([segments[0], *segments[2:]])).report.lost
