"""Finds the bytes of each packet in a file, so that mutations can tell pictures from headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["TS_PACKET", "locate"]

TS_PACKET = 188
"""Bytes of a packet of an MPEG transport stream."""

Positions = npt.NDArray[np.int64]


def locate(data: bytes, container: str, packets: Sequence[bytes]) -> list[Positions | None]:
    """Return the offsets of the bytes of each packet; None for a packet that is not in the file as it is."""
    if container == "ts":
        chunks = list(_ts_payload(data))
    elif container == "mpg":
        chunks = list(_ps_payload(data))
    else:
        chunks = [(0, len(data))]
    offsets = np.concatenate([np.arange(start, stop) for start, stop in chunks])
    stream = b"".join(data[start:stop] for start, stop in chunks)
    found: list[Positions | None] = []
    at = 0
    for packet in packets:
        position = stream.find(packet, at)
        if position < 0:  # the file may store packets in another order
            position = stream.find(packet)
        found.append(offsets[position : position + len(packet)] if position >= 0 else None)
        at = position + len(packet) if position >= 0 else at
    return found


def _ts_payload(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a transport stream that have the elementary stream of its video."""
    video = None
    for start in range(0, len(data) - TS_PACKET + 1, TS_PACKET):
        pid = int.from_bytes(data[start + 1 : start + 3], "big") & 0x1FFF
        control = data[start + 3] >> 4 & 3
        at = start + 4 + (1 + data[start + 4] if control & 2 else 0)
        if data[start + 1] & 0x40 and data[at : at + 3] == b"\0\0\1" and data[at + 3] & 0xF0 == 0xE0:
            video = pid
            at += 9 + data[at + 8]
        if control & 1 and pid == video:
            yield at, start + TS_PACKET


def _ps_payload(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ranges of an MPEG-2 program stream or MPEG-1 system stream that have the video."""
    at = 0
    while (at := data.find(b"\0\0\1", at)) >= 0 and at + 6 <= len(data):
        code = data[at + 3]
        if code == 0xBA:
            at += 12 if data[at + 4] & 0xF0 == 0x20 else 14
            continue
        if code == 0xB9:
            return
        stop = at + 6 + int.from_bytes(data[at + 4 : at + 6], "big")
        if code & 0xF0 == 0xE0:
            yield _ps_payload_start(data, at + 6), stop
        at = stop


def _ps_payload_start(data: bytes, at: int) -> int:
    if data[at] & 0xC0 == 0x80:  # MPEG-2
        return at + 3 + data[at + 2]
    while data[at] == 0xFF:
        at += 1
    if data[at] & 0xC0 == 0x40:
        at += 2
    return at + {0x20: 5, 0x30: 10}.get(data[at] & 0xF0, 1)
