"""Every test clip: a recipe in one line and what is known about the result.

A clip is made on first use, by the ffmpeg binary of imageio-ffmpeg, and kept in a cache. The facts were measured with
that binary (its ``showinfo`` and its pixels, where the painted numbers were read) and, for packets and headers, with
PyAV; ``test_clips.py`` holds them to it. Where this ffmpeg (9.0) does something else than older ones, the clip says so.

This is the module for tests to import::

    @pytest.mark.parametrize("clip", clips("hevc", "bframes"), ids=str)
    def test_something(clip: Clip) -> None:
        expected = clip.reference().frames      # uint8 [T, H, W, 3] RGB, by the ffmpeg command line
        frames = load(clip.path())
        assert [read_number(frame) for frame in frames.data] == list(clip.numbers)

Tags: the codec, the container (``mp4``), ``core`` (a small choice for tests that are run many times), ``hostile``,
``bframes``, ``open_gop``, ``no_count`` (the header does not say how many frames), ``rotation``, ``vfr``, ``colour``,
``damaged``, ``truncated``, ``noise``, ``audio``, ``novideo``, ``part`` (only there to make others from) and more.
"""

from __future__ import annotations

from support import clips_by_codec, clips_hostile
from support.clip import CLIPS, Clip, clips
from support.clips_hostile import EXPECTED_COLOURS
from support.ffmpeg_cli import Reference, reference, reference_frames
from support.painting import UnreadableNumber, read_number

__all__ = [
    "CLIPS",
    "EXPECTED_COLOURS",
    "Clip",
    "Reference",
    "UnreadableNumber",
    "clips",
    "clips_by_codec",
    "clips_hostile",
    "read_number",
    "reference",
    "reference_frames",
]
