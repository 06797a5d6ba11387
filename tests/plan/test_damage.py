"""Rules for how damage spreads to later frames."""

from __future__ import annotations

import numpy as np
import pytest

from support.letter_stream import Stream
from telecine.plan.damage import leads_across_gap, lost_packets, unreliable_targets
from telecine.plan.decode_plan import make_plan


@pytest.mark.parametrize(
    ("letters", "lost", "gaps", "expected"),
    [
        ("IPPPIPP", {2}, set(), {2, 3}),  # up to the next closed point
        ("IPPPIPP", set(), set(), set()),
        ("IPPPIPP", set(), {2}, {2, 3}),  # a gap damages what follows it
        ("IPbPIPP", {2}, set(), {2}),  # nothing refers to a disposable picture
        ("IPPilPP", {2}, set(), {2, 4}),  # across an open point: its leading pictures only
        ("IPPIbPP", {2}, set(), {2}),
        ("IPPiLlPP", {4}, set(), {4, 5}),  # from one leading picture to the others, and to no other picture
        ("IPPilLPP", {1, 2, 4, 5}, set(), {1, 2, 4, 5}),
    ],
)
def test_damage_spreads_to_what_may_refer_to_it(
    letters: str, lost: set[int], gaps: set[int], expected: set[int]
) -> None:
    index = Stream(letters).index()
    ranges = make_plan(index, np.arange(index.num_frames)).ranges
    assert unreliable_targets(index, ranges, lost, gaps=gaps) == expected
    assert lost_packets(index, ranges, lost, set()) == lost == lost_packets(index, ranges, set(), lost)


def test_leading_pictures_without_references_are_no_loss() -> None:
    """An open random access point is decoded from, so its leading pictures are expected to fail."""
    index = Stream("IPiLP").index()
    frame = int(np.flatnonzero(index.display_order == 4)[0])
    (range_,) = make_plan(index, np.array([frame])).ranges
    assert range_.packets.tolist() == [2, 3, 4]
    assert lost_packets(index, [range_], {3}, {3}) == set()


def test_a_hidden_picture_is_lost_if_it_is_damaged_and_not_if_it_is_missing() -> None:
    index = Stream("IPhPIP").index()
    ranges = make_plan(index, np.arange(index.num_frames)).ranges
    assert lost_packets(index, ranges, {2}, set()) == set()
    assert lost_packets(index, ranges, set(), {2}) == {2}
    assert unreliable_targets(index, ranges, {2}) == set()
    assert unreliable_targets(index, ranges, set(), {2}) == {3}


def test_a_packet_without_a_picture_is_never_lost() -> None:
    index = Stream("IPhP").index()
    index.has_picture[2] = False
    ranges = make_plan(index, np.arange(index.num_frames)).ranges
    assert lost_packets(index, ranges, {2}, {2}) == set()


def test_a_gap_before_an_open_point_reaches_its_leading_pictures() -> None:
    index = Stream("IPilPil").index()
    index.corrupt[1] = True
    packets = np.arange(7)
    assert leads_across_gap(index, packets, index.has_gap_before(packets)).tolist() == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    (range_,) = make_plan(index, np.arange(index.num_frames)).ranges
    assert unreliable_targets(index, [range_], set()) == {3}
