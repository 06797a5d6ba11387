"""Right frames although the container is wrong about key frames, order, times, palettes or missing packets.

Every frame carries its number, so that a neighbour, a mixture and a picture out of order all are seen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import telecine
from support.clips import read_number, reference
from support.true_frames_clips import DAMAGES, clip, damaged
from telecine.index import packet_scan
from telecine.plan import packet_reader as reader_module

_SHORT, _LONG = range(24), range(48)
_JOINED = [*range(20), *range(100, 120)]
_AVI_CODECS = ["flv1", "wmv1", "wmv2", "msmpeg4v2", "msmpeg4v3"]


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no packets, as for a long video, so that they are read a second time by seeking."""
    monkeypatch.setattr(packet_scan, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(reader_module, "_MAX_PACKETS_READ_OVER", 2)


def numbers_of(frames: telecine.Frames) -> list[int]:
    return [read_number(image) for image in frames.data]


def load_whole(path: Path, numbers: range | list[int]) -> telecine.Frames:
    """Load all frames and check that they have these numbers."""
    frames = telecine.load(path)
    assert numbers_of(frames) == list(numbers)
    assert frames.report.lost == ()
    assert frames.info.num_frames == len(numbers)
    assert (np.diff(frames.timestamps) > 0).all()
    return frames


def check_each_alone(path: Path, whole: telecine.Frames) -> None:
    """Check that a frame loaded alone equals that of the whole video."""
    data = path.read_bytes()
    for index in range(whole.info.num_frames):
        alone = telecine.load(data, indices=[index])
        assert alone.report.lost == ()
        assert alone.timestamps[0] == whole.timestamps[index]
        assert np.array_equal(alone.data[0], whole.data[index]), f"frame {index}"


@pytest.mark.parametrize(
    "name",
    ["h263.avi", "h263.mkv", *(f"{codec}_{fault}.avi" for codec in _AVI_CODECS for fault in ("no_index", "all_key"))],
)
def test_decoding_does_not_start_at_wrongly_flagged_key_frames(name: str) -> None:
    """FFmpeg's H.263 parser flags every picture; an AVI file may have no index, or one that is false."""
    check_each_alone(clip(name), load_whole(clip(name), _SHORT))


def test_packed_bitstream_with_consecutive_b_pictures_gives_every_frame() -> None:
    """The second of them is a packet of its own, and the decoder then gives the one before it."""
    path = clip("xvid_packed.avi")
    check_each_alone(path, load_whole(path, range(46)))  # the encoder keeps back the last two


@pytest.mark.parametrize("name", ["mpeg4_interlaced.avi", "mpeg4_interlaced.mp4"])
def test_interlaced_mpeg4_b_pictures_do_not_depend_on_the_decode_start(name: str) -> None:
    """The first B picture that a decoder gets sets the field distance for all later ones."""
    check_each_alone(clip(name), load_whole(clip(name), range(36)))


@pytest.mark.parametrize("name", ["overflow_h264.ts", "overflow_mpeg2.ts"])
def test_transport_stream_timestamps_may_wrap(name: str) -> None:
    """Its 33 bits last for 26.5 hours, and a recording may begin at any time of it."""
    whole = load_whole(clip(name), _LONG)
    np.testing.assert_allclose(whole.timestamps, np.array(_LONG) / 30, atol=1e-4)
    assert whole.info.duration == pytest.approx(48 / 30, abs=1e-4)
    check_each_alone(clip(name), whole)


@pytest.mark.parametrize(
    ("name", "numbers", "length"),
    [
        ("joined_h264.ts", [*range(200, 212), *range(100, 120)], 12),
        ("joined_mpeg2.ts", [*range(50, 80), *range(30)], 30),
    ],
)
def test_joined_recording_with_earlier_timestamps_is_shown_second(name: str, numbers: list[int], length: int) -> None:
    """Also if the first is so short that a decoder could have delayed all of it."""
    frames = telecine.load(clip(name))
    assert frames.info.num_frames == len(numbers)
    assert numbers_of(frames) == [numbers[index] for index in frames.indices]
    # the packets' counters jump where it was joined: the last ones decoded before may be damaged, for all one knows
    assert set(frames.report.lost) <= {length - 3, length - 2, length - 1}
    assert set(frames.report.lost).isdisjoint(frames.indices.tolist())
    np.testing.assert_allclose(frames.timestamps, frames.indices / 30, atol=1e-3)
    for index in frames.indices.tolist():
        assert numbers_of(telecine.load(clip(name), indices=[index])) == [numbers[index]]


@pytest.mark.parametrize("codec", ["av1", "vp9", "mjpeg"])
def test_joined_recordings_are_shown_one_after_the_other(codec: str) -> None:
    """Both begin at zero; the times of the second do not put its frames between those of the first."""
    path = clip(f"{codec}_joined.mkv")
    whole = load_whole(path, _JOINED)
    np.testing.assert_allclose(whole.timestamps, np.arange(40) / 30, atol=2e-3)
    check_each_alone(path, whole)


@pytest.mark.parametrize("name", ["h264.mxf", "h264_no_ctts.mp4"])
def test_bitstream_gives_the_order_if_pts_are_really_dts(name: str) -> None:
    whole = load_whole(clip(name), _LONG)
    np.testing.assert_allclose(whole.timestamps, np.array(_LONG) / 30, atol=1e-4)
    check_each_alone(clip(name), whole)


@pytest.mark.parametrize("name", ["edits.mp4", "edits_reversed.mp4", "edits_and_gap.mp4"])
def test_entries_of_an_edit_list_have_its_times(name: str) -> None:
    """The gap between them takes no time, as with the ffmpeg command line."""
    expected = reference(clip(name))
    whole = load_whole(clip(name), [read_number(image) for image in expected.frames])
    np.testing.assert_allclose(whole.timestamps, expected.seconds, atol=1e-4)
    check_each_alone(clip(name), whole)


@pytest.mark.parametrize("name", ["hevc_fields.mp4", "mpeg4_interlaced.avi", "mpeg4_interlaced.mp4"])
def test_opencv_refuses_interlaced_video_of_these_codecs(name: str) -> None:
    """It returns uninitialised memory, and reports success."""
    pytest.importorskip("cv2")
    for wanted in ([0], [13], None):
        with pytest.raises(telecine.UnsupportedVideoError, match="interlaced"):
            telecine.load(clip(name), backend="opencv", indices=wanted)


def test_palette_applies_to_packets_that_are_read_again(read_again: None) -> None:
    """The demuxer attaches it to the first packet only, and not again after a seek."""
    path = clip("smc.mov")
    check_each_alone(path, load_whole(path, _SHORT))


def test_leading_b_pictures_after_a_broken_link_are_not_shown() -> None:
    """They were built on a group of pictures that was cut out, and the decoder mixes them from another one."""
    path = clip("broken_link.m2v")
    whole = load_whole(path, [*range(10), *range(24, 48)])
    check_each_alone(path, whole)


@pytest.mark.parametrize(("name", "seed"), DAMAGES)
def test_no_frame_is_wrong_in_a_transport_stream_with_missing_packets(name: str, seed: int) -> None:
    """Decoders conceal missing data without reporting it; the container reports it."""
    undamaged = telecine.load(clip(name))
    data = damaged(clip(name).read_bytes(), seed)
    whole = telecine.load(data)
    numbers = dict(zip(whole.indices.tolist(), numbers_of(whole), strict=True))
    assert np.array_equal(whole.data, undamaged.data[list(numbers.values())])
    assert (np.diff(list(numbers.values())) > 0).all()
    assert whole.report.lost == tuple(sorted(set(range(whole.info.num_frames)) - numbers.keys()))
    for index in range(whole.info.num_frames):
        try:
            alone = telecine.load(data, indices=[index])
        except telecine.DecodeError:
            assert index in whole.report.lost
            continue
        (number,) = numbers_of(alone)
        assert number == numbers.get(index, number)
        assert np.array_equal(alone.data[0], undamaged.data[number]), f"frame {index}"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("qtrle.mov", 24),
        ("msrle.avi", 24),
        ("raw_rgb24.avi", 4),
        ("raw_rgb24.mov", 4),
        ("raw_pal8.avi", 4),
        ("raw_pal8.mov", 4),
    ],
)
def test_codecs_with_the_bit_depth_in_the_container_are_decoded(name: str, count: int) -> None:
    check_each_alone(clip(name), load_whole(clip(name), range(count)))


@pytest.mark.parametrize(
    ("name", "numbers"), [("two.mjpeg", range(2)), ("ffv1_joined.mkv", _JOINED), ("mpeg4_joined.mkv", _JOINED)]
)
def test_file_that_seeks_wrongly_is_read_from_its_start(
    name: str, numbers: range | list[int], read_again: None
) -> None:
    """After a seek some demuxers give other times, or no packet at all."""
    path = clip(name)
    check_each_alone(path, load_whole(path, numbers))
