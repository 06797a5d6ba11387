"""Chunks from one decoder that stays open: packets fed, and the way back from damage."""

from __future__ import annotations

import numpy as np
import pytest

import telecine
from support.byte_edits import noise_in_packet
from support.clips import CLIPS

CLIP = CLIPS["h264_pyramid.mp4"]


def fed_and_lost(source: bytes, threads: int, chunk_frames: int) -> tuple[list[int], list[int]]:
    """The packets fed for each chunk, and the frames lost."""
    with telecine.open(source, threads=threads) as video:
        reports = [chunk.report for chunk in video.iterate(chunk_frames=chunk_frames)]
    return [report.packets_fed for report in reports], [index for report in reports for index in report.lost]


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_chunk_takes_its_own_packets_and_as_many_as_the_decoder_holds(threads: int) -> None:
    fed, lost = fed_and_lost(CLIP.bytes(), threads, 6)
    assert sum(fed) == 60 and lost == []
    assert 6 <= fed[0] <= 6 + 2 * threads + 8  # frame threads, late errors, and reordered pictures


@pytest.mark.parametrize("threads", [1, 4])
def test_damage_repeats_the_rest_of_the_decode_pass_only_once(threads: int) -> None:
    damaged = noise_in_packet(CLIP.bytes(), 30, part=0.3)
    fed, lost = fed_and_lost(damaged, threads, 1)
    assert lost
    assert sum(fed) <= 60 + (60 - 24) + threads + 8
    assert fed_and_lost(damaged, threads, 64)[1] == lost == list(telecine.load(damaged, threads=threads).report.lost)


def test_frames_before_damage_are_handed_out_before_it_is_met() -> None:
    with telecine.open(noise_in_packet(CLIP.bytes(), 50, part=0.3), threads=2, errors="strict") as video:
        chunks = video.iterate(chunk_frames=10)
        assert [next(chunks).indices[0] for _ in range(4)] == [0, 10, 20, 30]
        with pytest.raises(telecine.DecodeError, match="could not be decoded"):
            list(chunks)


def test_channels_first_chunks_are_planes_without_a_copy() -> None:
    expected = telecine.load(CLIP.path(), layout="NCHW", size=72, end=0.5)
    with telecine.open(CLIP.path(), layout="NCHW", size=72) as video:
        chunks = list(video.iterate(chunk_frames=5, end=0.5))
    assert all(chunk.data.flags.c_contiguous for chunk in chunks)
    assert np.array_equal(np.concatenate([chunk.data for chunk in chunks]), expected.data)


def test_a_picture_size_that_changes_in_mid_stream_is_noted_from_there_on() -> None:
    with telecine.open(CLIPS["size_change.ts"].path()) as video:
        reports = [chunk.report for chunk in video.iterate(chunk_frames=4)]
    assert reports[0].notes == ()
    assert "the picture size changes in mid-stream" in reports[-1].notes[0]
