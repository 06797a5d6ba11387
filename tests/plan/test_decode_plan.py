"""Decode plans, checked with a model of a decoder that knows every reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.letter_stream import Stream
from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.plan.decode_plan import DecodePlan, make_plan
from telecine.plan.ranges import output_rows


def check(stream: Stream, index: PacketIndex, plan: DecodePlan, frames: list[int]) -> None:
    """Feed the plan to a decoder model that decodes a picture only if it has all of its references."""
    points = np.flatnonzero(index.random_access)
    rows: list[int] = []
    end = -1
    decoded: set[int] = set()
    for number, range_ in enumerate(plan.ranges):
        packets = range_.packets.tolist()
        targets = sorted(range_.targets)
        assert packets == sorted(set(packets)) and packets[0] > end
        assert index.random_access[packets[0]], "a range starts at a random access point"
        assert range_.reset == (number == 0 or index.random_access[packets[0]] != RandomAccess.CLOSED)
        if range_.reset:
            decoded = set()
        elif number:
            assert packets[0] > end + 1, "ranges that touch are merged"
        for packet, required in zip(packets, range_.required.tolist(), strict=True):
            decodable = stream.references[packet] <= decoded
            if decodable:
                decoded.add(packet)
            else:
                assert packet not in range_.targets, f"packet {packet} cannot be decoded"
            # leading pictures of the first point refer to packets that are not in the stream
            assert required == (decodable and not (index.leading[packet] and not index.presentable[packet]))
            assert not index.disposable[packet] or packet in range_.targets, f"packet {packet} is fed but not needed"
            if index.leading[packet] and index.skips_leading:
                assert decodable
        # the last target, with its second field
        last = targets[-1]
        whole = last + 1 if last + 1 < index.num_packets and index.second_field[last + 1] else last
        assert packets[-1] == whole
        for target in targets:
            if target + 1 < index.num_packets and index.second_field[target + 1]:
                assert target + 1 in packets
        # the range starts at the earliest point that a target needs
        starts = [points[np.searchsorted(points, t, "right") - 1 - int(index.leading[t])] for t in targets]
        assert min(starts) == packets[0]
        end = packets[-1]
        for target, filled in range_.targets.items():
            assert all(index.display_order[frames[row]] == target for row in filled)
            rows += filled
    assert sorted(rows) == list(range(len(frames))), "every row is filled exactly once"
    assert plan.frames.tolist() == frames
    assert plan.packets_total == len(stream.letters)
    assert plan.packets_fed == sum(len(range_.packets) for range_ in plan.ranges)


_GOP = st.tuples(
    st.sampled_from("Iiii"), st.text("Ll", max_size=4), st.text("PPbbh", max_size=12), st.booleans(), st.booleans()
)


def _spell(gops: list[tuple[str, str, str, bool, bool]], orphans: str) -> str:
    spelled = ""
    for point, leading, trailing, fields, _ in gops:
        gop = point + (leading if point == "i" else "") + trailing
        if fields:  # pictures of two packets, none of which may be skipped
            gop = gop.translate({ord(c): f"{c.replace('b', 'P').replace('l', 'L')}2" for c in "IiPbLl"})
        spelled += gop
    return orphans + spelled


@settings(max_examples=400, deadline=None)
@given(
    gops=st.lists(_GOP, min_size=1, max_size=6),
    orphans=st.text("Pb", max_size=3),
    skips_leading=st.booleans(),
    data=st.data(),
)
def test_plans_feed_all_references_of_the_wanted_pictures_and_no_disposable_ones(
    gops: list[tuple[str, str, str, bool, bool]], orphans: str, skips_leading: bool, data: st.DataObject
) -> None:
    """For random streams and requests."""
    stream = Stream(_spell(gops, orphans))
    index = stream.index(skips_leading, shuffle=data.draw(st.integers(0, 5)))
    if not index.num_frames:
        return
    frames = data.draw(st.lists(st.integers(0, index.num_frames - 1), min_size=1, max_size=10))
    check(stream, index, make_plan(index, np.array(frames, np.int64)), frames)


def planned(letters: str, packets: list[int], skips_leading: bool = False) -> list[tuple[list[int], bool]]:
    """Return (packets to feed, reset before them) of each range, for these wanted packets."""
    stream = Stream(letters)
    index = stream.index(skips_leading)
    frames = [int(np.flatnonzero(index.display_order == packet)[0]) for packet in packets]
    plan = make_plan(index, np.array(frames, np.int64))
    check(stream, index, plan, frames)
    return [(range_.packets.tolist(), range_.reset) for range_ in plan.ranges]


@pytest.mark.parametrize(
    ("letters", "packets", "expected"),
    [
        # disposable pictures are fed only if wanted
        ("IPbbPbb", [4], [([0, 1, 4], True)]),
        ("IPbbPbb", [5, 2], [([0, 1, 2, 4, 5], True)]),
        # from the latest point, without a reset before a closed one
        ("IPPIPP", [4], [([3, 4], True)]),
        ("IPPPIPP", [1, 5], [([0, 1], True), ([4, 5], False)]),
        ("IPPPiPP", [1, 5], [([0, 1], True), ([4, 5], True)]),
        # ranges that touch are merged, and need no reset at the point between them
        ("IPPiPP", [2, 4], [([0, 1, 2, 3, 4], True)]),
        # a wanted leading picture needs the packets before its random access point
        ("IPbiLlP", [5], [([0, 1, 3, 4, 5], True)]),
        ("IPbiLlP", [6], [([3, 4, 6], True)]),
        # it reaches back over ranges that were complete
        ("IPPIPPPil", [1, 3, 8], [([0, 1], True), ([3, 4, 5, 6, 7, 8], False)]),
        ("IPPiPPil", [1, 4, 7], [([0, 1], True), ([3, 4, 5, 6, 7], True)]),
        ("IPPilPil", [4, 7], [([0, 1, 2, 3, 4, 5, 6, 7], True)]),
        # a hidden reference picture is fed
        ("IhPb", [2], [([0, 1, 2], True)]),
        # the second field of the last wanted picture, and of every other
        ("I2P2P2", [2], [([0, 1, 2, 3], True)]),
        ("I2P2P2i2P2", [4, 8], [([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], True)]),
    ],
)
def test_planned_ranges_of_examples(letters: str, packets: list[int], expected: list[tuple[list[int], bool]]) -> None:
    """Streams are written in the letters of :class:`Stream`."""
    assert planned(letters, packets) == expected


def test_leading_pictures_of_the_first_random_access_point_are_not_fed_if_decoders_skip_them() -> None:
    """As in HEVC. Those of later points are decodable and may be references."""
    assert planned("IPiLLPiLP", [8], skips_leading=True) == [([6, 8], True)]
    assert planned("IPiLLPiLP", [5, 7], skips_leading=True) == [([2, 5, 6, 7], True)]
    assert planned("IPiLLPiLP", [5, 7], skips_leading=False) == [([2, 3, 4, 5, 6, 7], True)]


def test_targets_keep_the_order_and_repeats_of_the_wanted_frames() -> None:
    """Each packet is fed once."""
    stream = Stream("IPPP")
    index = stream.index()
    frames = [3, 0, 3, 1, 3]
    (range_,) = make_plan(index, np.array(frames)).ranges
    assert range_.targets[int(index.display_order[3])] == (0, 2, 4)
    check(stream, index, make_plan(index, np.array(frames)), frames)


def test_a_plan_for_no_frames_has_no_ranges() -> None:
    """No packet is fed."""
    plan = make_plan(Stream("IPP").index(), np.array([], np.int64))
    assert plan.ranges == () and plan.packets_fed == 0 and plan.packets_total == 3


@pytest.mark.parametrize(
    ("letters", "packets", "expected"),
    [
        ("IPPPiPP", [1, 5], [[0, 1, 2, 3, 4, 5]]),
        ("IPPPIPPiPP", [1, 8], [[0, 1], [4, 5, 6, 7, 8]]),
        ("IPiPil", [5], [[0, 1, 2, 3, 4, 5]]),
        ("iPPiP", [4], [[0, 1, 2, 3, 4]]),  # there is no closed point at all
    ],
)
def test_only_closed_plans_start_at_closed_points(letters: str, packets: list[int], expected: list[list[int]]) -> None:
    index = Stream(letters).index()
    frames = np.array([int(np.flatnonzero(index.display_order == packet)[0]) for packet in packets])
    plan = make_plan(index, frames, only_closed=True)
    assert [range_.packets.tolist() for range_ in plan.ranges] == expected
    assert sorted(row for rows in output_rows(plan.ranges).values() for row in rows) == list(range(len(packets)))
