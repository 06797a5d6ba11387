"""Base of the H.264 and HEVC scanners: parameter sets that change in mid-stream, and the picture order count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from telecine.bitstream.extradata import extradata_units
from telecine.bitstream.nal import NalSplitter
from telecine.bitstream.scanner import Scanner

__all__ = ["NalScanner", "unwrap_poc"]

_DEPENDENT_TYPES = {7: frozenset({8}), 32: frozenset({33, 34}), 33: frozenset({34})}
"""By type of a parameter set, the types of those that refer to it (the types of H.264 and HEVC do not overlap)."""


class NalScanner(Scanner, ABC):
    """Tracks which parameter sets of a stream differ from those in its first extradata. Not thread-safe.

    A decoder knows the parameter sets of the extradata, and those that it has read since. So after one of them has
    changed, decoding can start only at a packet that repeats it.
    """

    accepts_new_extradata = True
    codec: ClassVar[str]

    def __init__(self, extradata: bytes) -> None:
        self._known: dict[tuple[int, int], bytes] = {}
        """The latest parameter sets, by type and id."""
        self._changed: set[tuple[int, int]] = set()
        self._with_packet: set[tuple[int, int]] = set()
        """Those that come with the current packet, in it or attached by the container."""
        self._sequence = -1
        self._previous_poc = 0
        self.update_extradata(extradata)
        self._changed.clear()
        self._with_packet.clear()

    def update_extradata(self, extradata: bytes) -> None:
        self._nal_units = NalSplitter(self.codec, extradata)
        self._record((self._parse_parameter_set(unit), unit) for unit in extradata_units(self.codec, extradata))

    @abstractmethod
    def _parse_parameter_set(self, unit: bytes) -> tuple[int, int] | None:
        """Keep a parameter set for the slices that refer to it; return its type and id, None if it cannot be read."""

    def _record(self, units: Iterable[tuple[tuple[int, int] | None, bytes]]) -> None:
        for key, unit in units:
            if key is None:
                continue
            unit = unit.rstrip(b"\0")  # zeros at the end belong to the next start code
            if self._known.get(key) != unit:
                self._known[key] = unit
                # FFmpeg's decoders drop the parameter sets that refer to one that changes
                dependent = _DEPENDENT_TYPES.get(key[0], ())
                self._changed |= {key, *(other for other in self._known if other[0] in dependent)}
            self._with_packet.add(key)

    def _can_start(self, in_band: list[tuple[tuple[int, int] | None, bytes]], is_key: bool, has_picture: bool) -> bool:
        """End the current packet, and return True if a decoder that starts at it has all parameter sets."""
        # if the container keeps parameter sets in its header, those with a picture that is no key frame are damage
        if is_key or not has_picture or not self._nal_units.length_size:
            self._record(in_band)
        is_complete = self._changed <= self._with_packet
        self._with_packet.clear()
        return is_complete


def unwrap_poc(lsb: int, lsb_bits: int, previous: int) -> int:
    """Return the picture order count nearest to ``previous`` with these low bits (H.264 8.2.1.1, HEVC 8.3.1)."""
    wrap = 1 << lsb_bits
    previous_lsb = previous % wrap
    poc = previous - previous_lsb + lsb
    if lsb < previous_lsb and previous_lsb - lsb >= wrap // 2:
        return poc + wrap
    if lsb > previous_lsb and lsb - previous_lsb > wrap // 2:
        return poc - wrap
    return poc
