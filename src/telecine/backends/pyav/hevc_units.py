"""Removal of NAL units that no HEVC picture needs, before FFmpeg's decoder reads them.

To compare picture hashes, the decoder must stop at every error (``err_detect=explode``). It then also refuses pictures
that come with a malformed message, a reserved unit, or a broken parameter set that nothing refers to. So it is given
only what changes pictures: slices, valid parameter sets, ends of sequences, picture hashes and film grain.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from telecine.bitstream.bit_reader import BitReader, InvalidHeader
from telecine.bitstream.hevc import is_picture_type
from telecine.bitstream.nal import (
    MAX_NAL_UNITS,
    escape,
    extradata_units,
    join_annex_b,
    join_length_prefixed,
    nal_length_size,
    sei_messages,
    split_packet,
    unescape,
)
from telecine.plan.packet_reader import with_data

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["HevcUnitFilter"]

_VPS, _SPS, _PPS, _PREFIX_SEI, _SUFFIX_SEI = 32, 33, 34, 39, 40
_PARAMETER_SETS = (_VPS, _SPS, _PPS)
_ENDS = (36, 37)
"""End of sequence, end of bitstream (table 7-1)."""
_KEPT_MESSAGES = {_PREFIX_SEI: (19,), _SUFFIX_SEI: (19, 132)}
"""Payload types that change or verify pictures (D.2.1): film grain characteristics, decoded picture hash."""
_HVCC_HEADER_BYTES = 22


class HevcUnitFilter:
    """Filters the packets given to one decoder, in decode order. Not thread-safe."""

    def __init__(self, extradata: bytes) -> None:
        self._length_size = nal_length_size("hevc", extradata)
        self._valid: list[bytes] = []
        """Parameter sets that the decoder takes, in an order in which each follows those that it refers to."""
        self._waiting: list[bytes] = []
        """Parameter sets of the extradata that refer to others, which may come in a packet."""
        self._invalid: set[bytes] = set()
        self._broken_pps: set[int] = set()
        """Identifiers of broken picture parameter sets: the decoder has an earlier one, or none."""
        announced = [unit for unit in extradata_units("hevc", extradata) if unit and _type(unit) in _PARAMETER_SETS]
        units = [unit for unit in announced if _is_parameter_set(unit)]
        self._waiting = units
        self._accept(units)
        self._waiting = [unit for unit in units if unit not in self._valid]
        self.extradata = extradata if self._valid == announced else self._with_valid_sets(extradata)
        """Extradata for the decoder: parameter sets that it takes, each after those that it refers to."""

    def _with_valid_sets(self, extradata: bytes) -> bytes:
        if not self._length_size:
            return join_annex_b(self._valid)
        # 8.3.3.1: one array for each
        arrays = [bytes([_type(unit), 0, 1]) + len(unit).to_bytes(2, "big") + unit for unit in self._valid]
        return extradata[:_HVCC_HEADER_BYTES] + bytes([len(arrays)]) + b"".join(arrays)

    def filter(self, packet: Packet[Any]) -> tuple[Packet[Any], bool]:
        """Return a packet without the units that no picture needs, and True if its picture refers to a broken set."""
        size, raw = self._length_size, memoryview(packet)
        is_single_unit = size == 4 and len(raw) > 6 and int.from_bytes(raw[:4], "big") + 4 == len(raw)
        if is_single_unit and is_picture_type(raw[4] >> 1):
            return packet, self._refers_to_broken(bytes(raw[4:40]))
        units = split_packet("hevc", bytes(raw), size)
        if not units or len(units) >= MAX_NAL_UNITS:
            return packet, bool(units)  # the decoder reports what is wrong with one that has none
        kept = list(self._filtered(units))
        is_broken = any(is_picture_type(unit[0] >> 1) and self._refers_to_broken(unit[:40]) for unit in units)
        if kept == units:
            return packet, is_broken
        return with_data(packet, join_length_prefixed(kept, size) if size else join_annex_b(kept)), is_broken

    def _filtered(self, units: list[bytes]) -> Iterable[bytes]:
        new = [unit for unit in units if _is_parameter_set(unit) and unit not in self._valid]
        accepted = self._accept([*new, *self._waiting]) if new else []
        added = [unit for unit in accepted if unit in self._waiting]
        self._waiting = [unit for unit in self._waiting if unit not in added]
        for unit in units:
            if len(unit) < 2 or unit[0] & 0x81 or unit[1] >> 3:
                continue  # cut off, forbidden_zero_bit, or of another layer
            kind = _type(unit)
            if is_picture_type(kind) or kind in _ENDS:
                yield from added
                added = []
                yield unit
            elif kind in _PARAMETER_SETS and unit in self._valid:
                yield unit
            elif kind in _KEPT_MESSAGES and (message := _kept_messages(unit, _KEPT_MESSAGES[kind])):
                yield message

    def _accept(self, units: list[bytes]) -> list[bytes]:
        """Add the parameter sets that the decoder takes to the valid ones, and return them."""
        new = [unit for unit in units if unit not in self._invalid]
        if new and _can_open([*self._valid, *new]):
            self._replace(new)
            return new
        accepted: list[bytes] = []
        # each may refer to one that follows
        for _ in _PARAMETER_SETS:
            for unit in [unit for unit in new if unit not in accepted]:
                if _can_open([*self._valid, unit]):
                    self._replace([unit])
                    accepted.append(unit)
        refused = set(new) - set(accepted) - set(self._waiting)
        self._invalid |= refused
        self._broken_pps |= _pps_numbers(refused)
        return accepted

    def _replace(self, units: list[bytes]) -> None:
        self._valid += units
        self._broken_pps -= _pps_numbers(units)

    def _refers_to_broken(self, head: bytes) -> bool:
        """Return True if a slice refers to a broken picture parameter set (7.3.6.1)."""
        is_irap = (head[0] >> 1) >= 16
        return bool(self._broken_pps) and _number(head, 17 + is_irap) in self._broken_pps


def _type(unit: bytes) -> int:
    return unit[0] >> 1 & 63


def _is_parameter_set(unit: bytes) -> bool:
    """Return True for a parameter set with content; FFmpeg reads memory behind one that is only a header."""
    return len(unit) > 2 and _type(unit) in _PARAMETER_SETS


def _pps_numbers(units: Iterable[bytes]) -> set[int]:
    return {number for unit in units if _type(unit) == _PPS and (number := _number(unit, 16)) is not None}


def _number(unit: bytes, start: int) -> int | None:
    with suppress(InvalidHeader):
        return BitReader(unescape(unit[:40]), start).ue()
    return None


def _kept_messages(unit: bytes, kinds: tuple[int, ...]) -> bytes:
    """Return a SEI unit with only the whole messages of these types; empty if there are none."""
    kept = [message for kind, _, message in sei_messages(unit, 2) if kind in kinds]
    return unit[:2] + escape(b"".join(kept) + b"\x80") if kept else b""


def _can_open(units: list[bytes]) -> bool:
    """Return True if FFmpeg's decoder takes parameter sets without an error."""
    import av

    context: Any = av.CodecContext.create("hevc", "r")
    context.extradata = join_annex_b(units)
    context.options = {"err_detect": "explode"}
    context.thread_count = 1
    try:
        context.open()
    except av.error.FFmpegError:
        return False
    return True
