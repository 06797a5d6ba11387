"""Arguments of the NVDEC engine: batches of packets, in decode ranges that its video engines decode in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import DecodeRequest
from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.plan.damage import leads_across_gap
from telecine.plan.ranges import DecodeRange, output_rows, split_at_closed_points

__all__ = ["Batch", "read_batches"]

_BATCH_BYTES = 64 << 20
"""Bytes of packets held at a time: a batch is decoded before the next one is read."""
_MIN_RANGE_PACKETS = 16
"""A range is not split into smaller ones than this: the decoder is drained at the end of each."""
_CLOSED, _REQUIRED, _CORRUPT, _OPEN, _LEADING = 1, 2, 4, 8, 16
"""Packet flags of the engine; see ``_nvdec.pyi``."""


@dataclass
class Batch:
    """Arguments of one call of the engine."""

    packets: list[Any]
    """P objects with the buffer protocol."""
    display_order: npt.NDArray[np.int64]
    """``int64 [P]`` position of each packet in display order."""
    flags: npt.NDArray[np.uint8]
    """``uint8 [P]`` packet flags."""
    ranges: npt.NDArray[np.int64]
    """``int64 [R, 2]`` (start, stop) of the decode ranges in ``packets``."""
    targets: npt.NDArray[np.int64]
    """``int64 [K, 2]`` (position in ``packets``, output row)."""


def read_batches(request: DecodeRequest) -> Iterator[Batch]:
    """Read the planned packets, as many decode ranges at a time as fit into :data:`_BATCH_BYTES`."""
    waiting: list[DecodeRange] = []
    size = 0
    for range_ in split_at_closed_points(request.index, request.plan.ranges, _MIN_RANGE_PACKETS):
        more = int(request.index.size[range_.packets].sum())
        if waiting and size + more > _BATCH_BYTES:
            yield _read(request, waiting)
            waiting, size = [], 0
        waiting.append(range_)
        size += more
    if waiting:
        yield _read(request, waiting)


def _read(request: DecodeRequest, ranges: list[DecodeRange]) -> Batch:
    index = request.index
    ordinals = np.concatenate([range_.packets for range_ in ranges])
    bounds = np.append(0, np.cumsum([len(range_.packets) for range_ in ranges]))
    flags = _packet_flags(index, ordinals, np.concatenate([range_.required for range_ in ranges]), bounds[:-1])
    packets = [packet for _, packet in request.reader.read_in_band(ordinals)]
    rows = [(ordinal, row) for ordinal, wanted in output_rows(ranges).items() for row in wanted]
    targets = np.array(rows, np.int64).reshape(-1, 2)
    targets[:, 0] = np.searchsorted(ordinals, targets[:, 0])
    return Batch(
        packets, index.display_positions(ordinals), flags, np.stack([bounds[:-1], bounds[1:]], axis=1), targets
    )


def _packet_flags(
    index: PacketIndex, packets: npt.NDArray[np.int64], required: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return the engine's flags of packets in decode ranges that start at these positions in ``packets``."""
    access, leading = index.random_access[packets], index.leading[packets]
    gap = index.has_gap_before(packets) & index.exact_random_access
    gap[starts] = False  # packets missing in front of a range do not matter
    flags = np.zeros(len(packets), np.uint8)
    flags[access == RandomAccess.CLOSED] |= _CLOSED
    flags[access == RandomAccess.OPEN] |= _OPEN
    flags[leading] |= _LEADING
    flags[required & index.presentable[packets] & ~index.disposable[packets] & index.exact_random_access] |= _REQUIRED
    flags[gap & (access == RandomAccess.NONE)] |= _REQUIRED | _CORRUPT
    corrupt = index.corrupt[packets]
    flags[corrupt | leads_across_gap(index, packets, gap)] |= _CORRUPT
    # a second field belongs to the picture of the packet in front of it
    flags[np.maximum(np.flatnonzero(corrupt & index.second_field[packets]) - 1, 0)] |= _CORRUPT
    return flags
