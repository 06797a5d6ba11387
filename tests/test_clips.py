"""The clips have the facts that are declared. Other tests depend on these facts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from support import painting
from support.clips import CLIPS, EXPECTED_COLOURS, Clip, UnreadableNumber, clips, read_number

WITH_VIDEO = [clip for clip in CLIPS.values() if clip.codec is not None]


@pytest.mark.parametrize("clip", WITH_VIDEO, ids=str)
def test_ffmpeg_decodes_the_declared_frames_of_a_clip(clip: Clip) -> None:
    """Count, size, times, painted numbers and damage are those of ffmpeg."""
    seen = clip.reference()
    given = [index for index in range(clip.num_frames) if index not in clip.lost]
    assert seen.frames.shape == (len(given), clip.height, clip.width, 3)

    times = np.array(clip.times)[given]
    np.testing.assert_allclose(seen.seconds, times - times[0], rtol=0, atol=clip.time_tolerance)
    if clip.start is not None:
        assert float(seen.pts[0] or 0) == pytest.approx(clip.start, abs=clip.time_tolerance)

    whole = [index for index in given if index not in clip.damaged]
    if clip.painted:
        assert len(clip.numbers) == clip.num_frames
        read = [read_number(seen.frames[given.index(index)]) for index in whole]
        assert read == [clip.numbers[index] for index in whole]
    if clip.damaged_from is not None:
        original = CLIPS[clip.damaged_from].reference().frames
        changed = [i for i in given if not np.array_equal(seen.frames[given.index(i)], original[i])]
        assert changed == list(clip.damaged)


@pytest.mark.parametrize("clip", WITH_VIDEO, ids=str)
def test_the_header_of_a_clip_has_the_declared_facts(clip: Clip) -> None:
    """Codec, bit depth and the number of frames in the header are those that PyAV reads."""
    with av.open(str(clip.path())) as container:
        stream = container.streams[clip.stream]
        assert stream.type == "video"
        assert stream.codec.canonical_name == clip.codec
        assert stream.codec_context.format.components[0].bits == clip.bit_depth
        if clip.header_frames is not None:
            assert stream.frames == clip.header_frames
        else:
            assert stream.frames == (0 if "no_count" in clip.tags else clip.num_frames)


@pytest.mark.parametrize(("name", "colour"), EXPECTED_COLOURS.items())
def test_ffmpeg_decodes_flat_clips_to_the_expected_colours(name: str, colour: tuple[int, int, int]) -> None:
    """Each flat clip has the colour declared for its tags."""
    frames = CLIPS[name].reference().frames.astype(int)
    assert np.abs(frames[:, 8:-8, 8:-8] - colour).max() <= 2


def test_clips_without_video_have_none() -> None:
    """FFmpeg decodes nothing from audio alone, nor from a file without its index."""
    for clip in clips("novideo"):
        with pytest.raises(RuntimeError, match="no frame"):
            clip.reference()


def test_clips_are_found_by_all_their_tags() -> None:
    """Codec and container are tags. A clip must have all tags that are given."""
    found = clips("hevc", "ts")
    assert [clip.name for clip in found] == ["hevc.ts"]
    assert set(clips("core")) < set(CLIPS.values())


def test_processes_can_make_the_same_clip_at_the_same_time(tmp_path: Path) -> None:
    """The file is complete when it appears, and no other file is left in the folder."""
    script = "from support import clips; print(len(clips.CLIPS['fragmented.mp4'].bytes()))"
    environment = {"TELECINE_TEST_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) for _ in range(3)
    ]
    sizes = {process.communicate(timeout=60)[0] for process in started}
    assert sizes == {b"%d\n" % len(CLIPS["fragmented.mp4"].bytes())}
    assert sorted(path.name.partition("-")[2] for path in tmp_path.iterdir()) == ["base.mp4", "fragmented.mp4"]


@pytest.mark.parametrize("size", [(96, 64), (95, 63), (192, 144), (64, 96), (320, 532)], ids=str)
@pytest.mark.parametrize("number", [0, 1, 1365, 4095])
def test_a_number_is_readable_only_if_the_picture_is_upright(number: int, size: tuple[int, int]) -> None:
    """In rotated and mirrored pictures it is unreadable, so a missing rotation is noticed."""
    picture = painting.paint(number, *size)
    assert read_number(picture) == number
    for turned in (*(np.rot90(picture, k) for k in (1, 2, 3)), picture[:, ::-1], picture[::-1]):
        with pytest.raises(UnreadableNumber):
            read_number(turned)


def test_the_number_of_a_blend_of_two_pictures_is_unreadable() -> None:
    """So pictures of a decoder that interpolates or conceals are noticed."""
    first, second = (painting.paint(number, 96, 64).astype(int) for number in (30, 31))
    with pytest.raises(UnreadableNumber):
        read_number(((first + second) // 2).astype(np.uint8))
