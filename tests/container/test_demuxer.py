"""Opening a container: FFmpeg's options depend on the codecs, and a plain MP4 file is opened once."""

from __future__ import annotations

from typing import Any

import pytest

from support.clips import CLIPS
from support.mp4_boxes import box
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.limits import Limits
from telecine.source.source import open_source

NO_DECODERS, NO_PARSERS, NAMES_ONLY = {"codec_whitelist"}, {"fflags"}, {"codec_whitelist", "fflags", "probesize"}


def options_of(source: Any, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the names of the options with which FFmpeg opens a source, one set for each time."""
    used, open_with = [], Demuxer._open_with

    def record(demuxer: Demuxer, options: dict[str, str], **more: Any) -> Any:
        used.append(options.keys() - {"max_pixels"})
        return open_with(demuxer, options, **more)

    monkeypatch.setattr(Demuxer, "_open_with", record)
    with open_source(source, Limits(), Deadline()) as opened, Demuxer(opened, Deadline()):
        return used


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h264_pyramid.mp4", [NO_DECODERS]),
        ("part_faststart.mp4", [NO_DECODERS]),
        ("hevc.mp4", [set()]),
        ("prores.mov", [set()]),
        ("cover_first.mp4", [NO_DECODERS, NAMES_ONLY, set()]),
        ("av1_svt.mp4", [NAMES_ONLY, NO_PARSERS]),
        ("h264_fragmented.mp4", [NAMES_ONLY, NO_DECODERS]),
        ("vp9_altref.webm", [NAMES_ONLY, NO_DECODERS]),
    ],
)
def test_files_are_opened_with_the_options_for_their_codecs(
    name: str, expected: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_of(CLIPS[name].path(), monkeypatch) == expected


@pytest.mark.parametrize("before", [True, False])
def test_tracks_outside_of_the_movie_box_are_expected_in_other_boxes(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A track of AV1 in them would be read with FFmpeg's parser, which takes much memory."""
    data = CLIPS["part_faststart.mp4"].bytes()
    at = data.index(b"mdat") - 4
    position = data.index(b"moov") - 4 if before else at
    data = data[:position] + box(b"udta", box(b"trak")) + data[position:]
    assert options_of(data, monkeypatch) == [NAMES_ONLY, NO_DECODERS]


def test_a_disguised_movie_box_is_not_taken_for_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg reads a free box as a movie box if a movie header is the first thing in it."""
    data = CLIPS["part_faststart.mp4"].bytes()
    at = data.index(b"mdat") - 4
    data = data[:at] + box(b"free", box(b"mvhd", bytes(100))) + data[at:]
    assert options_of(data, monkeypatch)[0] == NAMES_ONLY
