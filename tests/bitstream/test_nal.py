"""Splitting and joining NAL units and OBUs."""

from __future__ import annotations

import pytest

from telecine.bitstream.av1 import config_obus, sequence_header_obu, split_obus
from telecine.bitstream.nal import (
    MAX_NAL_UNITS,
    NalSplitter,
    join_annex_b,
    join_length_prefixed,
    nal_length_size,
    replace_nal_units,
    split_annex_b,
    split_length_prefixed,
)

UNITS = [b"\x67sps", b"\x68pps", b"\x65slice"]
AVCC = b"\1\0\0\0\xff\xe0"


def test_annex_b_units_are_split_without_the_zeros_of_the_next_start_code() -> None:
    assert list(split_annex_b(join_annex_b(UNITS))) == UNITS
    assert list(split_annex_b(b"\0\0\1a\0\0\0\0\1b\0")) == [b"a", b"b"]
    assert list(split_annex_b(b"no start code")) == []


@pytest.mark.parametrize("length_size", [1, 2, 3, 4])
def test_length_prefixed_units_are_split_as_they_were_joined(length_size: int) -> None:
    packet = join_length_prefixed(UNITS, length_size)
    assert split_length_prefixed(packet, length_size) == UNITS
    assert split_length_prefixed(packet[:-1], length_size) is None


def test_the_size_of_lengths_is_read_from_avcc() -> None:
    assert [nal_length_size("h264", data) for data in (AVCC, AVCC[:4], b"\0\0\0\1\x67", b"")] == [4, 0, 0, 0]


@pytest.mark.parametrize("extradata", [AVCC, b""])
def test_the_splitter_gives_parameter_sets_whole_and_the_beginning_of_slices(extradata: bytes) -> None:
    units = [b"\x67" + 500 * b"s", b"\x65" + 500 * b"p"]
    packet = join_length_prefixed(units, 4) if extradata else join_annex_b(units)
    assert list(NalSplitter("h264", extradata).split(packet)) == [units[0], units[1][:256]]


def test_the_splitter_stops_after_a_limit_of_units() -> None:
    packet = (MAX_NAL_UNITS + 5) * b"\0\0\1\x65"
    assert len(list(NalSplitter("h264", b"").split(packet))) == MAX_NAL_UNITS


def test_replacing_units_keeps_start_codes_and_zeros() -> None:
    data = b"\0\0\0\1\x67a\0\0\0\1\x65b\0\0\0\1\x68c\0"
    assert replace_nal_units(data, lambda unit: unit) == data
    changed = replace_nal_units(data, lambda unit: b"\x67longer" if unit[0] == 0x67 else unit)
    assert changed == data.replace(b"\x67a", b"\x67longer")


def test_obus_are_split_by_their_sizes() -> None:
    sequence, frame = b"\x0a\x03abc", b"\x36\x08\x85\1frame"
    data = b"\x12\0" + sequence + frame
    assert [(obu.type, obu.extension, data[obu.payload : obu.end]) for obu in split_obus(data)] == [
        (2, 0, b""),
        (1, 0, b"abc"),
        (6, 8, b"frame"),
    ]
    assert sequence_header_obu(data) == sequence
    assert sequence_header_obu(frame) == b""
    assert config_obus(b"\x81\0\0\0" + sequence) == config_obus(sequence) == sequence
