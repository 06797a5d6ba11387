"""The clips are what they are declared to be. Other tests rest on these facts, so they are checked first."""

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
def test_ffmpeg_gives_the_declared_frames(clip: Clip) -> None:
    """Count, size, times, painted numbers and damage are as ffmpeg sees them."""
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
def test_the_header_says_what_is_declared(clip: Clip) -> None:
    """Codec, bit depth and the header's own count are as PyAV reads them."""
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
def test_ffmpeg_gives_the_expected_colours(name: str, colour: tuple[int, int, int]) -> None:
    """The flat clips come out with the colours declared for their tags."""
    frames = CLIPS[name].reference().frames.astype(int)
    assert np.abs(frames[:, 8:-8, 8:-8] - colour).max() <= 2


def test_clips_without_video_have_none() -> None:
    """Nothing decodes from sound alone, nor from a file that lost its index."""
    for clip in clips("novideo"):
        with pytest.raises(RuntimeError, match="no frame"):
            clip.reference()


def test_clips_are_found_by_all_their_tags() -> None:
    """Codec and container are tags, and several narrow the choice down."""
    found = clips("hevc", "ts")
    assert [clip.name for clip in found] == ["hevc.ts"]
    assert set(clips("core")) < set(CLIPS.values())


def test_processes_that_make_the_same_clip_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The file appears whole, whoever finishes first, and nothing else is left in the folder."""
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
def test_a_number_reads_upright_only(number: int, size: tuple[int, int]) -> None:
    """Turned and mirrored pictures do not read at all, so a forgotten rotation is caught."""
    picture = painting.paint(number, *size)
    assert read_number(picture) == number
    for turned in (*(np.rot90(picture, k) for k in (1, 2, 3)), picture[:, ::-1], picture[::-1]):
        with pytest.raises(UnreadableNumber):
            read_number(turned)


def test_a_blend_of_two_pictures_does_not_read() -> None:
    """What an interpolating or concealing decoder makes of two frames is caught."""
    first, second = (painting.paint(number, 96, 64).astype(int) for number in (30, 31))
    with pytest.raises(UnreadableNumber):
        read_number(((first + second) // 2).astype(np.uint8))
