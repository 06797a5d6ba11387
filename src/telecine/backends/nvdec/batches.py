"""The arguments of the NVDEC engine: a plan cut into stretches that different engines decode at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import DecodeRequest
from telecine.backends.parser_order import places
from telecine.bitstream import RandomAccess
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import PacketIndex
from telecine.plan.decode_plan import DecodePlan

__all__ = ["Batch", "batches"]

_BATCH_BYTES = 64 << 20
"""Packets held at a time: a batch is decoded before the next one is read."""
_LEAST_RUN = 16
"""Packets below which a stretch is not cut once more: every run drains the decoder."""


@dataclass
class Batch:
    """Arguments of one call of the engine."""

    packets: list[Any]
    orders: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    runs: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@dataclass
class Stretch:
    """What one engine decodes by itself."""

    ordinals: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    targets: list[tuple[int, int]]
    """(position in ``ordinals``, output row)"""


def batches(request: DecodeRequest) -> Iterator[Batch]:
    """Read the planned packets and put them together, as many stretches at a time as :data:`_BATCH_BYTES` allows."""
    index = request.index
    waiting: list[Stretch] = []
    size = 0
    for stretch in _stretches(index, request.plan):
        bytes_more = int(index.size[stretch.ordinals].sum())
        if waiting and size + bytes_more > _BATCH_BYTES:
            yield _read(request, waiting)
            waiting, size = [], 0
        waiting.append(stretch)
        size += bytes_more
    if waiting:
        yield _read(request, waiting)


def _read(request: DecodeRequest, stretches: list[Stretch]) -> Batch:
    packets: list[Any] = []
    flags = [stretch.flags for stretch in stretches]
    runs, wanted = [], []
    for stretch in stretches:
        start = len(packets)
        for position, (ordinal, packet) in enumerate(request.demuxer.read(request.index, stretch.ordinals)):
            packets.append(
                packet if ordinal not in request.index.new_extradata else _with_headers(request, ordinal, packet)
            )
            if packet.is_corrupt:
                # a second field belongs to the picture of the packet in front of it
                stretch.flags[position - int(position > 0 and request.index.second_field[ordinal])] |= _CORRUPT
        runs.append((start, len(packets)))
        wanted += [(start + position, row) for position, row in stretch.targets]
    ordinals = np.concatenate([stretch.ordinals for stretch in stretches])
    return Batch(
        packets,
        places(request.index, ordinals),
        np.concatenate(flags),
        np.array(runs, np.int64).reshape(-1, 2),
        np.array(wanted, np.int64).reshape(-1, 2),
    )


def _with_headers(request: DecodeRequest, ordinal: int, packet: Any) -> bytes:
    """A packet that holds what the container has brought beside it: the engine is told of one header."""
    data = request.demuxer.in_band(request.index, ordinal, packet)
    if data is None:
        raise UnsupportedVideoError(
            "nvdec: the container brings other headers in mid-stream, which the engine does not take"
        )
    return data


_RESTART, _NEEDED, _CORRUPT, _OPEN, _LEADING = 1, 2, 4, 8, 16
"""Packet flags of the engine."""


def _leads_over(
    torn: npt.NDArray[np.bool_], access: npt.NDArray[np.uint8], leading: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which packets look back over an open point in front of which others may be missing."""
    point = np.maximum.accumulate(np.where(access > 0, np.arange(len(access)), 0))
    behind: npt.NDArray[np.bool_] = leading & torn[point] & (access[point] == RandomAccess.OPEN)
    return behind


def _stretches(index: PacketIndex, plan: DecodePlan) -> Iterator[Stretch]:
    """Cut the runs of a plan once more, at closed random access points: different engines can decode the parts."""
    for run in plan.ranges:
        access = index.random_access[run.packets]
        flags = np.zeros(len(run.packets), np.uint8)
        flags[access == RandomAccess.CLOSED] |= _RESTART
        flags[access == RandomAccess.OPEN] |= _OPEN
        flags[index.leading[run.packets]] |= _LEADING
        flags[run.required & ~index.disposable[run.packets] & index.exact_random_access] |= _NEEDED
        torn = index.has_gap_before(run.packets) & index.exact_random_access
        flags[torn & (access == RandomAccess.NONE)] |= _NEEDED | _CORRUPT
        flags[index.corrupt[run.packets] | _leads_over(torn, access, index.leading[run.packets])] |= _CORRUPT
        cuts = [0]
        for at in np.flatnonzero(access == RandomAccess.CLOSED).tolist():
            if at - cuts[-1] >= _LEAST_RUN:
                cuts.append(at)
        cuts.append(len(run.packets))
        for start, stop in pairwise(cuts):
            ordinals = run.packets[start:stop]
            targets = [(i, row) for i, p in enumerate(ordinals.tolist()) for row in run.targets.get(p, ())]
            if targets:
                yield Stretch(ordinals, flags[start:stop], targets)
