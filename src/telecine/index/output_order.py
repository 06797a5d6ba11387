"""The bitstream's output order, also if the headers of some pictures are destroyed.

A destroyed picture must not exchange others. Its place follows from those that the others leave free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from telecine.bitstream import LAST_IN_SEQUENCE

__all__ = ["find_output_order", "positions_by_keys"]

_Positions = npt.NDArray[np.int64]
_MAX_GAP = 64
"""Steps between two counts of which more cannot be missing."""
_Keys = list[tuple[int, int, int]]
"""(coded video sequence, part of it, place in output order) of each picture."""


def find_output_order(orders: Sequence[tuple[int, int] | None]) -> tuple[_Positions | None, set[int]]:
    """Return the position of each picture in output order, and the pictures of which it is uncertain.

    The position is None if it is unknown for too many pictures.

    Args:
        orders: :attr:`telecine.bitstream.PacketInfo.display_order` of the pictures in decode order.
    """
    unknown = [i for i, order in enumerate(orders) if order is None]
    if 2 * len(unknown) >= len(orders):
        return None, set()
    if any(order is not None and order[1] == LAST_IN_SEQUENCE for order in orders):
        keys, uncertain = _order_by_types(orders)
    else:
        keys, uncertain = _order_by_counts(orders, unknown)
    places = np.array(keys, dtype=np.int64)
    return positions_by_keys(*places.T[::-1]), uncertain


def positions_by_keys(*keys: npt.NDArray[np.generic]) -> _Positions:
    """Return the position of each element after sorting by keys, the last one first."""
    positions = np.empty(len(keys[0]), np.int64)
    positions[np.lexsort(keys)] = np.arange(len(positions))
    return positions


def _order_by_types(orders: Sequence[tuple[int, int] | None]) -> tuple[_Keys, set[int]]:
    """Order B pictures before the reference decoded before them (MPEG-1, 2 and 4, VC-1).

    Encoders mostly write runs of B pictures of few lengths. An unknown picture is a B picture or a reference, whichever
    gives runs that are frequent. If both do, the position of the reference before it is uncertain.
    """
    is_reference = [order and order[1] == LAST_IN_SEQUENCE for order in orders]
    bounds = [i for i, known in enumerate(is_reference) if known is not False]
    runs = Counter(
        two - one - 1
        for one, two in pairwise(bounds)
        if is_reference[one] is not None and is_reference[two] is not None
    )
    uncertain: set[int] = set()
    latest = -1
    for i, known in enumerate(is_reference):
        if known is None:
            uncertain.add(i)
            before, stop = i - latest - 1, next((j for j in bounds if j > i), None)
            if stop is None:  # the last run is cut off
                as_b_picture, as_reference = sum(runs[n] for n in runs if n > before), runs[before]
            else:
                after = stop - i - 1
                as_b_picture, as_reference = runs[before + 1 + after], min(runs[before], runs[after])
            known = is_reference[i] = as_reference >= as_b_picture
            if latest >= 0 and min(as_b_picture, as_reference):
                uncertain.add(latest)
        latest = i if known else latest
    groups = np.cumsum(np.array(is_reference, bool)).tolist()
    places = [LAST_IN_SEQUENCE if known else i for i, known in enumerate(is_reference)]
    return [(group, 0, place) for group, place in zip(groups, places, strict=True)], uncertain


def _order_by_counts(orders: Sequence[tuple[int, int] | None], unknown: list[int]) -> tuple[_Keys, set[int]]:
    """Order pictures by their picture order counts (H.264, HEVC), and unknown ones by the counts that are missing."""
    sequence = next(order[0] for order in orders if order is not None)
    parts: list[tuple[int, list[int]]] = [(sequence, [])]
    counts: set[int] = set()
    start = None if orders[0] is not None else 0
    for i, order in enumerate(orders):
        if order is None:
            start = i
        elif order[0] != sequence or (start and order[1] in counts):
            # counts that repeat begin a sequence too: its first picture is one of the unknown ones
            split = i if order[0] != sequence or start is None else start
            moved = [j for j in parts[-1][1] if j >= split]
            del parts[-1][1][len(parts[-1][1]) - len(moved) :]
            sequence, start = order[0], None
            parts.append((sequence, moved))
            counts = {place for j in moved if (known := orders[j]) is not None for place in known[1:]}
        if order is not None:
            counts.add(order[1])
        parts[-1][1].append(i)
    keys: dict[int, tuple[int, int, int]] = {}
    uncertain = set(unknown)
    for number, (sequence, members) in enumerate(parts):
        places = {i: order[1] for i in members if (order := orders[i]) is not None}
        placed, is_certain = _fill_counts(places, [i for i in members if orders[i] is None], members)
        keys |= {i: (sequence, number, place) for i, place in placed.items()}
        if not is_certain:
            uncertain |= set(members)
    return [keys[i] for i in range(len(orders))], uncertain


def _fill_counts(places: dict[int, int], unknown: list[int], members: list[int]) -> tuple[dict[int, int], bool]:
    """Return the place of each picture of a sequence, and True if those of the unknown ones are the only ones free."""
    counts = sorted(set(places.values()))
    steps = Counter(two - one for one, two in pairwise(counts)).most_common(1)
    step = steps[0][0] if steps else 1
    free = [n for one, two in pairwise(counts) if two - one <= _MAX_GAP * step for n in range(one + step, two, step)]
    rest = list(unknown)
    if rest and rest[0] == members[0]:
        places = places | {rest.pop(0): counts[0] - 1 if counts else 0}  # an IDR picture comes first
    end = counts[-1] if counts else 0
    for number, picture in enumerate(rest):
        # they are not shown anyway, so it does not matter which of them has which place
        places = places | {picture: free[number] if number < len(free) else end + step * (number + 1)}
    return places, not rest or len(free) <= len(rest)
