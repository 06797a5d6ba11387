"""Every frame of every clip is right, for every kind of request, verified with the ffmpeg command line."""

from __future__ import annotations

import random

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, Clip, read_number
from telecine.index import packet_scan
from telecine.plan import packet_reader as reader_module

DECODABLE = [clip for clip in CLIPS.values() if clip.num_frames and "part" not in clip.tags]
UNDAMAGED = [clip for clip in DECODABLE if not clip.damaged and not clip.lost]

TOLERANCE = 2
"""Per channel, against another build of FFmpeg: rule 5 of the contract on the CPU."""


@pytest.mark.parametrize("clip", DECODABLE, ids=str)
def test_count_sizes_and_times_equal_those_of_ffmpeg(clip: Clip) -> None:
    """The facts come from packets, and are those of ffmpeg's frames."""
    frames = telecine.load(clip.path())
    assert frames.info.num_frames == clip.num_frames
    assert (frames.info.width, frames.info.height) == (clip.width, clip.height)
    assert frames.data.shape[1:] == (clip.height, clip.width, 3)
    # frames with equal times are set apart by one tick
    tolerance = 2e-3 if clip.name == "repeated_times.mkv" else clip.time_tolerance
    np.testing.assert_allclose(frames.timestamps, np.array(clip.times)[frames.indices], atol=tolerance)


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
def test_sequential_decode_equals_the_ffmpeg_command_line(clip: Clip) -> None:
    """Pixels agree within rule 5, and the painted number is the frame index."""
    frames = telecine.load(clip.path())
    assert frames.report.lost == ()
    difference = np.abs(frames.data.astype(np.int16) - clip.reference().frames)
    assert difference.max() <= TOLERANCE
    if clip.numbers:
        assert tuple(read_number(image) for image in frames.data) == clip.numbers


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
def test_single_frame_request_equals_the_sequential_decode(clip: Clip) -> None:
    """Skipped packets and the start of decoding do not affect the pixels."""
    whole = telecine.load(clip.path())
    data = clip.bytes()
    for index in range(clip.num_frames):
        alone = telecine.load(data, indices=[index])
        assert alone.indices.tolist() == [index]
        assert alone.timestamps[0] == whole.timestamps[index]
        assert np.array_equal(alone.data[0], whole.data[index]), f"frame {index}"


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
def test_shuffled_indices_with_repeats_keep_order_and_repeats(clip: Clip) -> None:
    shuffle = random.Random(clip.name)
    wanted = [shuffle.randrange(clip.num_frames) for _ in range(12)]
    wanted += wanted[:3]
    whole, batch = telecine.load(clip.path()), telecine.load(clip.path(), indices=wanted)
    assert batch.indices.tolist() == wanted
    assert np.array_equal(batch.data, whole.data[wanted])
    assert np.array_equal(batch.timestamps, whole.timestamps[wanted])


# noise inside a picture that carries no hash decodes to something, and no decoder can tell
UNTOLD = ("noise_disposable_hevc.mp4", "noise_reference_hevc.mp4")


@pytest.mark.parametrize("clip", [CLIPS[name] for name in UNTOLD], ids=str)
def test_undetectable_damage_gives_the_same_frames_as_ffmpeg(clip: Clip) -> None:
    """docs/exactness.md states this limit."""
    frames = telecine.load(clip.path())
    assert np.abs(frames.data.astype(np.int16) - clip.reference().frames).max() <= TOLERANCE


@pytest.mark.parametrize("clip", [clip for clip in DECODABLE if clip.damaged and clip.name not in UNTOLD], ids=str)
@pytest.mark.parametrize("threads", [1, 4])
def test_damaged_clip_gives_right_frames_or_none(clip: Clip, threads: int) -> None:
    """Returned frames equal the undamaged clip; the others are reported as lost."""
    whole = CLIPS[clip.damaged_from].reference().frames
    frames = telecine.load(clip.path(), threads=threads)
    assert set(frames.indices.tolist()) | set(frames.report.lost) == set(range(clip.num_frames))
    assert not set(frames.indices.tolist()) & set(frames.report.lost)
    assert frames.report.lost
    for index, image in zip(frames.indices, frames.data, strict=True):
        assert np.abs(image.astype(np.int16) - whole[index]).max() <= TOLERANCE, f"frame {index}"
    with pytest.raises(telecine.DecodeError, match="could not be decoded"):
        telecine.load(clip.path(), threads=threads, errors="strict")


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
def test_packets_read_again_give_the_same_frames(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video with more packets than are kept is read again, by seeking if that is reliable."""
    whole = telecine.load(clip.path())
    monkeypatch.setattr(packet_scan, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(reader_module, "_MAX_PACKETS_READ_OVER", 2)
    last = clip.num_frames - 1
    wanted = sorted({0, last // 3, last // 2, last - 1 if last else 0, last})
    assert np.array_equal(telecine.load(clip.path(), indices=wanted).data, whole.data[wanted])


def test_frames_that_depend_on_a_missing_packet_are_lost() -> None:
    """H.264 numbers its reference pictures. FFmpeg conceals a gap in the numbers without reporting it."""
    frames = telecine.load(CLIPS["missing_reference.mp4"].path())
    whole = CLIPS["h264_medium.mp4"].reference().frames
    assert 0 < len(frames.report.lost) < 24  # up to the next point of access
    assert len(frames) + len(frames.report.lost) == 59
    for image in frames.data:
        assert np.abs(image.astype(np.int16) - whole[read_number(image)]).max() <= TOLERANCE
