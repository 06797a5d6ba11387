"""Groups of wanted frames whose decode plans share hardly a packet. Pure: from the packet index to slices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from telecine.index.packet_index import PacketIndex

__all__ = ["split_frames"]


def split_frames(index: PacketIndex, frames: npt.NDArray[np.int64], min_frames: int, max_frames: int) -> list[slice]:
    """Split wanted frames at random access points into groups that can be decoded one after another.

    Each group but the first begins at a random access point in presentation order. Two neighbours then share no packet
    at a closed point. At an open point they share the point's own picture, and leading pictures that others refer to.
    Neighbouring groups are joined up to ``min_frames`` together. A group of more than ``max_frames`` is split between
    random access points, and the packets before the split are then in the plans of both. Frames out of order are split
    by count.
    """
    count = len(frames)
    if (np.diff(frames) < 0).any():
        return [slice(start, min(start + min_frames, count)) for start in range(0, count, min_frames)]
    points = index.random_access[index.display_order] > 0
    bounds, last = [0], 0
    for cut in [*np.unique(np.searchsorted(frames, np.flatnonzero(points))).tolist(), count]:
        if cut - bounds[-1] > min_frames and last > bounds[-1]:
            bounds.append(last)
        last = cut
    if last > bounds[-1]:
        bounds.append(last)
    return [
        slice(start, min(start + max_frames, end))
        for begin, end in pairwise(bounds)
        for start in range(begin, end, max_frames)
    ]
