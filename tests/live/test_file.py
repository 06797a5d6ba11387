"""A file played in real time: what segments contain, and how consumers share and miss them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import telecine
from support.clips import CLIPS
from support.painting import read_number


def numbers(segment: telecine.Segment) -> list[int]:
    """Return the numbers painted into the frames of a segment."""
    return [read_number(frame.image) for frame in segment.frames]


@pytest.mark.parametrize(
    "name",
    [
        "base.mp4",
        "hevc_open_gop.mp4",
        "vp9_altref.webm",
        "mpeg2_open_gop.ts",
        "hevc_temporal_layers.mp4",
        "h264_paff.ts",
        "av1_svt.webm",
    ],
)
def test_frames_of_a_segment_are_those_of_its_times(name: str) -> None:
    clip = CLIPS[name]
    with telecine.live(clip.path(), every=0.5, frames=4) as stream:
        segments = list(stream)
    assert [segment.sequence for segment in segments] == list(range(len(segments)))
    whole = telecine.load(clip.path())
    for segment in segments:
        wanted = segment.start + segment.frames.timestamps
        found = [min(range(len(whole)), key=lambda i: abs(whole.timestamps[i] - at)) for at in wanted]
        assert numbers(segment) == [read_number(whole[i].image) for i in found]
        assert segment.discontinuity is None and not segment.gap
        assert segment.frames.indices.tolist() == sorted(set(segment.frames.indices.tolist()))


def test_a_recording_ends_the_iteration_and_all_threads() -> None:
    with telecine.live(CLIPS["base.mp4"].path(), every=0.5, frames=2) as stream:
        assert list(stream)
        assert stream.state == "ended"
        assert stream.get(timeout=1) is None
    assert not [thread for thread in threading.enumerate() if "telecine-live" in thread.name]


def test_a_slow_consumer_gets_the_newest_segment_and_the_number_it_missed() -> None:
    with telecine.live(CLIPS["base.mp4"].path(), every=0.2, frames=1) as stream:
        time.sleep(1.5)
        segment = stream.get(timeout=5)
        assert segment is not None and segment.dropped_segments == segment.sequence >= 3


def test_segments_arrive_in_an_event_loop() -> None:
    async def watch() -> list[int]:
        async with telecine.live(CLIPS["base.mp4"].path(), every=0.5, frames=2) as stream:
            return [segment.sequence async for segment in stream]

    assert len(asyncio.run(watch())) >= 3
