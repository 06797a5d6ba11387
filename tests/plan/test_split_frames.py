"""Splitting wanted frames into groups that are decoded one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.letter_stream import Stream
from telecine.index.packet_index import PacketIndex
from telecine.plan.decode_plan import make_plan, split_frames


def index_of(letters: str) -> PacketIndex:
    """A packet index whose leading pictures are shown right before their random access point."""
    index = Stream(letters).index()
    packets = np.arange(len(letters))
    point = np.maximum.accumulate(np.where(index.random_access > 0, packets, 0))
    order = np.lexsort((packets, np.where(index.leading, point - 0.5, packets)))
    return replace(index, display_order=order[index.presentable[order]])


def groups(letters: str, frames: list[int], min_frames: int, max_frames: int = 1000) -> list[list[int]]:
    """The frames of each group."""
    wanted = np.array(frames, np.int64)
    return [wanted[group].tolist() for group in split_frames(index_of(letters), wanted, min_frames, max_frames)]


@pytest.mark.parametrize(
    ("letters", "frames", "min_frames", "max_frames", "expected"),
    [
        ("IPPIPPIPP", [0, 1, 2, 3, 4, 5, 6, 7, 8], 1, 9, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ("IPPIPPIPP", [0, 1, 2, 3, 4, 5, 6, 7, 8], 6, 9, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        ("IPPIPPIPP", [0, 1, 2, 3, 4, 5, 6, 7, 8], 7, 9, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        ("IPPIPPIPP", [0, 1, 2, 3, 4, 5, 6, 7, 8], 9, 9, [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        ("IPPPPPPP", [0, 1, 2, 3, 4, 5, 6, 7], 2, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("IPPIPP", [1, 1, 4, 4, 5], 2, 9, [[1, 1], [4, 4, 5]]),
        ("IPPIPP", [5, 1, 4, 4, 0], 2, 9, [[5, 1], [4, 4], [0]]),
        ("IPPIPP", [4], 2, 9, [[4]]),
    ],
)
def test_groups_start_at_random_access_points_and_are_joined_up_to_a_size(
    letters: str, frames: list[int], min_frames: int, max_frames: int, expected: list[list[int]]
) -> None:
    assert groups(letters, frames, min_frames, max_frames) == expected


@pytest.mark.parametrize("letters", ["IPPIPPIPP", "IPPiPPiPP", "IPPilPPPillPP", "IbPPilbPPPIb"])
@pytest.mark.parametrize("min_frames", [1, 3, 5])
def test_groups_feed_no_packet_twice_but_the_picture_of_an_open_point(letters: str, min_frames: int) -> None:
    index = index_of(letters)
    wanted = np.arange(index.num_frames)
    fed: list[int] = []
    for group in split_frames(index, wanted, min_frames, 1000):
        fed += [packet for range_ in make_plan(index, wanted[group]).ranges for packet in range_.packets.tolist()]
    assert set(fed) == {packet for range_ in make_plan(index, wanted).ranges for packet in range_.packets.tolist()}
    twice = [packet for packet in set(fed) if fed.count(packet) > 1]
    assert all(letters[packet] == "i" for packet in twice)
