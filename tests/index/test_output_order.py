"""The output order of pictures of which some have a destroyed header."""

from __future__ import annotations

import pytest

from telecine.bitstream import LAST_IN_SEQUENCE
from telecine.index.output_order import find_output_order

Orders = list[tuple[int, int] | None]


def by_types(kinds: str, unknown: int) -> Orders:
    """Return the orders of MPEG pictures: B pictures and references, one of them unknown."""
    orders: Orders = []
    references = 0
    for i, kind in enumerate(kinds):
        references += kind != "B" and i != unknown
        orders.append(None if i == unknown else (references, i if kind == "B" else LAST_IN_SEQUENCE))
    return orders


def true_positions(kinds: str) -> list[int]:
    positions, _ = find_output_order(by_types(kinds, -1))
    assert positions is not None
    return positions.tolist()


def test_pictures_are_ordered_by_sequence_and_count() -> None:
    positions, uncertain = find_output_order([(0, 0), (0, 8), (0, 4), (1, 0), (1, 2)])
    assert positions is not None and positions.tolist() == [0, 2, 1, 3, 4]
    assert not uncertain


def test_the_order_is_unknown_if_it_is_for_half_of_the_pictures() -> None:
    assert find_output_order([]) == (None, set())
    assert find_output_order([(0, 0), None]) == (None, set())


@pytest.mark.parametrize("unknown", range(13))
def test_a_destroyed_picture_takes_the_count_that_is_missing(unknown: int) -> None:
    """An unknown first picture precedes the others, and a missing last count may be that of any."""
    counts = [0, 8, 4, 2, 6, 16, 12, 10, 14, 24, 20, 18, 22]
    orders: Orders = [(0, count) for count in counts]
    orders[unknown] = None
    positions, uncertain = find_output_order(orders)
    assert positions is not None and positions.tolist() == [count // 2 for count in counts]
    assert uncertain == {unknown}


def test_counts_that_start_again_follow_a_destroyed_idr_picture() -> None:
    counts = [0, 4, 2, 8, 6, None, 4, 2, 8, 6]
    positions, uncertain = find_output_order([None if count is None else (0, count) for count in counts])
    assert positions is not None and positions.tolist() == [0, 2, 1, 4, 3, 5, 7, 6, 9, 8]
    assert uncertain == {5}


def test_the_sequence_is_uncertain_if_more_counts_are_missing_than_pictures() -> None:
    orders: Orders = [(0, 0), (0, 8), (0, 2), None, (0, 16), (0, 14), (1, 0), (1, 4), (1, 2)]
    positions, uncertain = find_output_order(orders)
    assert positions is not None and positions.tolist()[6:] == [6, 8, 7]
    assert uncertain == set(range(6))


@pytest.mark.parametrize("kinds", ["IPBBPBBPBBIPBBPBB", "IPPPPPPP", "IPBPBPBIPBPB", "IPBBBPBBBPBBBPBBB"])
def test_a_destroyed_picture_fits_the_runs_of_b_pictures(kinds: str) -> None:
    for unknown in range(1, len(kinds) - 3):
        positions, uncertain = find_output_order(by_types(kinds, unknown))
        assert positions is not None
        sound = set(range(len(kinds))) - uncertain
        assert {i: positions.tolist()[i] for i in sound} == {i: true_positions(kinds)[i] for i in sound}
        assert unknown in uncertain and len(uncertain) <= 2


def test_the_reference_before_is_uncertain_if_runs_of_b_pictures_have_several_lengths() -> None:
    kinds = "IPBPBBPBPBBPB" + "PBPBBPB"
    found = [find_output_order(by_types(kinds, unknown))[1] for unknown in (2, 4)]
    assert [len(uncertain) for uncertain in found] == [2, 2]
