"""The records in which containers keep parameter sets beside the packets: ``avcC`` and ``hvcC`` (ISO/IEC 14496-15)."""

from __future__ import annotations

from telecine.bitstream.nal import PARAMETER_SETS, NalUnits, annex_b

__all__ = ["header_units", "in_band", "read_record"]


def header_units(codec: str, extradata: bytes) -> list[bytes]:
    """The units of codec private data, which is a record or Annex B."""
    return read_record(codec, extradata) if NalUnits(extradata, codec).length_size else list(annex_b(extradata))


def read_record(codec: str, record: bytes) -> list[bytes]:
    """The units of an ``avcC`` (5.3.3.1) or ``hvcC`` (8.3.3.1) record, as far as it is whole.

    Args:
        codec: "h264" or "hevc".
        record: begins with its version, 1.
    """
    units: list[bytes] = []
    if codec == "h264":
        at = 5
        for mask in (31, 255):
            count = record[at] & mask if at < len(record) else 0
            at = _take(record, at + 1, count, units)
        return units
    at = 23
    for _ in range(record[22] if len(record) > 22 else 0):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at = _take(record, at + 3, count, units)
    return units


def _take(record: bytes, at: int, count: int, units: list[bytes]) -> int:
    """Take ``count`` units with lengths of two bytes; say where they end."""
    for _ in range(count):
        length = int.from_bytes(record[at : at + 2], "big")
        if at + 2 + length > len(record):
            return len(record)
        if length:
            units.append(record[at + 2 : at + 2 + length])
        at += 2 + length
    return at


def in_band(codec: str, header: bytes, record: bytes, packet: bytes) -> bytes | None:
    """A packet with the parameter sets in front of it that the container has brought beside it.

    Args:
        codec: FFmpeg's name of it.
        header: the codec private data of the file, by which its packets are framed.
        record: that which came with the packet.
        packet: its bytes.

    Returns:
        None where they do not go together: another codec, or lengths of another size.
    """
    if codec not in PARAMETER_SETS:
        return None
    size = NalUnits(header, codec).length_size
    if not size or NalUnits(record, codec).length_size != size:
        return None
    units = read_record(codec, record)
    if not units or max(map(len, units)) >= 1 << 8 * size:
        return None
    return b"".join(len(unit).to_bytes(size, "big") + unit for unit in units) + packet
