"""Base of the H.264 and HEVC scanners: parameter sets that change in mid-stream, and the picture order count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from telecine.bitstream.extradata import extradata_units
from telecine.bitstream.nal import NalSplitter

__all__ = ["NalScanner", "ParameterSetTracker", "unwrap_poc"]

_DEPENDENT_TYPES = {7: frozenset({8}), 32: frozenset({33, 34}), 33: frozenset({34})}
"""By type of a parameter set, the types of those that refer to it (the types of H.264 and HEVC do not overlap)."""


class ParameterSetTracker:
    """Tracks which parameter sets of a stream differ from those in its extradata. Not thread-safe.

    A decoder knows the parameter sets of the extradata, and those that it has read since. So after one of them has
    changed, decoding can start only at a packet that repeats it: a decoder that starts there has not read the packets
    before.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bytes] = {}
        self._changed: set[tuple[int, int]] = set()
        self._with_packet: set[tuple[int, int]] = set()
        self._pending: list[tuple[int, int, bytes]] = []

    def set_initial(self, kind: int, number: int, unit: bytes) -> None:
        """Record a parameter set of the stream's extradata, by its type and id."""
        self._known[kind, number] = unit.rstrip(b"\0")

    def add_in_band(self, kind: int, number: int, unit: bytes) -> None:
        """Record a parameter set in the current packet; :meth:`end_packet` decides if it counts."""
        self._pending.append((kind, number, unit))

    def add_out_of_band(self, kind: int, number: int, unit: bytes) -> None:
        """Record a parameter set that the container attached to the next packet."""
        key, unit = (kind, number), unit.rstrip(b"\0")  # zeros at the end belong to the next start code
        if self._known.get(key) != unit:
            self._known[key] = unit
            # FFmpeg's decoders drop the parameter sets that refer to one that changes
            dependent = _DEPENDENT_TYPES.get(kind, ())
            self._changed |= {key, *(other for other in self._known if other[0] in dependent)}
        self._with_packet.add(key)

    @property
    def has_out_of_band(self) -> bool:
        """True if the container attached any to the next packet."""
        return bool(self._with_packet)

    def end_packet(self, in_band_counts: bool) -> bool:
        """End the current packet, and return True if a decoder that starts at it has all parameter sets.

        Args:
            in_band_counts: False to ignore the parameter sets in the packet, because they are probably damage.
        """
        if in_band_counts:
            for parameters in self._pending:
                self.add_out_of_band(*parameters)
        self._pending.clear()
        complete = self._changed <= self._with_packet
        self._with_packet.clear()
        return complete


class NalScanner(ABC):
    """Keeps the parameter sets of one H.264 or HEVC stream. Not thread-safe."""

    codec: ClassVar[str]

    def __init__(self, extradata: bytes) -> None:
        self._parameter_sets = ParameterSetTracker()
        self._sequence = -1
        self._previous_poc = 0
        self._read_extradata(extradata, self._parameter_sets.set_initial)

    def update_extradata(self, extradata: bytes) -> None:
        """See :meth:`telecine.bitstream.UpdatableScanner.update_extradata`."""
        self._read_extradata(extradata, self._parameter_sets.add_out_of_band)

    def _read_extradata(self, extradata: bytes, record: Callable[[int, int, bytes], None]) -> None:
        self._nal_units = NalSplitter(self.codec, extradata)
        for unit in extradata_units(self.codec, extradata):
            self._read_parameter_set(unit, record)

    def _read_parameter_set(self, unit: bytes, record: Callable[[int, int, bytes], None]) -> None:
        if (key := self._parse_parameter_set(unit)) is not None:
            record(*key, unit)

    @abstractmethod
    def _parse_parameter_set(self, unit: bytes) -> tuple[int, int] | None:
        """Keep a parameter set for the slices that refer to it; return its type and id, None if it cannot be read."""

    def _can_start(self, is_key: bool, has_picture: bool) -> bool:
        """End the current packet, and return True if a decoder that starts at it has all parameter sets."""
        # if the container keeps parameter sets in its header, those with a picture that is no key frame are damage
        return self._parameter_sets.end_packet(is_key or not has_picture or not self._nal_units.length_size)


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
