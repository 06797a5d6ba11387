"""Splitting, shortening and extending decode ranges."""

from __future__ import annotations

import numpy as np
import pytest

from support.letter_stream import Stream
from telecine.plan.decode_plan import make_plan
from telecine.plan.ranges import (
    DecodeRange,
    find_undecodable_targets,
    keep_targets,
    output_rows,
    split_at_closed_points,
    split_at_resets,
)

Fed = list[list[int]]


def plan(stream: Stream, *packets: int) -> tuple[DecodeRange, ...]:
    """The ranges that are planned for the frames of some packets."""
    index = stream.index()
    frames = [int(np.flatnonzero(index.display_order == packet)[0]) for packet in packets]
    return make_plan(index, np.array(frames, np.int64)).ranges


def fed(ranges: list[DecodeRange] | tuple[DecodeRange, ...]) -> Fed:
    return [range_.packets.tolist() for range_ in ranges]


def test_split_at_resets_groups_the_ranges_of_each_decode_pass() -> None:
    ranges = plan(Stream("IPPIPPPiPP"), 1, 5, 8)
    assert [range_.reset for range_ in ranges] == [True, False, True]
    assert [fed(decode_pass) for decode_pass in split_at_resets(ranges)] == [[[0, 1], [3, 4, 5]], [[7, 8]]]
    assert list(split_at_resets([])) == []


@pytest.mark.parametrize(
    ("letters", "targets", "min_packets", "expected"),
    [
        ("IPPIPP", [2, 3, 5], 1, [[0, 1, 2], [3, 4, 5]]),
        ("IPPiPP", [2, 3, 5], 1, [[0, 1, 2, 3, 4, 5]]),
        ("IPPIPPIP", [2, 5, 7], 4, [[0, 1, 2, 3, 4, 5], [6, 7]]),
        ("IPPIPP", [2], 1, [[0, 1, 2]]),
    ],
)
def test_split_at_closed_points_gives_ranges_that_start_at_closed_points(
    letters: str, targets: list[int], min_packets: int, expected: Fed
) -> None:
    stream = Stream(letters)
    (range_,) = plan(stream, *targets)
    parts = split_at_closed_points(stream.index(), [range_], min_packets)
    assert fed(parts) == expected
    assert all(part.reset for part in parts)
    assert output_rows(parts) == output_rows([range_])


def test_split_at_closed_points_drops_packets_that_no_target_needs() -> None:
    stream = Stream("IPPIPPIPP")
    (range_,) = plan(stream, *range(9))
    wanted = keep_targets(stream.index(), range_, [1, 7])
    assert fed(split_at_closed_points(stream.index(), [wanted])) == [[0, 1], [6, 7]]


def test_keep_targets_ends_with_the_second_field_of_the_last_target() -> None:
    stream = Stream("I2P2P2")
    (range_,) = plan(stream, 0, 2, 4)
    kept = keep_targets(stream.index(), range_, [2])
    assert fed([kept]) == [[0, 1, 2, 3]] and kept.targets == {2: range_.targets[2]}


def test_find_undecodable_targets_needs_a_logarithmic_number_of_tries() -> None:
    stream = Stream("I" + "P" * 23)
    (range_,) = plan(stream, *range(24))
    tried = []

    def decode(part: DecodeRange) -> bool:
        tried.append(len(part.packets))
        return 17 not in part.packets

    assert find_undecodable_targets(stream.index(), range_, decode) == set(range(17, 24))
    assert len(tried) <= 10
