"""Display order of packets, by time and by the bitstream."""

from __future__ import annotations

import concurrent.futures
import threading

import numpy as np
import pytest

from support.clips import CLIPS
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import NO_TIME
from telecine.deadline import Deadline
from telecine.index import display_order
from telecine.index.display_order import PacketTimes, display_positions, order_conflicts
from telecine.index.packet_index import read_index
from telecine.index.packet_scan import PacketScan
from telecine.limits import Limits
from telecine.source.source import open_source


@pytest.mark.parametrize(
    ("kinds", "ticks", "expected"),
    [
        ("shown shown shown", [0, 20, 10], [0, 2, 1]),
        ("shown hidden shown", [0, 30, 10], [0, 2, 1]),  # a hidden packet with a time sorts by it
        ("shown hidden shown shown", [0, NO_TIME, 20, 10], [0, 1, 3, 2]),  # without one, before what follows it
        ("shown hidden", [0, NO_TIME], [0, 1]),
        ("shown field shown field shown field", [0, 1, 20, NO_TIME, 10, 99], [0, 1, 4, 5, 2, 3]),
    ],
)
def test_display_positions_are_a_permutation_in_display_order(
    kinds: str, ticks: list[int], expected: list[int]
) -> None:
    kind = np.array(kinds.split())
    positions = display_positions(np.array(ticks, np.int64), kind == "shown", kind == "field")
    assert positions.tolist() == expected


@pytest.mark.parametrize("name", ["h264_paff.ts", "hevc_open_gop.mp4", "trimmed.mp4", "vp9_altref.webm", "h264.avi"])
def test_display_positions_of_presentable_frames_follow_the_frame_indices(name: str) -> None:
    deadline = Deadline()
    with open_source(CLIPS[name].path(), Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        index = read_index(demuxer, Limits(), deadline)
    positions = index.display_positions(np.arange(index.num_packets))
    assert sorted(positions.tolist()) == list(range(index.num_packets))
    assert (np.diff(positions[index.display_order]) > 0).all()


def test_order_conflicts_are_the_packets_at_different_positions() -> None:
    orders = {0: (0, 0), 1: (0, 4), 2: (0, 2), 3: (0, 6)}
    assert order_conflicts({0: 0, 1: 2, 2: 1, 3: 3}, orders) == set()
    assert order_conflicts({0: 0, 1: 1, 2: 2, 3: 3}, orders) == {1, 2}


def test_two_threads_check_the_timestamps_of_two_videos_at_the_same_time(monkeypatch):
    """A lock around the check would also block the child of a fork for ever, if another thread held it."""
    both = threading.Barrier(2)
    monkeypatch.setattr(display_order, "are_usable_timestamps", lambda pts: both.wait(20) >= 0)
    scan = PacketScan("h264", b"", keep=False)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        videos = list(threads.map(lambda _: PacketTimes(scan, "mov", with_order=False), range(2)))
    assert [video.has_plausible_pts for video in videos] == [True, True]
    assert videos[0].has_plausible_pts  # known: the check is not made again
