"""Conversion of container packets to the byte streams that the parser of NVIDIA's driver reads."""

from __future__ import annotations

import pytest

from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.nal import START_CODE


def _avcc(*sets: bytes, length_size: int = 4) -> bytes:
    units = b"".join(len(unit).to_bytes(2, "big") + unit for unit in sets[:1])
    more = b"".join(len(unit).to_bytes(2, "big") + unit for unit in sets[1:])
    head = bytes([1, 100, 0, 30, 0xFC | (length_size - 1), 0xE1])
    return head + units + bytes([len(sets) - 1]) + more


@pytest.mark.parametrize("length_size", [1, 2, 4])
def test_length_prefixed_packets_are_converted_to_annex_b(length_size: int) -> None:
    sps, pps, slices = b"\x67sps", b"\x68pps", [b"\x06sei", b"\x65\x88slice"]
    packet = b"".join(len(unit).to_bytes(length_size, "big") + unit for unit in slices)
    stream = AnnexBConverter("h264", _avcc(sps, pps, length_size=length_size))
    body = b"".join(START_CODE + unit for unit in slices)
    assert stream.convert(packet, True, True) == START_CODE + sps + START_CODE + pps + body
    assert stream.sequence_headers == (sps,)
    assert stream.convert(packet, False, False) == body
    assert stream.convert(memoryview(packet), True, True) == START_CODE + sps + START_CODE + pps + body
    wrong_length = b"\xff" * length_size + packet
    assert stream.convert(wrong_length, False, False) is None
    # an empty packet would end the stream
    assert stream.convert(bytes(length_size), False, False) is None


def test_annex_b_packets_stay_unchanged() -> None:
    packet = START_CODE + b"\x09\xf0\0\0\1\x65\x88slice"
    for extradata in (b"", START_CODE + b"\x67sps", _avcc(b"\x67sps", b"\x68pps")):
        stream = AnnexBConverter("h264", extradata)
        stream.convert(packet, True, True)
        assert stream.convert(packet, False, True) == packet


def test_sequence_headers_are_those_of_the_last_packet() -> None:
    stream = AnnexBConverter("h264", START_CODE + b"\x67one")
    slice_ = START_CODE + b"\x65\x88slice"
    stream.convert(slice_, True, True)
    assert stream.sequence_headers == (b"\x67one",)
    stream.convert(START_CODE + b"\x67one" + slice_, False, True)
    assert stream.sequence_headers == (b"\x67one",)
    stream.convert(START_CODE + b"\x67two" + slice_, False, True)
    assert stream.sequence_headers == (b"\x67two",)
    stream.update_extradata(_avcc(b"\x67new", b"\x68pps"))
    packet = b"\0\0\0\7\x65\x88slice"[:11]
    assert (
        stream.convert(packet, False, True)
        == START_CODE + b"\x67new" + START_CODE + b"\x68pps" + START_CODE + packet[4:]
    )
    assert stream.sequence_headers == (b"\x67new",)


def test_sequence_headers_of_other_codecs_are_prepended_once() -> None:
    assert AnnexBConverter("vc1", b"\x25\0\0\1\x0fseq").convert(b"frame", True, True) == b"\0\0\1\x0fseq\0\0\1\x0dframe"
    sequence, frame = b"\x0a\x03abc", b"\x32\x05frame"
    assert AnnexBConverter("av1", b"\x81\0\0\0" + sequence).convert(frame, True, True) == sequence + frame
    assert AnnexBConverter("av1", b"\x81\0\0\0" + sequence).convert(
        b"\x12\0" + sequence + frame, prepend_extradata=True, is_random_access=True
    ) == (b"\x12\0" + sequence + frame)
    assert AnnexBConverter("vp9", b"private").convert(b"frame", True, True) == b"frame"
