"""The test clips, each declared with a recipe and the known facts about the result.

A clip is made on first use, by the ffmpeg binary of imageio-ffmpeg, and kept in a cache. The facts were measured with
that binary (its ``showinfo``, and the painted numbers in its pixels) and, for packets and headers, with PyAV.
``test_clips.py`` checks them. If this ffmpeg (9.0) differs from older ones, a comment at the clip says so.

Tests import this module::

    @pytest.mark.parametrize("clip", clips("hevc", "bframes"), ids=str)
    def test_something(clip: Clip) -> None:
        expected = clip.reference().frames      # uint8 [T, H, W, 3] RGB, by the ffmpeg command line
        frames = load(clip.path())
        assert [read_number(frame) for frame in frames.data] == list(clip.numbers)

Tags: the codec, the container (``mp4``), ``core`` (a small selection for tests that run many times), ``hostile``,
``bframes``, ``open_gop``, ``no_count`` (the header has no number of frames), ``rotation``, ``vfr``, ``colour``,
``damaged``, ``truncated``, ``noise``, ``audio``, ``novideo``, ``part`` (only a source for other clips) and more.
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
